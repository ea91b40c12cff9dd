#include "standard_attention.h"

#include <bit>
#include <chrono>
#include <cmath>
#include <thread>

#include "sgemm.h"

namespace flashwave::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLanes = 16;  // independent partial results, so that sums and maxima vectorise

#define FW_INLINE inline __attribute__((always_inline))

// 2^x by rounding to the nearest integer, a polynomial on [-1/2, 1/2], and adding to the exponent: plain arithmetic
// that compilers vectorise. Relative error below 3e-7.
FW_INLINE float exp2_poly(float x) {
  x = x < -126.0f ? -126.0f : x;
  const float rounded = x + 12582912.0f;  // 1.5 * 2^23: the fraction falls off
  const float f = x - (rounded - 12582912.0f);
  float p = 0.00133335581f;
  p = p * f + 0.00961812911f;
  p = p * f + 0.0555041087f;
  p = p * f + 0.240226507f;
  p = p * f + 0.693147181f;
  p = p * f + 1.0f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(rounded) << 23));
}

FW_INLINE void softmax_body(float* row, int64_t count) {
  constexpr float kLog2E = 1.44269504f;
  float lane[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) lane[l] = row[0];
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lane[l] = row[i + l] > lane[l] ? row[i + l] : lane[l];
  }
  for (; i < count; ++i) lane[0] = row[i] > lane[0] ? row[i] : lane[0];
  float largest = lane[0];
  for (int64_t l = 1; l < kLanes; ++l) largest = lane[l] > largest ? lane[l] : largest;

  for (int64_t l = 0; l < kLanes; ++l) lane[l] = 0;
  for (i = 0; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      row[i + l] = exp2_poly((row[i + l] - largest) * kLog2E);
      lane[l] += row[i + l];
    }
  }
  for (; i < count; ++i) {
    row[i] = exp2_poly((row[i] - largest) * kLog2E);
    lane[0] += row[i];
  }
  float sum = 0;
  for (int64_t l = 0; l < kLanes; ++l) sum += lane[l];
  const float inverse = 1.0f / sum;
  for (i = 0; i < count; ++i) row[i] *= inverse;
}

// ds = scale * p * (dp - delta), in place of dp.
FW_INLINE void score_gradient_body(const float* p, float* dp, int64_t count, float delta, float scale) {
  for (int64_t i = 0; i < count; ++i) dp[i] = scale * p[i] * (dp[i] - delta);
}

// The same loops for the instruction sets that matter, so that the comparison is not held back by old ones.
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void softmax_avx2(float* row, int64_t count) { softmax_body(row, count); }
__attribute__((target("avx512f,avx512dq,fma"))) void softmax_avx512(float* row, int64_t count) {
  softmax_body(row, count);
}
__attribute__((target("avx2,fma"))) void score_gradient_avx2(const float* p, float* dp, int64_t n, float delta,
                                                             float scale) {
  score_gradient_body(p, dp, n, delta, scale);
}
#endif

void softmax_visible(float* row, int64_t count) {
#if defined(__x86_64__)
  static const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx512) return softmax_avx512(row, count);
  if (avx2) return softmax_avx2(row, count);
#endif
  softmax_body(row, count);
}

void score_gradient(const float* p, float* dp, int64_t count, float delta, float scale) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2) return score_gradient_avx2(p, dp, count, delta, scale);
#endif
  score_gradient_body(p, dp, count, delta, scale);
}

