// flashwave for C++17 and later: the C ABI with exceptions, shapes and owned memory. Header-only; link flashwave.
//
//   fw::Device device = fw::Device::open("cpu");
//   fw::Attention problem(fw::Tensor::bshd(q, FW_F32, 1, 128, 8, 64), fw::Tensor::bshd(k, FW_F32, 1, 128, 2, 64),
//                         fw::Tensor::bshd(v, FW_F32, 1, 128, 2, 64), fw::Tensor::bshd(o, FW_F32, 1, 128, 8, 64));
//   problem.causal();
//   fw::forward(device, problem);
#ifndef FLASHWAVE_FLASHWAVE_HPP
#define FLASHWAVE_FLASHWAVE_HPP

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flashwave/flashwave.h"

namespace fw {

class Error : public std::runtime_error {
 public:
  Error(fw_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  fw_status status() const noexcept { return status_; }

 private:
  fw_status status_;
};

// Throws what the library reported for the calling thread.
inline void check(fw_status status) {
  if (status != FW_OK) throw Error(status, std::string(fw_status_name(status)) + ": " + fw_last_error());
}

inline std::size_t element_size(fw_dtype dtype) { return dtype == FW_F32 ? 4 : 2; }

// ------------------------------------------------------------------------------------------------------------ devices

class Device;

// Device memory that is freed with its owner.
class Buffer {
 public:
  Buffer() = default;
  Buffer(fw_device* device, std::size_t bytes) : device_(device), bytes_(bytes) {
    check(fw_device_alloc(device, bytes, &data_));
  }
  Buffer(Buffer&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_ != nullptr) static_cast<void>(fw_device_free(device_, data_));
  }

  void* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

  // Both return when the copy is done.
  void upload(const void* source, std::size_t bytes) const { copy(data_, source, bytes, FW_HOST_TO_DEVICE); }
  void download(void* destination, std::size_t bytes) const { copy(destination, data_, bytes, FW_DEVICE_TO_HOST); }

 private:
  void copy(void* destination, const void* source, std::size_t bytes, fw_copy_kind kind) const {
    if (bytes > bytes_) throw Error(FW_INVALID_ARGUMENT, "bytes is more than the buffer holds");
    if (bytes == 0) return;
    check(fw_device_copy(device_, destination, source, bytes, kind, nullptr));
    check(fw_device_synchronize(device_, nullptr));
  }

  fw_device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Copies refer to the same device; devices live as long as the process.
class Device {
 public:
  // "cpu", "cuda[:i]", "hip[:i]", "emu:gfxNNN" or "auto".
  static Device open(const std::string& name) {
    fw_device* handle = nullptr;
    check(fw_device_open(name.c_str(), &handle));
    return Device(handle);
  }
  static std::vector<Device> all() {
    std::vector<Device> devices;
    for (int32_t i = 0; i < fw_device_count(); ++i) {
      fw_device* handle = nullptr;
      check(fw_device_at(i, &handle));
      devices.push_back(Device(handle));
    }
    return devices;
  }
  explicit Device(fw_device* handle) : handle_(handle) {}

  fw_device* handle() const noexcept { return handle_; }
  fw_device_info info() const {
    fw_device_info info{};
    info.struct_size = sizeof info;
    check(fw_device_query(handle_, &info));
    return info;
  }
  Buffer alloc(std::size_t bytes) const { return Buffer(handle_, bytes); }
  void synchronize(void* stream = nullptr) const { check(fw_device_synchronize(handle_, stream)); }
  // Counters of the launches since the last call, as JSON; throws for devices that have none (fw_device_counters).
  std::string counters() const {
    std::size_t needed = 0;
    check(fw_device_counters(handle_, nullptr, 0, &needed));
    std::string text;
    while (needed > text.size()) {  // another thread may launch in between
      text.assign(needed, '\0');
      check(fw_device_counters(handle_, &text[0], text.size(), &needed));
    }
    text.resize(needed - 1);
    return text;
  }
  std::vector<std::string> kernels() const {
    std::vector<std::string> names;
    while (const char* name = fw_kernel_name(handle_, static_cast<int32_t>(names.size()))) names.emplace_back(name);
    return names;
  }

 private:
  fw_device* handle_;
};

// ------------------------------------------------------------------------------------------------------------ tensors

enum class Layout { BSHD, BHSD };

// A view of memory with the sizes that fw_tensor leaves to the problem.
struct Tensor {
  fw_tensor view{};
  int64_t batch = 0, rows = 0, heads = 0, dim = 0;

