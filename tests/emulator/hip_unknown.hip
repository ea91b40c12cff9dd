// An instruction that is not emulated: a texture fetch.
extern "C" __attribute__((global)) void textures(float* out) {
  float value;
  asm volatile("image_load %0, v[0:1], s[0:7] dmask:0x1 dim:SQ_RSRC_IMG_2D" : "=v"(value)::"v0", "v1");
  out[0] = value;
}
