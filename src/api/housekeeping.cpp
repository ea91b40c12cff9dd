// Versions, names, the last error, and the defaults of the structs.
#include <cstring>
#include <string>

#include "api/defaults.h"
#include "api/guard.h"
#include "api/structs.h"

#define FW_TEXT_OF(x) #x
#define FW_VERSION_TEXT(major, minor, patch) FW_TEXT_OF(major) "." FW_TEXT_OF(minor) "." FW_TEXT_OF(patch)

namespace flashwave::api {
namespace {

thread_local std::string last_error;
thread_local const char* last_error_text = "";  // last_error's, or a literal where there was no memory for it

template <class T>
void initialise(const T& defaults, size_t struct_size, T* caller) {
  if (caller != nullptr && struct_size >= sizeof(uint32_t)) write_struct(defaults, struct_size, caller);
}

// All zeros but for its size.
template <class T>
T empty_struct() {
  T result{};
  result.struct_size = sizeof result;
  return result;
}

}  // namespace

fw_status report(const Status& status) noexcept {
  return status.ok() ? FW_OK : report(status.code, status.message.c_str());
}

fw_status report(fw_status code, const char* message) noexcept {
  try {
    last_error = message;
    last_error_text = last_error.c_str();
  } catch (...) {
    last_error_text = "no memory for the error message";
  }
  return code;
}

fw_attention default_attention() {
  fw_attention attention = empty_struct<fw_attention>();
  attention.window_left = attention.window_right = -1;
  attention.softmax_scale = FW_SCALE_AUTO;
  return attention;
}

fw_gradients default_gradients() { return empty_struct<fw_gradients>(); }
fw_rotary_embedding default_rotary() { return empty_struct<fw_rotary_embedding>(); }
fw_merging default_merging() { return empty_struct<fw_merging>(); }
fw_exec default_exec() { return empty_struct<fw_exec>(); }

}  // namespace flashwave::api

using namespace flashwave;

void fw_attention_init(fw_attention* attention, size_t struct_size) {
  api::initialise(api::default_attention(), struct_size, attention);
}

void fw_gradients_init(fw_gradients* gradients, size_t struct_size) {
  api::initialise(api::default_gradients(), struct_size, gradients);
}

void fw_rotary_embedding_init(fw_rotary_embedding* rotary, size_t struct_size) {
  api::initialise(api::default_rotary(), struct_size, rotary);
}

void fw_merging_init(fw_merging* merging, size_t struct_size) {
  api::initialise(api::default_merging(), struct_size, merging);
}

void fw_exec_init(fw_exec* exec, size_t struct_size) { api::initialise(api::default_exec(), struct_size, exec); }

uint32_t fw_version(void) { return FW_VERSION_MAJOR << 16 | FW_VERSION_MINOR << 8 | FW_VERSION_PATCH; }

const char* fw_version_string(void) { return FW_VERSION_TEXT(FW_VERSION_MAJOR, FW_VERSION_MINOR, FW_VERSION_PATCH); }

const char* fw_status_name(fw_status status) {
  switch (status) {
    case FW_OK:
      return "FW_OK";
    case FW_INVALID_ARGUMENT:
      return "FW_INVALID_ARGUMENT";
    case FW_UNSUPPORTED:
      return "FW_UNSUPPORTED";
    case FW_NO_DEVICE:
      return "FW_NO_DEVICE";
    case FW_OUT_OF_MEMORY:
      return "FW_OUT_OF_MEMORY";
    case FW_WORKSPACE_TOO_SMALL:
      return "FW_WORKSPACE_TOO_SMALL";
    case FW_DEVICE_ERROR:
      return "FW_DEVICE_ERROR";
    case FW_INTERNAL_ERROR:
      return "FW_INTERNAL_ERROR";
  }
  return "unknown fw_status";
}

const char* fw_last_error(void) { return api::last_error_text; }