  static Tensor of(void* data, fw_dtype dtype, int64_t batch, int64_t rows, int64_t heads, int64_t dim, Layout layout) {
    Tensor t;
    t.batch = batch, t.rows = rows, t.heads = heads, t.dim = dim;
    t.view.data = data;
    t.view.dtype = dtype;
    t.view.stride[0] = rows * heads * dim;
    t.view.stride[1] = layout == Layout::BSHD ? heads * dim : dim;
    t.view.stride[2] = layout == Layout::BSHD ? dim : rows * dim;
    t.view.stride[3] = 1;
    return t;
  }
  static Tensor bshd(void* data, fw_dtype dtype, int64_t batch, int64_t rows, int64_t heads, int64_t dim) {
    return of(data, dtype, batch, rows, heads, dim, Layout::BSHD);
  }
  static Tensor bhsd(void* data, fw_dtype dtype, int64_t batch, int64_t heads, int64_t rows, int64_t dim) {
    return of(data, dtype, batch, rows, heads, dim, Layout::BHSD);
  }
  // Sequences one after the other (varlen): total rows, no batch.
  static Tensor packed(void* data, fw_dtype dtype, int64_t total, int64_t heads, int64_t dim) {
    return of(data, dtype, 1, total, heads, dim, Layout::BSHD);
  }
  // Heads [first, first + count) of this tensor: q, k and v of a packed qkv, say.
  Tensor slice_heads(int64_t first, int64_t count) const {
    Tensor t = *this;
    t.view.data = static_cast<char*>(view.data) +
                  static_cast<std::size_t>(first * view.stride[2]) * element_size(static_cast<fw_dtype>(view.dtype));
    t.heads = count;
    return t;
  }
};

// ------------------------------------------------------------------------------------------------------- the problem

// fw_attention with its defaults set; every field stays reachable.
struct Attention : fw_attention {
  Attention() { fw_attention_init(this, sizeof(fw_attention)); }

  // A dense batch: all sizes come from the tensors.
  Attention(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& o_) : Attention() {
    batch = q_.batch, seqlen_q = q_.rows, heads_q = q_.heads, dim_qk = q_.dim;
    seqlen_k = k_.rows, heads_k = k_.heads, dim_v = v_.dim;
    q = q_.view, k = k_.view, v = v_.view, o = o_.view;
    require(k_.dim == dim_qk, "k must have the head dimension of q");
    require(v_.rows == k_.rows && v_.heads == k_.heads, "v must have the rows and heads of k");
    require(o_.rows == q_.rows && o_.heads == q_.heads && o_.dim == dim_v, "o must have the shape of q, with v's dim");
    require(k_.batch == batch && v_.batch == batch && o_.batch == batch, "q, k, v and o must have one batch size");
  }

  // Packed tensors: count sequences, offsets (count + 1 each, device memory), and the longest lengths.
  Attention& varlen(int64_t count, const int32_t* offsets_q, const int32_t* offsets_k, int64_t longest_q,
                    int64_t longest_k) {
    total_q = seqlen_q, total_k = seqlen_k;
    batch = count, cu_seqlens_q = offsets_q, cu_seqlens_k = offsets_k;
    seqlen_q = longest_q, seqlen_k = longest_k;
    return *this;
  }
  Attention& causal(bool on = true) {
    flags = on ? flags | FW_CAUSAL : flags & ~uint32_t{FW_CAUSAL};
    return *this;
  }
  Attention& deterministic(bool on = true) {
    flags = on ? flags | FW_DETERMINISTIC : flags & ~uint32_t{FW_DETERMINISTIC};
    return *this;
  }
  Attention& fast_rounding(bool on = true) {
    flags = on ? flags | FW_FAST_ROUNDING : flags & ~uint32_t{FW_FAST_ROUNDING};
    return *this;
  }
  Attention& fill_unused(bool on = true) {
    flags = on ? flags | FW_FILL_UNUSED : flags & ~uint32_t{FW_FILL_UNUSED};
    return *this;
  }
  Attention& window(int64_t left, int64_t right) {
    window_left = left, window_right = right;
    return *this;
  }
  Attention& scale(float value) {
    softmax_scale = value;
    return *this;
  }
  Attention& cap(float value) {
    softcap = value;
    return *this;
  }
  Attention& dropout(float p, uint64_t seed, uint64_t offset = 0) {
    dropout_p = p, dropout_seed = seed, dropout_offset = offset;
    return *this;
  }
  // Log-sum-exp of each row: (batch, heads, rows) floats, rows contiguous; packed problems (heads, total).
  Attention& with_lse(float* data) {
    const int64_t rows = cu_seqlens_q != nullptr ? total_q : seqlen_q;
    lse = fw_tensor{data, {heads_q * rows, 1, rows, 1}, FW_F32, 0};
    return *this;
  }

