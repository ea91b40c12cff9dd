#include "tests/reference/harness.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>

namespace oracle {
namespace {

abi::DType storage(Type type) { return type == Type::kF32 ? abi::kF32 : type == Type::kF16 ? abi::kF16 : abi::kBF16; }

// Inputs with every position not marked set to NaN.
std::vector<Real> only(const std::vector<Real>& numbers, const std::vector<char>& marked) {
  std::vector<Real> out(numbers.size(), std::numeric_limits<Real>::quiet_NaN());
  for (size_t x = 0; x < out.size(); ++x) {
    if (marked[x]) out[x] = numbers[x];
  }
  return out;
}

void run_threads(void*, int32_t workers, void (*job)(void* arg, int32_t worker), void* arg) {
  std::vector<std::thread> threads;
  for (int32_t w = 1; w < workers; ++w) threads.emplace_back(job, arg, w);
  job(arg, 0);
  for (std::thread& t : threads) t.join();
}

}  // namespace

Buffer::Buffer(size_t size, abi::DType dtype) : dtype_(dtype), bytes_(size * (dtype == abi::kF32 ? 4 : 2)) {
  set(std::vector<Real>(size, std::numeric_limits<Real>::quiet_NaN()));
}

// Through the compiler's own conversions, not those of kernels/common/dtype.h; the numbers are representable.
void Buffer::set(const std::vector<Real>& numbers) {
  for (size_t x = 0; x < numbers.size(); ++x) {
    const float f = static_cast<float>(numbers[x]);
    if (dtype_ == abi::kF32) {
      std::memcpy(&bytes_[4 * x], &f, 4);
    } else {
      const uint16_t bits = dtype_ == abi::kF16 ? std::bit_cast<uint16_t>(static_cast<_Float16>(f))
                                                : static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16);
      std::memcpy(&bytes_[2 * x], &bits, 2);
    }
  }
}

std::vector<Real> Buffer::get() const {
  std::vector<Real> numbers(bytes_.size() / (dtype_ == abi::kF32 ? 4 : 2));
  for (size_t x = 0; x < numbers.size(); ++x) {
    float f;
    uint16_t bits;
    if (dtype_ == abi::kF32) {
      std::memcpy(&f, &bytes_[4 * x], 4);
    } else {
      std::memcpy(&bits, &bytes_[2 * x], 2);
      f = dtype_ == abi::kF16 ? static_cast<float>(std::bit_cast<_Float16>(bits))
                              : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
    }
    numbers[x] = f;
  }
  return numbers;
}

abi::Tensor Problem::tensor(const std::string& name, const Array& layout, abi::DType dtype) {
  if (!layout.present()) return {};
  Buffer& buffer = buffers_[name] = Buffer(layout.at.size(), dtype);
  abi::Tensor t{};
  t.data = buffer.data();
  for (int x = 0; x < 4; ++x) t.stride[x] = layout.stride[x];
  t.dtype = dtype;
  return t;
}