// A (batch, seq, head, dim) view copied to (batch, head, seq, dim).
std::vector<float> by_head(const Geometry& g, const HostValues& values, TensorId id) {
  const View& v = g.view[id];
  const std::vector<float>& buffer = values.buffer[v.buffer];
  std::vector<float> out;
  out.reserve(size_t(v.count()));
  for (int64_t b = 0; b < v.shape[0]; ++b) {
    for (int64_t h = 0; h < v.shape[2]; ++h) {
      for (int64_t s = 0; s < v.shape[1]; ++s) {
        const float* row = &buffer[size_t(v.offset + b * v.stride[0] + s * v.stride[1] + h * v.stride[2])];
        out.insert(out.end(), row, row + v.shape[3]);
      }
    }
  }
  return out;
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

void softmax_row(float* row, int64_t count, int64_t first, int64_t last) {
  std::fill(row, row + first, 0.0f);
  std::fill(row + last, row + count, 0.0f);
  if (first < last) softmax_visible(row + first, last - first);
}

bool StandardAttention::takes(const Case& c) {
  return !c.varlen() && !c.paged() && !c.seqused && !c.leftpad && !c.cache_index && !c.append && c.softcap == 0 &&
         c.alibi == Alibi::kNone && c.bias.empty() && !c.sinks && c.dropout == 0 && !c.d_lse && !c.probs && c.sq > 0 &&
         c.sk > 0;
}

double StandardAttention::matrix_bytes(const Case& c) {
  return double(c.sq) * double(c.sk) * sizeof(float) * (c.backward ? 2 : 1);
}

StandardAttention::StandardAttention(const Geometry& g, const HostValues& values, int threads)
    : case_(g.problem),
      scale_(g.problem.scale == FW_SCALE_AUTO ? 1.0f / std::sqrt(float(g.problem.dqk)) : g.problem.scale),
      threads_(threads < 1 ? 1 : threads),
      q_(by_head(g, values, kQ)),
      k_(by_head(g, values, kK)),
      v_(by_head(g, values, kV)),
      o_(size_t(g.view[kO].count())),
      matrix_(size_t(g.problem.sq * g.problem.sk)) {
  set_sgemm_threads(threads_);
  if (!g.problem.backward) return;
  d_o_ = by_head(g, values, kDO);
  dq_.resize(q_.size());
  dk_.resize(k_.size());
  dv_.resize(v_.size());
  gradient_.resize(matrix_.size());
}

template <class Body>
void StandardAttention::over_rows(Body&& body) {
  const int64_t part = (case_.sq + threads_ - 1) / threads_;
  const auto range = [&](int64_t t) {
    for (int64_t i = t * part; i < std::min(case_.sq, (t + 1) * part); ++i) body(i);
  };
  std::vector<std::thread> others;
  for (int64_t t = 1; t < threads_; ++t) others.emplace_back(range, t);
  range(0);
  for (std::thread& other : others) other.join();
}

void StandardAttention::scores_and_softmax(int64_t b, int64_t h) {
  const Case& c = case_;
  const int64_t q_head = b * c.hq + h, k_head = b * c.hk + h / (c.hq / c.hk);
  sgemm({.transpose_b = true,
         .m = c.sq,
         .n = c.sk,
         .k = c.dqk,
         .alpha = scale_,
         .a = &q_[size_t(q_head * c.sq * c.dqk)],
         .lda = c.dqk,
         .b = &k_[size_t(k_head * c.sk * c.dqk)],
         .ldb = c.dqk,
         .c = matrix_.data(),
         .ldc = c.sk});
  over_rows([&](int64_t i) {
    const VisibleKeys keys = visible_keys(c, {c.sq, c.sk, 0}, i);
    softmax_row(&matrix_[size_t(i * c.sk)], c.sk, keys.first, keys.last);
  });
}

void StandardAttention::output(int64_t b, int64_t h) {
  const Case& c = case_;
  const int64_t q_head = b * c.hq + h, k_head = b * c.hk + h / (c.hq / c.hk);
  sgemm({.m = c.sq,
         .n = c.dv,
         .k = c.sk,
         .a = matrix_.data(),
         .lda = c.sk,
         .b = &v_[size_t(k_head * c.sk * c.dv)],
         .ldb = c.dv,
         .c = &o_[size_t(q_head * c.sq * c.dv)],
         .ldc = c.dv});
}

void StandardAttention::gradients(int64_t b, int64_t h) {
  const Case& c = case_;
  const int64_t group = c.hq / c.hk, q_head = b * c.hq + h, k_head = b * c.hk + h / group;
  const float add = h % group == 0 ? 0.0f : 1.0f;  // the heads of a group sum into one dk and dv
  const float* d_o = &d_o_[size_t(q_head * c.sq * c.dv)];
  const float* o = &o_[size_t(q_head * c.sq * c.dv)];
  sgemm({.transpose_a = true,
         .m = c.sk,
         .n = c.dv,
         .k = c.sq,
         .beta = add,
         .a = matrix_.data(),
         .lda = c.sk,
         .b = d_o,
         .ldb = c.dv,
         .c = &dv_[size_t(k_head * c.sk * c.dv)],
         .ldc = c.dv});
  sgemm({.transpose_b = true,
         .m = c.sq,
         .n = c.sk,
         .k = c.dv,
         .a = d_o,
         .lda = c.dv,
         .b = &v_[size_t(k_head * c.sk * c.dv)],
         .ldb = c.dv,
         .c = gradient_.data(),
         .ldc = c.sk});
  over_rows([&](int64_t i) {
    float delta = 0;
    for (int64_t l = 0; l < c.dv; ++l) delta += d_o[i * c.dv + l] * o[i * c.dv + l];
    score_gradient(&matrix_[size_t(i * c.sk)], &gradient_[size_t(i * c.sk)], c.sk, delta, scale_);
  });
  sgemm({.m = c.sq,
         .n = c.dqk,
         .k = c.sk,
         .a = gradient_.data(),
         .lda = c.sk,
         .b = &k_[size_t(k_head * c.sk * c.dqk)],
         .ldb = c.dqk,
         .c = &dq_[size_t(q_head * c.sq * c.dqk)],
         .ldc = c.dqk});
  sgemm({.transpose_a = true,
         .m = c.sk,
         .n = c.dqk,
         .k = c.sq,
         .beta = add,
         .a = gradient_.data(),
         .lda = c.sk,
         .b = &q_[size_t(q_head * c.sq * c.dqk)],
         .ldb = c.dqk,
         .c = &dk_[size_t(k_head * c.sk * c.dqk)],
         .ldc = c.dqk});
}

double StandardAttention::forward() {
  const auto start = Clock::now();
  for (int64_t b = 0; b < case_.b; ++b) {
    for (int64_t h = 0; h < case_.hq; ++h) {
      scores_and_softmax(b, h);
      output(b, h);
    }
  }
  return seconds_since(start);
}

double StandardAttention::backward() {
  double seconds = 0;
  for (int64_t b = 0; b < case_.b; ++b) {
    for (int64_t h = 0; h < case_.hq; ++h) {
      scores_and_softmax(b, h);
      output(b, h);
      const auto start = Clock::now();
      gradients(b, h);
      seconds += seconds_since(start);
    }
  }
  return seconds;
}

}  // namespace flashwave::cli
