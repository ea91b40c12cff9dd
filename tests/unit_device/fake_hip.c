/* A HIP runtime without a GPU: memory is the host's, and what is asked of it is written down. The environment decides
 * FAKE_HIP_VERSION (of hipRuntimeGetVersion), FAKE_HIP_INIT (the error of hipInit), FAKE_HIP_COUNT (GPUs), FAKE_HIP_SET
 * (the error of hipSetDevice), FAKE_HIP_ARCH, FAKE_HIP_CAPTURING (1: streams are captured). */
#include "fake_gpu.h"

static int module, function, event;
static int current = 7; /* of the calling thread: the program's own choice unless set */

EXPORT int hipRuntimeGetVersion(int *version) {
  *version = number("FAKE_HIP_VERSION", 60000000);
  return 0;
}
EXPORT int hipInit(unsigned flags) {
  (void)flags;
  return number("FAKE_HIP_INIT", 0);
}
EXPORT int hipGetDeviceCount(int *count) {
  *count = number("FAKE_HIP_COUNT", 0);
  return 0;
}
EXPORT int hipGetDeviceProperties(char *properties, int device) { /* the layout before ROCm 6 */
  const char *arch = getenv("FAKE_HIP_ARCH");
  (void)device;
  strcpy(properties + 396, arch != NULL ? arch : "gfx90a:sramecc+:xnack-");
  return 0;
}
EXPORT int hipDeviceGetName(char *name, int length, int device) {
  (void)device;
  strncpy(name, "a GPU that is not there", (size_t)length);
  return 0;
}
EXPORT int hipDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 63 ? 110 : 0;
  return 0;
}
EXPORT int hipDeviceTotalMem(size_t *bytes, int device) {
  (void)device;
  *bytes = 1000;
  return 0;
}
EXPORT const char *hipGetErrorName(int error) {
  return error == 100 ? "hipErrorNoDevice" : error == 2 ? "hipErrorOutOfMemory" : "hipErrorOther";
}
EXPORT const char *hipGetErrorString(int error) {
  return error == 100 ? "no device" : error == 2 ? "out of memory" : "other";
}

EXPORT int hipGetDevice(int *device) {
  *device = current;
  return 0;
}
EXPORT int hipSetDevice(int device) {
  if (number("FAKE_HIP_SET", 0) != 0) return number("FAKE_HIP_SET", 0);
  current = device;
  return 0;
}
/* Everything below needs the library's device. */
static int outside(void) { return current == 0 ? 0 : 101; }

EXPORT int hipMalloc(void **pointer, size_t bytes) {
  if (outside()) return outside();
  if (bytes >= (size_t)1 << 40) return 2;
  *pointer = host_memory(bytes);
  return note("alloc %zu\n", bytes);
}
EXPORT int hipFree(void *pointer) {
  free(pointer);
  return outside();
}
EXPORT int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  (void)stream;
  if (kind < 1 || kind > 3) return 1;
  memcpy(to, from, bytes);
  return outside();
}
EXPORT int hipMemsetAsync(void *pointer, int value, size_t bytes, void *stream) {
  memset(pointer, value, bytes);
  note("set %zu bytes to %d on stream %p\n", bytes, value, stream);
  return outside();
}
EXPORT int hipStreamSynchronize(void *stream) {
  (void)stream;
  return outside();
}
EXPORT int hipStreamWaitEvent(void *stream, void *which, unsigned flags) {
  (void)which, (void)flags;
  return note("stream %p waits\n", stream);
}
EXPORT int hipStreamIsCapturing(void *stream, int *status) {
  (void)stream;
  *status = number("FAKE_HIP_CAPTURING", 0);
  return 0;
}
EXPORT int hipEventCreateWithFlags(void **made, unsigned flags) {
  *made = &event;
  return flags == 2 ? outside() : 1;
}
EXPORT int hipEventRecord(void *which, void *stream) {
  (void)which;
  return note("record on stream %p\n", stream);
}
EXPORT int hipEventDestroy(void *which) {
  (void)which;
  return 0;
}
EXPORT int hipModuleLoadData(void **made, const void *image) {
  const unsigned char *bytes = image;
  if (memcmp(image, "\177ELF", 4) != 0) return 1;
  *made = &module;
  note("load ELF of machine 0x%02x\n", bytes[48]);
  return outside();
}
EXPORT int hipModuleGetFunction(void **made, void *from, const char *name) {
  *made = &function;
  return from == &module ? note("function %s\n", name) : 1;
}
EXPORT int hipModuleLaunchKernel(void *which, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                                 unsigned threads_z, unsigned shared, void *stream, void **parameters, void **extra) {
  if (which != &function || z != 1 || threads_y != 1 || threads_z != 1 || parameters != NULL || extra == NULL) return 1;
  note("launch %u x %u of %u threads, %u bytes, on stream %p\n", x, y, threads, shared, stream);
  return outside();
}
