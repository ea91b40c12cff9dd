#include "tests/reference/oracle.h"

#include <cmath>

namespace oracle {
int64_t storage_position(const Case& c, const Array& t, int64_t b, int64_t row, int64_t h) {
  if (c.page_size > 0) {
    const int64_t block = row / c.page_size;
    return c.block_table[b * c.block_table_stride + block] * t.stride[0] + (row - block * c.page_size) * t.stride[1] +
           h * t.stride[2];
  }
  if (!c.cu_seqlens_k.empty()) return (c.cu_seqlens_k[b] + row) * t.stride[1] + h * t.stride[2];
  const int64_t line = c.cache_batch_idx.empty() ? b : c.cache_batch_idx[b];
  return line * t.stride[0] + row * t.stride[1] + h * t.stride[2];
}

namespace {

constexpr Real kNan = std::numeric_limits<Real>::quiet_NaN();
constexpr Real kInf = std::numeric_limits<Real>::infinity();

struct Matrix {
  Matrix(int64_t r, int64_t c) : rows(r), columns(c), x(r * c) {}
  Real& operator()(int64_t r, int64_t c) { return x[r * columns + c]; }
  Real operator()(int64_t r, int64_t c) const { return x[r * columns + c]; }
  int64_t rows, columns;
  std::vector<Real> x;
};

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix product(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.columns; ++k) {
      for (int64_t j = 0; j < b.columns; ++j) product(i, j) += a(i, k) * b(k, j);
    }
  }
  return product;
}

Matrix transpose(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) t(j, i) = a(i, j);
  }
  return t;
}

int64_t length_of_queries(const Case& c, int64_t b) {
  return c.cu_seqlens_q.empty() ? c.seqlen_q : c.cu_seqlens_q[b + 1] - c.cu_seqlens_q[b];
}

int64_t stored_keys(const Case& c, int64_t b) {
  if (!c.seqused_k.empty()) return c.seqused_k[b];
  if (!c.cu_seqlens_k.empty()) return c.cu_seqlens_k[b + 1] - c.cu_seqlens_k[b];
  return c.seqlen_k;
}

int64_t query_position(const Case& c, const Array& t, int64_t b, int64_t i, int64_t h) {
  const int64_t start = c.cu_seqlens_q.empty() ? b * t.stride[0] : c.cu_seqlens_q[b] * t.stride[1];
  return start + i * t.stride[1] + h * t.stride[2];
}

std::vector<Real> take(const Array& t, int64_t position, int64_t n) {
  return {t.at.begin() + position, t.at.begin() + position + n};
}

// Complex multiplication of each pair (x, y) by cos + i sin of the position.
std::vector<Real> rotated(const Case& c, std::vector<Real> x, int64_t position) {
  const int64_t half = c.rotary_dim / 2;
  for (int64_t p = 0; p < half; ++p) {
    Real& re = x[c.rotary_interleaved ? 2 * p : p];
    Real& im = x[c.rotary_interleaved ? 2 * p + 1 : p + half];
    const Real cos = c.cos.at[position * c.cos.stride[0] + p], sin = c.sin.at[position * c.sin.stride[0] + p];
    const Real new_re = re * cos - im * sin, new_im = re * sin + im * cos;
    re = new_re, im = new_im;
  }
  return x;
}

int64_t diagonal_of(const Case& c, int64_t i, int64_t queries, int64_t keys) {
  return c.placed ? c.position_q + i - c.position_k : i + keys - queries;
}

bool visible(const Case& c, int64_t diagonal, int64_t j) {
  if (c.causal && j > diagonal) return false;
  if (c.window_right >= 0 && j > diagonal + c.window_right) return false;
  if (c.window_left >= 0 && j < diagonal - c.window_left) return false;
  return true;
}

void put(std::vector<Real>& to, int64_t position, const std::vector<Real>& row) {
  for (size_t d = 0; d < row.size(); ++d) to[position + d] = row[d];
}

void mark(std::vector<char>& touched, int64_t position, int64_t n) {
  for (int64_t d = 0; d < n; ++d) touched[position + d] = 1;
}

void set_row(Matrix& m, int64_t r, const std::vector<Real>& row) {
  for (int64_t d = 0; d < m.columns; ++d) m(r, d) = row[d];
}

