#include "call.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string_view>

int32_t flashwave_torch_steering = 0;

namespace flashwave_torch {

Library library{};

namespace {

template <class Function>
bool find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  return *function != nullptr;
}

void* loaded(const char* name) { return dlopen(name, RTLD_LAZY | RTLD_NOLOAD); }

bool is_rocm() {
  static const bool known = loaded("libtorch_hip.so") != nullptr;
  return known;
}

// torch's current stream. The function lives in the GPU half of torch, which a torch for the CPU does not have.
using CurrentStream = AOTITorchError (*)(int32_t device, void** stream);
CurrentStream current_stream() {
  static const auto function = [] {
    void* half = loaded(is_rocm() ? "libtorch_hip.so" : "libtorch_cuda.so");
    return reinterpret_cast<CurrentStream>(half == nullptr ? nullptr
                                                           : dlsym(half, "aoti_torch_get_current_cuda_stream"));
  }();
  return function;
}

// The library's handles live as long as the process; a device without one is asked for again.
fw_device* device_of(const View& view) {
  static std::array<std::atomic<fw_device*>, 65> known{};
  const size_t slot = view.on_cpu() ? 0 : static_cast<size_t>(view.device_index) + 1;
  if (slot >= known.size()) return nullptr;
  fw_device* found = known[slot].load(std::memory_order_acquire);
  if (found != nullptr) return found;
  if (!view.on_cpu() && current_stream() == nullptr) return nullptr;
  const std::string name = view.on_cpu() ? "cpu" : (is_rocm() ? "hip:" : "cuda:") + std::to_string(view.device_index);
  if (library.device_open(name.c_str(), &found) != FW_OK) return nullptr;
  known[slot].store(found, std::memory_order_release);
  return found;
}

// torch's own threads, whatever runtime they are of. Workers of a call need not run at the same time.
void run_on_torch(void*, int32_t workers, void (*job)(void*, int32_t), void* arg) {
  std::pair jobs{job, arg};
  const auto some = [](int64_t begin, int64_t end, void* context) {
    const auto& [run, with] = *static_cast<decltype(jobs)*>(context);
    while (begin < end) run(with, static_cast<int32_t>(begin++));
  };
  torch_check(torch_parallel_for(0, workers, 1, some, &jobs));
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0';
}

// Whether any variable that steered() asks for may be set: one look at the environment in place of one for each.
bool environment_steers() {
  if (environ == nullptr) return false;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if ((*variable)[0] != 'F') continue;
    const std::string_view text(*variable);
    if (text.starts_with("FLASH_ATTENTION_") || text.starts_with("FLASHWAVE_BACKEND=")) return true;
  }
  return false;
}

}  // namespace

bool load(void* handle) {
  return find(handle, "fw_attention_init", &library.attention_init) &&
         find(handle, "fw_gradients_init", &library.gradients_init) &&
         find(handle, "fw_exec_init", &library.exec_init) && find(handle, "fw_forward", &library.forward) &&
         find(handle, "fw_backward", &library.backward) &&
         find(handle, "fw_rotary_embedding_init", &library.rotary_init) && find(handle, "fw_rotary", &library.rotary) &&
         find(handle, "fw_device_open", &library.device_open) && find(handle, "fw_last_error", &library.last_error);
}

void fail(int status, const std::string& text) {
  throw std::runtime_error("flashwave[" + std::to_string(status) + "]: " + text);
}

void torch_check(AOTITorchError error) {
  if (error != 0) fail(FW_INTERNAL_ERROR, "a function of torch's C ABI failed");
}

void* data_of(const Tensor& tensor) {
  void* data = nullptr;
  torch_check(aoti_torch_get_data_ptr(tensor.get(), &data));
  return data;
}

View::View(const Tensor& tensor) {
  AtenTensorHandle handle = tensor.get();
  // Others than strided tensors have keys of their own, under which torch finds the operators in Python.
  torch_check(aoti_torch_get_data_ptr(handle, &data) | aoti_torch_get_dim(handle, &rank) |
              aoti_torch_get_sizes(handle, &sizes) | aoti_torch_get_strides(handle, &strides) |
              aoti_torch_get_dtype(handle, &dtype) | aoti_torch_get_device_type(handle, &device_type) |
              aoti_torch_get_device_index(handle, &device_index));
}

