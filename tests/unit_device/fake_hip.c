/* A HIP runtime whose answers the environment decides, for the messages about runtimes that are of no use:
 * FAKE_HIP_VERSION (of hipRuntimeGetVersion), FAKE_HIP_INIT (the error of hipInit), FAKE_HIP_COUNT (GPUs). */
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text != NULL ? atoi(text) : otherwise;
}

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
  (void)device;
  strcpy(properties + 396, "gfx90a:sramecc+:xnack-");
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
EXPORT const char *hipGetErrorName(int error) { return error == 100 ? "hipErrorNoDevice" : "hipErrorOther"; }
EXPORT const char *hipGetErrorString(int error) { return error == 100 ? "no device" : "other"; }

#define REFUSES(name) \
  EXPORT int name(void) { return 999; }
REFUSES(hipGetDevice)
REFUSES(hipSetDevice)
REFUSES(hipMalloc)
REFUSES(hipFree)
REFUSES(hipMemcpyAsync)
REFUSES(hipStreamSynchronize)
REFUSES(hipStreamWaitEvent)
REFUSES(hipEventCreateWithFlags)
REFUSES(hipEventRecord)
REFUSES(hipEventDestroy)
REFUSES(hipModuleLoadData)
REFUSES(hipModuleGetFunction)
REFUSES(hipModuleLaunchKernel)