void attend(const Case& c, int64_t b, int64_t h, Result& result) {
  const int64_t h_k = h / (c.heads_q / c.heads_k), queries = length_of_queries(c, b), stored = stored_keys(c, b);
  const int64_t leftpad = c.leftpad_k.empty() ? 0 : c.leftpad_k[b];
  const int64_t keys = std::max<int64_t>(0, stored + c.seqlen_new - leftpad);

  Matrix q(queries, c.dim_qk), k(keys, c.dim_qk), v(keys, c.dim_v);
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t position = query_position(c, c.q, b, i, h);
    std::vector<Real> row = take(c.q, position, c.dim_qk);
    if (c.cos.present()) row = rotated(c, row, stored + (c.rotary_per_row() ? i : 0));
    mark(result.touched.q, position, c.dim_qk);
    put(result.q_rotated, position, row);
    set_row(q, i, row);
  }
  for (int64_t r = 0; r < c.seqlen_new; ++r) {
    std::vector<Real> row =
        take(c.k_new, b * c.k_new.stride[0] + r * c.k_new.stride[1] + h_k * c.k_new.stride[2], c.dim_qk);
    if (c.cos.present()) row = rotated(c, row, stored + r);
    put(result.k_appended, storage_position(c, c.k, b, stored + r, h_k), row);
    put(result.v_appended, storage_position(c, c.v, b, stored + r, h_k),
        take(c.v_new, b * c.v_new.stride[0] + r * c.v_new.stride[1] + h_k * c.v_new.stride[2], c.dim_v));
  }
  for (int64_t j = 0; j < keys; ++j) {
    const int64_t at_k = storage_position(c, c.k, b, leftpad + j, h_k),
                  at_v = storage_position(c, c.v, b, leftpad + j, h_k);
    for (int64_t d = 0; d < c.dim_qk; ++d) k(j, d) = result.k_appended[at_k + d];
    for (int64_t d = 0; d < c.dim_v; ++d) v(j, d) = result.v_appended[at_v + d];
    if (leftpad + j < stored) mark(result.touched.k, at_k, c.dim_qk), mark(result.touched.v, at_v, c.dim_v);
  }

  Matrix score = times(q, transpose(k));
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t diagonal = diagonal_of(c, i, queries, keys);
    for (int64_t j = 0; j < keys; ++j) {
      Real s = Real{c.scale} * score(i, j);
      if (c.softcap > 0) s = Real{c.softcap} * std::tanh(s / Real{c.softcap});
      if (c.bias.present()) {
        const int64_t at = b * c.bias.stride[0] + h * c.bias.stride[1] + i * c.bias.stride[2] + j * c.bias.stride[3];
        s += c.bias.at[at];
        result.touched.bias[at] = 1;
      }
      if (!c.slopes.empty()) {
        s += -c.slopes[b * c.slopes_batch_stride + h] * static_cast<Real>(diagonal > j ? diagonal - j : j - diagonal);
      }
      score(i, j) = visible(c, diagonal, j) ? s : -kInf;
    }
  }

  Matrix kept(queries, keys);
  for (int64_t i = 0; i < queries; ++i) {
    Real total = 0, shift = c.sinks.empty() ? -kInf : c.sinks[h];
    for (int64_t j = 0; j < keys; ++j) shift = std::fmax(shift, score(i, j));
    if (shift > -kInf) {
      if (!c.sinks.empty()) total += std::exp(c.sinks[h] - shift);
      for (int64_t j = 0; j < keys; ++j) total += std::exp(score(i, j) - shift);
    }
    result.lse[query_position(c, c.lse, b, i, h)] = total > 0 ? shift + std::log(total) : -kInf;
    for (int64_t j = 0; j < keys; ++j) {
      const Real prob = total > 0 ? std::exp(score(i, j) - shift) / total : 0;
      const bool seen = visible(c, diagonal_of(c, i, queries, keys), j),
                 lost = c.dropout_p > 0 && dropped(c, b, h, i, j);
      kept(i, j) = lost ? 0 : prob / (1 - Real{c.dropout_p});
      result.probs[((b * c.heads_q + h) * c.seqlen_q + i) * c.seqlen_k + j] = seen && lost ? -prob : prob;
    }
  }
  const Matrix o = times(kept, v);
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t d = 0; d < c.dim_v; ++d) result.o[query_position(c, c.o, b, i, h) + d] = o(i, d);
  }
}

}  // namespace