 private:
  static void require(bool holds, const char* rule) {
    if (!holds) throw Error(FW_INVALID_ARGUMENT, rule);
  }
};

struct Gradients : fw_gradients {
  Gradients() { fw_gradients_init(this, sizeof(fw_gradients)); }
  Gradients(const Tensor& d_o_, const Tensor& dq_, const Tensor& dk_, const Tensor& dv_) : Gradients() {
    d_o = d_o_.view, dq = dq_.view, dk = dk_.view, dv = dv_.view;
  }
};

// Two results of the same queries, of which the first takes in the second. The lse: (batch, rows, heads, 1).
struct Merging : fw_merging {
  Merging() { fw_merging_init(this, sizeof(fw_merging)); }
  Merging(const Tensor& o_, const Tensor& lse_, const Tensor& o_part_, const Tensor& lse_part_) : Merging() {
    batch = o_.batch, seqlen = o_.rows, heads = o_.heads, dim = o_.dim;
    o = o_.view, lse = lse_.view, o_part = o_part_.view, lse_part = lse_part_.view;
  }
};

// Rows of one tensor turned into another of its shape, or in place if it is the same. cos, sin: (positions, pairs)
// floats.
struct RotaryEmbedding : fw_rotary_embedding {
  RotaryEmbedding() { fw_rotary_embedding_init(this, sizeof(fw_rotary_embedding)); }
  RotaryEmbedding(const Tensor& x_, const Tensor& out_, const float* cos_, const float* sin_, int64_t positions,
                  int64_t pairs)
      : RotaryEmbedding() {
    batch = x_.batch, seqlen = x_.rows, heads = x_.heads, dim = x_.dim;
    x = x_.view, out = out_.view;
    cos = fw_tensor{const_cast<float*>(cos_), {pairs, 1, 0, 0}, FW_F32, 0};
    sin = fw_tensor{const_cast<float*>(sin_), {pairs, 1, 0, 0}, FW_F32, 0};
    rotary_seqlen = positions, rotary_dim = 2 * pairs;
    if (out_.batch != batch || out_.rows != seqlen || out_.heads != heads || out_.dim != dim) {
      throw Error(FW_INVALID_ARGUMENT, "out must have the shape of x");
    }
  }
};

struct Exec : fw_exec {
  Exec() { fw_exec_init(this, sizeof(fw_exec)); }
};

// -------------------------------------------------------------------------------------------------------------- calls

inline void forward(const Device& device, const fw_attention& problem, const fw_exec* exec = nullptr) {
  check(fw_forward(device.handle(), &problem, exec));
}

inline void backward(const Device& device, const fw_attention& problem, const fw_gradients& gradients,
                     const fw_exec* exec = nullptr) {
  check(fw_backward(device.handle(), &problem, &gradients, exec));
}

inline void merge(const Device& device, const fw_merging& merging, const fw_exec* exec = nullptr) {
  check(fw_merge(device.handle(), &merging, exec));
}

inline void rotary(const Device& device, const fw_rotary_embedding& embedding, const fw_exec* exec = nullptr) {
  check(fw_rotary(device.handle(), &embedding, exec));
}

inline std::size_t workspace_size(const Device& device, const fw_attention& problem,
                                  const fw_gradients* gradients = nullptr, const fw_exec* exec = nullptr) {
  std::size_t bytes = 0;
  check(fw_workspace_size(device.handle(), &problem, gradients, exec, &bytes));
  return bytes;
}

inline std::string explain(const Device& device, const fw_attention& problem, const fw_gradients* gradients = nullptr,
                           fw_format format = FW_TEXT, const fw_exec* exec = nullptr) {
  std::size_t needed = 0;
  check(fw_explain(device.handle(), &problem, gradients, exec, format, nullptr, 0, &needed));
  std::string text(needed, '\0');
  check(fw_explain(device.handle(), &problem, gradients, exec, format, &text[0], text.size(), &needed));
  text.resize(needed - 1);
  return text;
}

inline fw_cost cost(const Device& device, const fw_attention& problem, const fw_gradients* gradients = nullptr) {
  fw_cost result{};
  result.struct_size = sizeof result;
  check(fw_problem_cost(device.handle(), &problem, gradients, &result));
  return result;
}

}  // namespace fw
#endif
