#include "hip/errors.h"

namespace emu::hip {
namespace {

thread_local hipError_t last_error = hipSuccess;
thread_local std::string last_error_text;

struct ErrorWords {
  hipError_t code;
  const char* name;
  const char* words;
};

#define EMU_ERROR(code, words) {code, #code, words}
constexpr ErrorWords kErrors[] = {
    EMU_ERROR(hipSuccess, "no error"),
    EMU_ERROR(hipErrorInvalidValue, "invalid argument"),
    EMU_ERROR(hipErrorOutOfMemory, "out of memory"),
    EMU_ERROR(hipErrorNotInitialized, "initialization error"),
    EMU_ERROR(hipErrorInvalidConfiguration, "invalid configuration argument"),
    EMU_ERROR(hipErrorInvalidDevicePointer, "invalid device pointer"),
    EMU_ERROR(hipErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    EMU_ERROR(hipErrorInvalidDeviceFunction, "invalid device function"),
    EMU_ERROR(hipErrorNoDevice, "no ROCm-capable device is detected"),
    EMU_ERROR(hipErrorInvalidDevice, "invalid device ordinal"),
    EMU_ERROR(hipErrorInvalidImage, "device kernel image is invalid"),
    EMU_ERROR(hipErrorInvalidContext, "invalid device context"),
    EMU_ERROR(hipErrorNoBinaryForGpu, "no kernel image is available for execution on the device"),
    EMU_ERROR(hipErrorFileNotFound, "file not found"),
    EMU_ERROR(hipErrorSharedObjectSymbolNotFound, "shared object symbol not found"),
    EMU_ERROR(hipErrorInvalidHandle, "invalid resource handle"),
    EMU_ERROR(hipErrorNotFound, "named symbol not found"),
    EMU_ERROR(hipErrorNotReady, "device not ready"),
    EMU_ERROR(hipErrorIllegalAddress, "an illegal memory access was encountered"),
    EMU_ERROR(hipErrorLaunchOutOfResources, "too many resources requested for launch"),
    EMU_ERROR(hipErrorLaunchFailure, "unspecified launch failure"),
    EMU_ERROR(hipErrorNotSupported, "operation not supported"),
    EMU_ERROR(hipErrorUnknown, "unknown error"),
};
#undef EMU_ERROR

const ErrorWords& words_of(hipError_t code) {
  for (const ErrorWords& entry : kErrors) {
    if (entry.code == code) return entry;
  }
  static constexpr ErrorWords kOther = {hipErrorUnknown, "hipErrorUnknown", "unknown error"};
  return kOther;
}

}  // namespace

hipError_t fail(hipError_t code, std::string text) {
  last_error = code;
  last_error_text = std::move(text);
  return code;
}

const char* last_text() { return last_error_text.c_str(); }

}  // namespace emu::hip

using namespace emu::hip;

const char* hipGetErrorString(hipError_t error) { return words_of(error).words; }

const char* hipGetErrorName(hipError_t error) { return words_of(error).name; }

hipError_t hipGetLastError() { return std::exchange(last_error, hipSuccess); }

hipError_t hipPeekAtLastError() { return last_error; }