Problem::Problem(const Case& c) : case_(c) {
  const abi::DType type = storage(c.type);
  const Touched touched = forward(c).touched;
  abi::Params& p = params;
  const auto input = [&](const char* name, const Array& a, abi::DType dtype,
                         const std::vector<char>* marked = nullptr) {
    const abi::Tensor t = tensor(name, a, dtype);
    if (t.data) buffers_[name].set(marked ? only(a.at, *marked) : a.at);
    return t;
  };
  p.q = input("q", case_.q, type, &touched.q);
  p.k = input("k", case_.k, type, &touched.k);
  p.v = input("v", case_.v, type, &touched.v);
  p.bias = input("bias", case_.bias, c.bias_f32 ? abi::kF32 : type, &touched.bias);
  p.d_o = input("d_o", case_.d_o, type);
  p.d_lse = input("d_lse", case_.d_lse, abi::kF32);
  p.k_new = input("k_new", case_.k_new, type);
  p.v_new = input("v_new", case_.v_new, type);
  p.rotary_cos = input("cos", case_.cos, c.rotary_f32 ? abi::kF32 : type);
  p.rotary_sin = input("sin", case_.sin, c.rotary_f32 ? abi::kF32 : type);
  p.q.most = p.k.most = INT32_MAX;  // lengths and places of the cases are right

  Array probs;
  probs.stride = {c.heads_q * c.seqlen_q * c.seqlen_k, c.seqlen_q * c.seqlen_k, c.seqlen_k, 1};
  probs.at.resize(c.batch * c.heads_q * c.seqlen_q * c.seqlen_k);
  p.o = tensor("o", case_.o, type);
  p.lse = tensor("lse", case_.lse, abi::kF32);
  p.probs = tensor("probs", probs, abi::kF32);
  p.q_rotated = tensor("q_rotated", case_.q, type);
  p.q_rotated.most = p.q.most;
  p.dq = tensor("dq", case_.q, type);
  p.dk = tensor("dk", case_.k, type);
  p.dv = tensor("dv", case_.v, type);
  p.d_bias = tensor("d_bias", case_.bias, c.bias_f32 ? abi::kF32 : type);
  const auto numbers = [&](const char* name, const std::vector<Real>& x) -> float* {
    if (x.empty()) return nullptr;
    Buffer& b = buffers_[name] = Buffer(x.size(), abi::kF32);
    b.set(x);
    return static_cast<float*>(b.data());
  };
  p.sinks = numbers("sinks", c.sinks);
  p.alibi_slopes = numbers("slopes", c.slopes);
  const Real nan = std::numeric_limits<Real>::quiet_NaN();
  p.d_sinks = numbers("d_sinks", std::vector<Real>(c.sinks.size(), nan));
  p.d_slopes = numbers("d_slopes", std::vector<Real>(c.slopes.size(), nan));

  const auto indices = [](const std::vector<int32_t>& x) { return x.empty() ? nullptr : x.data(); };
  p.cu_seqlens_q = indices(case_.cu_seqlens_q);
  p.cu_seqlens_k = indices(case_.cu_seqlens_k);
  p.seqused_k = indices(case_.seqused_k);
  p.leftpad_k = indices(case_.leftpad_k);
  p.cache_batch_idx = indices(case_.cache_batch_idx);
  p.block_table = indices(case_.block_table);
  p.block_table_stride = c.block_table_stride;
  p.alibi_batch_stride = c.slopes_batch_stride;
  p.page_size = c.page_size;
  p.seqlen_new = c.seqlen_new;
  p.window_left = c.window_left < 0 ? abi::kNoWindow : c.window_left;
  p.window_right = c.causal ? 0 : c.window_right < 0 ? abi::kNoWindow : c.window_right;
  p.rotary_dim = c.rotary_dim;
  p.rotary_interleaved = c.rotary_interleaved;
  p.rotary_per_row = c.rotary_per_row();
  p.batch = static_cast<int32_t>(c.batch);
  p.heads_q = static_cast<int32_t>(c.heads_q);
  p.heads_k = static_cast<int32_t>(c.heads_k);
  p.seqlen_q = static_cast<int32_t>(c.seqlen_q);
  p.seqlen_k = static_cast<int32_t>(c.seqlen_k);
  p.dim_qk = static_cast<int32_t>(c.dim_qk);
  p.dim_v = static_cast<int32_t>(c.dim_v);
  p.softmax_scale = c.scale;
  p.softcap = c.softcap;
  p.dropout_p = c.dropout_p;
  p.dropout_threshold = static_cast<uint32_t>(std::lround(static_cast<double>(c.dropout_p) * 65536));
  p.dropout_seed = c.seed;
  p.dropout_offset = c.offset;
  p.positions = c.placed;
  p.position_shift = c.position_q - c.position_k;
  p.position_q = static_cast<uint32_t>(c.position_q), p.position_k = static_cast<uint32_t>(c.position_k);
  p.dropout_first = static_cast<uint32_t>(c.dropout_first);
  p.dropout_heads = static_cast<uint32_t>(c.dropout_heads > 0 ? c.dropout_heads : c.heads_q);
}

void Problem::run(abi::CpuKernel kernel, int32_t threads) const {
  abi::CpuLaunch launch{};
  launch.workers = threads;
  launch.run = run_threads;
  kernel(params, launch);
}

void Problem::append_then(abi::CpuKernel kernel) {
  run(flashwave::append_kv);
  if (case_.cos.present()) params.q = params.q_rotated;
  run(kernel);
}

double worst(const std::vector<Real>& expected, const std::vector<Real>& actual, double relative, double absolute) {
  double result = expected.size() == actual.size() ? 0 : INFINITY;
  for (size_t x = 0; x < std::min(expected.size(), actual.size()); ++x) {
    const Real e = expected[x], a = actual[x];
    if (std::isnan(e) && std::isnan(a)) continue;
    if (!std::isfinite(e) || !std::isfinite(a)) {
      if (e != a) result = INFINITY;
      continue;
    }
    result = std::fmax(result, static_cast<double>(std::fabs(e - a) / (relative * std::fabs(e) + absolute)));
  }
  return result;
}

double half_ulp(Type type) { return type == Type::kF32 ? 0x1p-24 : type == Type::kF16 ? 0x1p-11 : 0x1p-8; }

}  // namespace oracle
