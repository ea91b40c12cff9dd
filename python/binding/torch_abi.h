// The part of torch's stable C ABI (torch/csrc/inductor/aoti_torch/c/shim.h, torch/csrc/stable/c/shim.h) that this
// binding uses, declared here so that no torch is needed to build it, and the arguments of operators on top of it.
// Everything is in torch 2.7 and later but what is marked; torch's guarantee starts with 2.9.
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

extern "C" {
using AOTITorchError = int32_t;  // 0: success
using StableIValue = uint64_t;
using AtenTensorHandle = struct AtenTensorOpaque*;
using TorchLibraryHandle = struct TorchLibraryOpaque*;
using StableKernel = void (*)(StableIValue* stack, uint64_t arguments, uint64_t results);

int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_dtype_uint8();
int32_t aoti_torch_dtype_int32();
int32_t aoti_torch_dtype_int64();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_float32();
AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle, void** data);
AOTITorchError aoti_torch_get_dim(AtenTensorHandle, int64_t* rank);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle, int64_t** sizes);      // borrowed
AOTITorchError aoti_torch_get_strides(AtenTensorHandle, int64_t** strides);  // borrowed
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle, int32_t* dtype);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle, int32_t* type);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle, int32_t* index);
AOTITorchError aoti_torch_empty_strided(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                        int32_t device_type, int32_t device_index, AtenTensorHandle* made);
AOTITorchError aoti_torch_copy_(AtenTensorHandle to, AtenTensorHandle from, int32_t non_blocking);
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle, AtenTensorHandle* same);
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle);
AOTITorchError aoti_torch_library_init_impl(const char* space, const char* key, const char* file, uint32_t line,
                                            TorchLibraryHandle*);
AOTITorchError aoti_torch_library_impl(TorchLibraryHandle, const char* name, StableKernel);
AOTITorchError aoti_torch_call_dispatcher(const char* name, const char* overload, StableIValue* stack);

// Null where the running torch is older.
#define FW_SINCE_2_10 __attribute__((weak))
#define FW_SINCE_2_13 __attribute__((weak))
FW_SINCE_2_10 AOTITorchError torch_get_num_threads(uint32_t* threads);
FW_SINCE_2_10 AOTITorchError torch_parallel_for(int64_t begin, int64_t end, int64_t grain,
                                                void (*some)(int64_t begin, int64_t end, void* context), void* context);
FW_SINCE_2_13 AOTITorchError torch_delete_stable_ivalue(StableIValue*);
}

namespace flashwave_torch {

class Tensor {  // owns a handle
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(other.release()) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }
  explicit operator bool() const { return handle_ != nullptr; }
  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

 private:
  AtenTensorHandle handle_ = nullptr;
};
using MaybeTensor = std::optional<Tensor>;

// One argument or result of an operator, as a word of its stack.
template <class T>
struct Box {  // numbers lie in the first bytes
  static T take(StableIValue word) {
    T value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  static StableIValue give(T value) {
    StableIValue word = 0;
    std::memcpy(&word, &value, sizeof value);
    return word;
  }
};

template <>
struct Box<Tensor> {
  static Tensor take(StableIValue word) { return Tensor(Box<AtenTensorHandle>::take(word)); }
  static StableIValue give(Tensor tensor) { return Box<AtenTensorHandle>::give(tensor.release()); }
};

template <class T>
struct Box<std::optional<T>> {  // a pointer to a word of the heap, or null
  static std::optional<T> take(StableIValue word) {
    auto* place = Box<StableIValue*>::take(word);
    if (place == nullptr) return std::nullopt;
    std::optional<T> value(Box<T>::take(*place));
    if (torch_delete_stable_ivalue != nullptr) {
      torch_delete_stable_ivalue(place);
    } else {
      delete place;
    }
    return value;
  }
  static StableIValue give(std::optional<T> value) {
    return Box<StableIValue*>::give(value ? new StableIValue(Box<T>::give(std::move(*value))) : nullptr);
  }
};

// Takes the arguments off a stack, in order. Every one must be taken: the stack owns them until then.
class Arguments {
 public:
  explicit Arguments(const StableIValue* stack) : at_(stack) {}
  template <class... Values>
  void into(Values&... values) {
    ((values = Box<Values>::take(*at_++)), ...);
  }

 private:
  const StableIValue* at_;
};

template <class... Values>
StableIValue* give(StableIValue* stack, Values... values) {
  ((*stack++ = Box<Values>::give(std::move(values))), ...);
  return stack;
}

}  // namespace flashwave_torch
