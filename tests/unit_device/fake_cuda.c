/* NVIDIA's driver without a GPU: memory is the host's, and what is asked of it is written down. The environment decides
 * FAKE_CUDA_VERSION, FAKE_CUDA_INIT (the error of cuInit), FAKE_CUDA_COUNT (GPUs), FAKE_CUDA_CAPABILITY (90),
 * FAKE_CUDA_REFUSES (what the first bytes of a module must not be), FAKE_CUDA_CAPTURING (1: streams are captured),
 * FAKE_CUDA_REFUSES_MAP (which tensor map is refused). */
#include "fake_gpu.h"

static int capability(void) { return number("FAKE_CUDA_CAPABILITY", 90); }

static int context_of_library, module, function, event;
static void *current = NULL; /* context of the calling thread; the program's own unless set */

EXPORT int cuInit(unsigned flags) {
  (void)flags;
  return number("FAKE_CUDA_INIT", 0);
}
EXPORT int cuDriverGetVersion(int *version) {
  *version = number("FAKE_CUDA_VERSION", 13000);
  return 0;
}
EXPORT int cuDeviceGetCount(int *count) {
  *count = number("FAKE_CUDA_COUNT", 1);
  return 0;
}
EXPORT int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return 0;
}
EXPORT int cuDeviceGetName(char *name, int length, int device) {
  (void)device;
  snprintf(name, (size_t)length, "a GPU that is not there");
  return 0;
}
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case 16:
      *value = 132;
      return 0;
    case 75:
      *value = capability() / 10;
      return 0;
    case 76:
      *value = capability() % 10;
      return 0;
    case 97:
      *value = 232448;
      return 0;
  }
  return 1;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = 1000;
  return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = &context_of_library;
  return note("retain %d\n", device);
}
EXPORT int cuCtxGetCurrent(void **context) {
  *context = current;
  return 0;
}
EXPORT int cuCtxSetCurrent(void *context) {
  current = context;
  return 0;
}
/* Everything below needs the library's context. */
static int outside(void) { return current == &context_of_library ? 0 : 201; }

EXPORT int cuMemAlloc_v2(uint64_t *pointer, size_t bytes) {
  if (outside()) return outside();
  if (bytes >= (size_t)1 << 40) return 2;
  *pointer = (uint64_t)(uintptr_t)host_memory(bytes);
  return note("alloc %zu\n", bytes);
}
EXPORT int cuMemFree_v2(uint64_t pointer) {
  free((void *)(uintptr_t)pointer);
  return outside();
}
EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  (void)stream;
  memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
  return outside();
}
EXPORT int cuMemsetD8Async(uint64_t pointer, unsigned char value, size_t bytes, void *stream) {
  memset((void *)(uintptr_t)pointer, value, bytes);
  note("set %zu bytes to %d on stream %p\n", bytes, value, stream);
  return outside();
}
EXPORT int cuStreamSynchronize(void *stream) {
  (void)stream;
  return outside();
}
EXPORT int cuStreamWaitEvent(void *stream, void *which, unsigned flags) {
  (void)which, (void)flags;
  return note("stream %p waits\n", stream);
}
EXPORT int cuStreamIsCapturing(void *stream, int *status) {
  (void)stream;
  *status = number("FAKE_CUDA_CAPTURING", 0);
  return 0;
}
EXPORT int cuEventCreate(void **made, unsigned flags) {
  *made = &event;
  return flags == 2 ? outside() : 1;
}
EXPORT int cuEventRecord(void *which, void *stream) {
  (void)which;
  return note("record on stream %p\n", stream);
}
EXPORT int cuEventDestroy_v2(void *which) {
  (void)which;
  return 0;
}
EXPORT int cuModuleLoadData(void **made, const void *image) {
  const char *refused = getenv("FAKE_CUDA_REFUSES");
  const char *kind = memcmp(image, "\177ELF", 4) == 0 ? "ELF" : strstr(image, ".version") != NULL ? "PTX" : "other";
  *made = &module;
  note("load %s\n", kind);
  if (refused != NULL && strstr(refused, kind) != NULL) return 222;
  return outside();
}
EXPORT int cuModuleGetFunction(void **made, void *from, const char *name) {
  *made = &function;
  return from == &module ? note("function %s\n", name) : 1;
}
EXPORT int cuFuncSetAttribute(void *which, int attribute, int value) {
  return which == &function && attribute == 8 ? note("shared limit %d\n", value) : 1;
}
typedef struct {
  int id;
  char padding[4], value[64];
} Attribute;
typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  const Attribute *attributes;
  unsigned count;
} Config;
EXPORT int cuLaunchKernelEx(const Config *c, void *which, void **parameters, void **extra) {
  if (which != &function || c->grid[2] != 1 || c->block[1] != 1 || c->block[2] != 1) return 1;
  if (extra != NULL || parameters[0] == NULL) return 1;
  if (c->count > 1 || (c->count == 1 && (c->attributes->id != 6 || c->attributes->value[0] != 1))) return 1;
  note("launch %u x %u of %u threads, %u bytes, on stream %p%s\n", c->grid[0], c->grid[1], c->block[0], c->shared,
       c->stream, c->count == 1 ? ", early" : "");
  return outside();
}
EXPORT int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *base, const uint64_t *dims,
                                  const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                                  int swizzle, int promotion, int fill) {
  (void)base, (void)dims, (void)steps, (void)interleave, (void)fill;
  static int maps;
  memset(map, 0, 128);
  if (++maps == number("FAKE_CUDA_REFUSES_MAP", 0)) return 1;
  if (((uintptr_t)map & 63) != 0 || type != 1 || rank != 5 || swizzle != 3 || promotion < 2) return 1;
  return note("map: rows %lu bytes apart, box of %u x %u, L2 by %d\n", (unsigned long)strides[0], box[0], box[1],
              promotion == 2 ? 128 : 256);
}
EXPORT int cuGetErrorName(int error, const char **text) {
  *text = error == 100 ? "CUDA_ERROR_NO_DEVICE" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
  return 0;
}
EXPORT int cuGetErrorString(int error, const char **text) {
  *text = error == 100 ? "no CUDA-capable device is detected" : error == 2 ? "out of memory" : "other";
  return 0;
}