bool View::is_dense() const {
  int64_t step = 1;
  for (int64_t i = rank - 1; i >= 0; --i) {
    if (sizes[i] != 1 && strides[i] != step) return !has_elements();
    step *= sizes[i];
  }
  return true;
}

bool View::has_elements() const {
  for (int64_t i = 0; i < rank; ++i) {
    if (sizes[i] == 0) return false;
  }
  return true;
}

int32_t library_dtype(int32_t dtype) {
  if (dtype == aoti_torch_dtype_float16()) return FW_F16;
  if (dtype == aoti_torch_dtype_bfloat16()) return FW_BF16;
  return dtype == aoti_torch_dtype_float32() ? FW_F32 : FW_DTYPE_NONE;
}

Tensor empty(const int64_t* sizes, int64_t rank, int32_t dtype, const View& at) {
  std::array<int64_t, 4> strides{};
  for (int64_t i = rank - 1, step = 1; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = step;
    step *= sizes[i] > 1 ? sizes[i] : 1;
  }
  AtenTensorHandle made = nullptr;
  torch_check(aoti_torch_empty_strided(rank, sizes, strides.data(), dtype, at.device_type, at.device_index, &made));
  return Tensor(made);
}

Tensor empty_like(const View& like) { return empty(like.sizes, like.rank, like.dtype, like); }

Tensor like(const Tensor& tensor, const View& view) {
  if (view.is_dense() && view.rank <= 4) return empty_like(view);
  AtenTensorHandle same = nullptr;
  torch_check(aoti_torch_new_tensor_handle(tensor.get(), &same));
  StableIValue stack[6] = {Box<Tensor>::give(Tensor(same))};  // and no options
  torch_check(aoti_torch_call_dispatcher("aten::empty_like", "", stack));
  return Box<Tensor>::take(stack[0]);
}

Tensor absent(const View& at, int32_t dtype) {
  const int64_t none = 0;
  return empty(&none, 1, dtype, at);
}

Tensor dense_copy(const Tensor& tensor) {
  Tensor copy = empty_like(View(tensor));
  torch_check(aoti_torch_copy_(copy.get(), tensor.get(), 0));
  return copy;
}

bool steered(bool on_cpu) {
  if (std::atomic_ref(flashwave_torch_steering).load(std::memory_order_relaxed) != 0) return true;
  if (!environment_steers()) return false;
  if (is_set("FLASHWAVE_BACKEND") || is_set("FLASH_ATTENTION_DEBUG")) return true;
  return !on_cpu && is_set("FLASH_ATTENTION_TRITON_AMD_ENABLE");
}

Run::Run(const View& q, bool slow_path) : q_(q), device_(device_of(q)) {
  library.exec_init(&exec_, sizeof exec_);
  if (device_ == nullptr) return;
  if (q.on_cpu()) {
    static const fw_executor threads{nullptr, run_on_torch};
    uint32_t most = 0;  // the library's own choice where torch cannot be asked
    if (torch_get_num_threads != nullptr) {
      torch_check(torch_get_num_threads(&most));
    } else if (library.openmp_threads != nullptr) {
      most = static_cast<uint32_t>(library.openmp_threads());
    }
    exec_.num_threads = static_cast<int32_t>(most);
    exec_.executor = torch_parallel_for != nullptr ? &threads : library.openmp;
    return;
  }
  torch_check(current_stream()(q.device_index, &exec_.stream));
  exec_.allocate = allocate, exec_.allocate_context = this;
  if (!slow_path) exec_.flags = FW_NO_SLOW_PATH;  // other backends may be faster than that: Python decides
}

void* Run::allocate(void* self, size_t bytes) {
  auto* run = static_cast<Run*>(self);
  const auto size = static_cast<int64_t>(bytes);
  AtenTensorHandle made = nullptr;
  const int64_t step = 1;
  if (aoti_torch_empty_strided(1, &size, &step, aoti_torch_dtype_uint8(), run->q_.device_type, run->q_.device_index,
                               &made) != 0) {
    return nullptr;
  }
  run->workspace_.emplace(made);
  return View(*run->workspace_).data;
}

}  // namespace flashwave_torch