Real quantize(Real x, Type type) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int digits = type == Type::kF32 ? 24 : type == Type::kF16 ? 11 : 8;
  const int least = type == Type::kF16 ? -24 : type == Type::kF32 ? -149 : -133;  // exponent of the smallest subnormal
  const int ulp = std::max(std::ilogb(x) - (digits - 1), least);
  const Real rounded = std::ldexp(std::rint(std::ldexp(x, -ulp)), ulp);
  const Real limit = type == Type::kF16 ? Real{65536} : std::ldexp(Real{1}, 128);
  return std::fabs(rounded) >= limit ? std::copysign(kInf, x) : rounded;
}

Result forward(const Case& c) {
  Result r;
  r.o.assign(c.o.at.size(), kNan);
  r.lse.assign(c.lse.at.size(), kNan);
  r.probs.assign(c.batch * c.heads_q * c.seqlen_q * c.seqlen_k, 0);
  r.q_rotated.assign(c.q.at.size(), kNan);
  r.k_appended = c.k.at;
  r.v_appended = c.v.at;
  r.touched.q.assign(c.q.at.size(), 0);
  r.touched.k.assign(c.k.at.size(), 0);
  r.touched.v.assign(c.v.at.size(), 0);
  r.touched.bias.assign(c.bias.at.size(), 0);
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads_q; ++h) attend(c, b, h, r);
  }
  return r;
}

Real loss(const Case& c) {
  const Result r = forward(c);
  Real sum = 0;
  for (size_t x = 0; x < r.o.size(); ++x) sum += std::isnan(r.o[x]) ? 0 : r.o[x] * c.d_o.at[x];
  for (size_t x = 0; c.d_lse.present() && x < r.lse.size(); ++x) {
    sum += std::isfinite(r.lse[x]) ? r.lse[x] * c.d_lse.at[x] : 0;
  }
  return sum;
}

Real derivative(Case& c, Real& x) {
  constexpr Real kStep = 1e-6L;
  const Real saved = x;
  x = saved + kStep;
  const Real above = loss(c);
  x = saved - kStep;
  const Real below = loss(c);
  x = saved;
  return (above - below) / (2 * kStep);
}

// Section 3 of the paper: seven rounds of two 32x32 multiplications, the key bumped by Weyl constants between rounds.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> x, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 7; ++round) {
    if (round > 0) key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
    const uint64_t left = static_cast<uint64_t>(x[0]) * 0xD2511F53u, right = static_cast<uint64_t>(x[2]) * 0xCD9E8D57u;
    x = {static_cast<uint32_t>(right >> 32) ^ x[1] ^ key[0], static_cast<uint32_t>(right),
         static_cast<uint32_t>(left >> 32) ^ x[3] ^ key[1], static_cast<uint32_t>(left)};
  }
  return x;
}

bool dropped(const Case& c, int64_t b, int64_t h, int64_t i, int64_t j) {
  i += c.position_q, j += c.position_k;
  const int64_t head = c.dropout_first + b * (c.dropout_heads > 0 ? c.dropout_heads : c.heads_q) + h;
  const uint32_t seed_low = static_cast<uint32_t>(c.seed), seed_high = static_cast<uint32_t>(c.seed >> 32);
  const uint32_t offset_low = static_cast<uint32_t>(c.offset), offset_high = static_cast<uint32_t>(c.offset >> 32);
  const std::array<uint32_t, 4> words =
      philox({static_cast<uint32_t>(j / 8), static_cast<uint32_t>(i), static_cast<uint32_t>(head), offset_low},
             {seed_low, seed_high ^ offset_high});
  const uint32_t halves[8] = {words[0] & 0xFFFF, words[0] >> 16, words[1] & 0xFFFF, words[1] >> 16,
                              words[2] & 0xFFFF, words[2] >> 16, words[3] & 0xFFFF, words[3] >> 16};
  return halves[j % 8] < std::lround(static_cast<double>(c.dropout_p) * 65536);
}

}  // namespace oracle
