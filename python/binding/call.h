// What every operator does: look at tensors, make outputs, find the device, its stream, memory and threads.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "flashwave/flashwave.h"
#include "torch_abi.h"

namespace flashwave_torch {

// The functions of the library that Python has loaded: whichever file that is, this binding calls the same one.
struct Library {
  decltype(&fw_attention_init) attention_init;
  decltype(&fw_gradients_init) gradients_init;
  decltype(&fw_exec_init) exec_init;
  decltype(&fw_forward) forward;
  decltype(&fw_backward) backward;
  decltype(&fw_rotary_embedding_init) rotary_init;
  decltype(&fw_rotary) rotary;
  decltype(&fw_device_open) device_open;
  decltype(&fw_last_error) last_error;
  // torch's threads, and how many of them, where torch (before 2.10) does not say so itself; may be null.
  const fw_executor* openmp;
  int (*openmp_threads)();
};
extern Library library;
bool load(void* handle);  // of dlopen; false if a function is missing

// The status travels in the text: Python makes InvalidArgument, Unsupported, ... of it.
[[noreturn]] void fail(int status, const std::string& text);
void torch_check(AOTITorchError error);

void* data_of(const Tensor& tensor);

// What a call needs of a tensor, by C calls of which none goes through the dispatcher.
struct View {
  void* data = nullptr;
  int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
  int32_t dtype = 0, device_type = 0, device_index = 0;

  explicit View(const Tensor& tensor);
  bool on_cpu() const { return device_type == aoti_torch_device_type_cpu(); }
  bool beside(const View& other) const {
    return device_type == other.device_type && device_index == other.device_index;
  }
  int64_t size(int64_t from_end) const { return sizes[rank - from_end]; }
  bool rows_are_dense() const { return rank == 0 || size(1) <= 1 || strides[rank - 1] == 1; }
  bool is_dense() const;  // contiguous
  bool has_elements() const;
};

int32_t library_dtype(int32_t dtype);  // FW_DTYPE_NONE for those it has no kernels for

Tensor empty(const int64_t* sizes, int64_t rank, int32_t dtype, const View& at);
Tensor empty_like(const View& like);                  // contiguous
Tensor like(const Tensor& tensor, const View& view);  // of its strides, as torch.empty_like makes it
Tensor absent(const View& at, int32_t dtype);         // stands for a result that is not wanted: no elements
Tensor dense_copy(const Tensor& tensor);

// Whether a call may not go straight to the library: a backend or debug output is asked for somewhere.
bool steered(bool on_cpu);

// Device, stream, threads and memory of one call.
class Run {
 public:
  explicit Run(const View& q, bool slow_path = false);
  fw_device* device() const { return device_; }  // nullptr: the library has none for this tensor
  const fw_exec* exec() const { return &exec_; }

 private:
  static void* allocate(void* self, size_t bytes);

  const View& q_;
  fw_device* device_;
  fw_exec exec_;
  MaybeTensor workspace_;  // of torch's allocator: freed in the order of the stream, and a captured graph's own
};

}  // namespace flashwave_torch

// Backends asked for by `flashwave.backend()` at this moment; Python counts here.
extern "C" __attribute__((visibility("default"))) int32_t flashwave_torch_steering;
