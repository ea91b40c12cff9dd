// Attention by its definition (docs/semantics.md): one query row at a time over whole rows of keys, no tiling.
//
// reference_*: fp64 arithmetic, nothing rounded but the results: the yardstick of every device.
// naive_*: the same loops in fp32, each matrix that a framework would hold in memory (scores, softmax, their gradients)
// rounded to the storage type: what standard attention computes, whose error the numeric rule takes as its unit.
//
// Every result is a sum in a fixed order, so neither depends on the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "kernels/abi/cpu_launch.h"
#include "kernels/common/dtype.h"
#include "kernels/common/philox.h"
#include "kernels/common/sequence.h"

namespace flashwave {
namespace {

constexpr int64_t kQueriesPerTask = 64;

// The inner loops, over rows that are a task's own: ThreadSanitizer would find nothing in them and spend its time
// there.
#define TASKS_OWN __attribute__((no_sanitize("thread")))

// Eight partial sums, so that the compiler may use vectors without reordering what is written here.
template <class Acc>
TASKS_OWN Acc dot(const Acc* a, const Acc* b, int64_t n) {
  Acc part[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int lane = 0; lane < 8; ++lane) part[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) part[0] += a[i] * b[i];
  return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}

template <class Acc>
TASKS_OWN void add_scaled(Acc* __restrict sum, Acc factor, const Acc* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += factor * x[i];
}

template <class T, class Acc, bool kRound>
class Attention {
 public:
  Attention(const abi::Params& params, const abi::CpuLaunch& cpu_launch) : p(params), launch(cpu_launch) {}

  void forward() const {
    const int64_t blocks = (p.seqlen_q + kQueriesPerTask - 1) / kQueriesPerTask;
    launch.for_each_task(blocks * p.batch * p.heads_q, [&](int64_t task, int32_t) {
      const int64_t h = task / blocks % p.heads_q, begin = task % blocks * kQueriesPerTask;
      const Sequence seq = sequence_of(p, static_cast<int32_t>(task / blocks / p.heads_q));
      if (p.probs.data) clear_probs(seq.b, h, begin, std::min<int64_t>(begin + kQueriesPerTask, p.seqlen_q));
      const int64_t end = std::min(begin + kQueriesPerTask, seq.queries);
      if (begin >= end) return;
      const Keys keys = load_keys(seq, h / group(), begin, end);
      Row row(p, seq);
      for (int64_t i = begin; i < end; ++i) forward_row(keys, h, i, row);
    });
  }

  void backward() const {
    const int64_t tasks = int64_t{p.batch} * p.heads_k;
    std::vector<std::vector<Acc>> dk(tasks), dv(tasks);
    std::vector<Acc> d_sinks(int64_t{p.batch} * p.heads_q), d_slopes(int64_t{p.batch} * p.heads_q);
    launch.for_each_task(tasks, [&](int64_t task, int32_t) {
      const int64_t h_k = task % p.heads_k;
      const Sequence seq = sequence_of(p, static_cast<int32_t>(task / p.heads_k));
      if (p.dk.data) dk[task].assign(seq.keys * p.dim_qk, 0);
      if (p.dv.data) dv[task].assign(seq.keys * p.dim_v, 0);
      const Keys keys = load_keys(seq, h_k, 0, seq.queries);
      Row row(p, seq);
      for (int64_t h = h_k * group(); h < (h_k + 1) * group(); ++h) {
        const int64_t head = seq.b * int64_t{p.heads_q} + h;
        for (int64_t i = 0; i < seq.queries; ++i) {
          gradient_row(keys, h, i, row);
          accumulate(keys, i, row, dk[task].data(), dv[task].data(), d_slopes[head]);
          if (p.dq.data) put(p.dq, query_offset(p.dq, seq, i, h), row.dq.data(), p.dim_qk);
          if (p.sinks && !row.empty) d_sinks[head] -= std::exp(p.sinks[h] - row.lse) * row.delta;
        }
      }
    });
    if (p.dk.data) write_key_gradient(p.dk, p.dim_qk, dk);
    if (p.dv.data) write_key_gradient(p.dv, p.dim_v, dv);
    if (p.d_bias.data) bias_gradient();
    for (int64_t h = 0; h < p.heads_q; ++h) {
      Acc sink = 0, slope = 0;
      for (int64_t b = 0; b < p.batch; ++b) {
        sink += d_sinks[b * p.heads_q + h];
        slope = d_slopes[b * p.heads_q + h] + (p.alibi_batch_stride ? 0 : slope);
        if (p.d_slopes && p.alibi_batch_stride) p.d_slopes[b * p.alibi_batch_stride + h] = static_cast<float>(slope);
      }
      if (p.d_sinks) p.d_sinks[h] = static_cast<float>(sink);
      if (p.d_slopes && !p.alibi_batch_stride) p.d_slopes[h] = static_cast<float>(slope);
    }
  }

 private:
  static constexpr Acc kInfinity = std::numeric_limits<Acc>::infinity();
  static constexpr int32_t kDType = std::is_same_v<T, Half>       ? abi::kF16
                                    : std::is_same_v<T, BFloat16> ? abi::kBF16
                                                                  : abi::kF32;

  // The keys and values of one head that some query of a block sees.
  struct Keys {
    Sequence seq;
    KeyRange range;
    std::vector<Acc> k, v;
    int64_t dim_qk, dim_v;
    const Acc* key(int64_t j) const { return k.data() + (j - range.first) * dim_qk; }
    const Acc* value(int64_t j) const { return v.data() + (j - range.first) * dim_v; }
  };

  // One query and, by key, the row's matrices. Entries outside `range` are stale.
  struct Row {
    Row(const abi::Params& params, const Sequence& seq)
        : q(params.dim_qk),
          dq(params.dim_qk),
          o(params.dim_v),
          d_o(params.dim_v),
          s(seq.keys),
          cap(seq.keys),
          keep(seq.keys),
          prob(seq.keys),
          ds(seq.keys) {}
    KeyRange range;
    std::vector<Acc> q, dq, o, d_o;
    std::vector<Acc> s, cap, keep, prob, ds;  // cap: derivative of the softcap; keep: 0 or 1/(1 - dropout_p)
    Acc lse, delta;
    bool empty;  // no key and no sink: the softmax is 0
  };

  int64_t group() const { return p.heads_q / p.heads_k; }

  static Acc rounded(Acc x) {
    if constexpr (kRound) return to_float(from_float<T>(static_cast<float>(x)));
    return x;
  }

  // Tensors in T or in fp32.
  static void load(const abi::Tensor& t, int64_t offset, Acc* out, int64_t n) {
    const T* in = static_cast<const T*>(t.data) + offset;
    for (int64_t d = 0; d < n; ++d) out[d] = t.dtype == kDType ? to_float(in[d]) : float_at(t, offset + d);
  }
  static void store(const abi::Tensor& t, int64_t offset, const Acc* in, int64_t n) {
    T* out = static_cast<T*>(t.data) + offset;
    for (int64_t d = 0; d < n; ++d) {
      if (t.dtype == kDType) {
        out[d] = from_float<T>(static_cast<float>(in[d]));
      } else {
        float_at(t, offset + d) = static_cast<float>(in[d]);
      }
    }
  }
  // A row of a gradient, which a call that accumulates adds to what is there.
  void put(const abi::Tensor& t, int64_t offset, Acc* row, int64_t n) const {
    for (int64_t d = 0; p.accumulate && d < n; ++d) row[d] += float_at(t, offset + d);
    store(t, offset, row, n);
  }
  static float& float_at(const abi::Tensor& t, int64_t offset) { return static_cast<float*>(t.data)[offset]; }

  static int64_t pair_offset(const abi::Tensor& t, int64_t b, int64_t h, int64_t i, int64_t j) {
    return b * t.stride[0] + h * t.stride[1] + i * t.stride[2] + j * t.stride[3];
  }

  Keys load_keys(const Sequence& seq, int64_t h_k, int64_t begin, int64_t end) const {
    Keys keys{seq, {0, 0}, {}, {}, p.dim_qk, p.dim_v};
    if (begin >= end) return keys;
    // Both ends of what a query sees rise with the query.
    keys.range = {keys_seen(p, seq, begin).first, keys_seen(p, seq, end - 1).last};
    const int64_t count = std::max<int64_t>(0, keys.range.last - keys.range.first);
    keys.k.resize(count * p.dim_qk);
    keys.v.resize(count * p.dim_v);
    for (int64_t j = keys.range.first; j < keys.range.last; ++j) {
      load(p.k, key_offset(p, p.k, seq, j, h_k), keys.k.data() + (j - keys.range.first) * p.dim_qk, p.dim_qk);
      load(p.v, key_offset(p, p.v, seq, j, h_k), keys.v.data() + (j - keys.range.first) * p.dim_v, p.dim_v);
    }
    return keys;
  }

  void score_row(const Keys& keys, int64_t h, int64_t i, Row& row) const {
    const Sequence& seq = keys.seq;
    row.range = keys_seen(p, seq, i);
    load(p.q, query_offset(p.q, seq, i, h), row.q.data(), p.dim_qk);
    const int64_t diagonal = diagonal_of(p, seq, i);
    const uint32_t batch_head = dropout_head(p, seq, static_cast<int32_t>(h));
    for (int64_t j = row.range.first; j < row.range.last; ++j) {
      Acc s = rounded(p.softmax_scale * rounded(dot(row.q.data(), keys.key(j), p.dim_qk)));
      row.cap[j] = 1;
      if (p.softcap > 0) {
        const Acc t = rounded(std::tanh(rounded(s / p.softcap)));
        s = rounded(p.softcap * t);
        row.cap[j] = 1 - t * t;
      }
      if (p.bias.data) {
        const int64_t at = pair_offset(p.bias, seq.b, h, i, j);
        // A sum with an fp32 tensor is fp32 in a framework as well: only one in the storage type is rounded.
        s = p.bias.dtype == kDType ? rounded(s + to_float(static_cast<const T*>(p.bias.data)[at]))
                                   : s + float_at(p.bias, at);
      }
      if (p.alibi_slopes)
        s -= p.alibi_slopes[seq.b * p.alibi_batch_stride + h] * static_cast<Acc>(std::abs(diagonal - j));
      row.s[j] = s;
      row.keep[j] = 1;
      if (p.dropout_p > 0) {
        const uint32_t bits =
            dropout_bits(p.dropout_seed, p.dropout_offset, batch_head, static_cast<uint32_t>(i) + p.position_q,
                         static_cast<uint32_t>(j) + p.position_k);
        row.keep[j] = bits < p.dropout_threshold ? 0 : 1 / (1 - static_cast<Acc>(p.dropout_p));
      }
    }
  }

  void forward_row(const Keys& keys, int64_t h, int64_t i, Row& row) const {
    const Sequence& seq = keys.seq;
    score_row(keys, h, i, row);
    Acc top = p.sinks ? p.sinks[h] : -kInfinity;
    for (int64_t j = row.range.first; j < row.range.last; ++j) top = std::max(top, row.s[j]);
    if (top == -kInfinity) top = 0;  // nothing to attend to: every term below is exp(-inf) = 0, and so is the sum
    Acc sum = p.sinks ? std::exp(p.sinks[h] - top) : 0;
    for (int64_t j = row.range.first; j < row.range.last; ++j) sum += row.prob[j] = std::exp(row.s[j] - top);
    std::fill(row.o.begin(), row.o.end(), Acc{0});
    for (int64_t j = row.range.first; j < row.range.last; ++j) {
      const Acc prob = sum == 0 ? 0 : rounded(row.prob[j] / sum);
      if (p.probs.data) {
        float_at(p.probs, pair_offset(p.probs, seq.b, h, i, j)) = static_cast<float>(row.keep[j] == 0 ? -prob : prob);
      }
      add_scaled(row.o.data(), rounded(prob * row.keep[j]), keys.value(j), p.dim_v);
    }
    const Acc lse = top + std::log(sum);
    if (p.accumulate) {
      add_row(seq, h, i, lse, row);
      return;
    }
    store(p.o, query_offset(p.o, seq, i, h), row.o.data(), p.dim_v);
    if (p.lse.data) float_at(p.lse, query_offset(p.lse, seq, i, h)) = static_cast<float>(lse);
  }

  // O and LSE of the row with those in memory, of other keys.
  void add_row(const Sequence& seq, int64_t h, int64_t i, Acc own, Row& row) const {
    const int64_t at = query_offset(p.o, seq, i, h);
    float& lse = float_at(p.lse, query_offset(p.lse, seq, i, h));
    if (lse != -kInfinity) {
      const Acc top = std::max(own, static_cast<Acc>(lse)), keep = std::exp(lse - top), add = std::exp(own - top);
      for (int64_t d = 0; d < p.dim_v; ++d) {
        row.o[d] = ((own == -kInfinity ? 0 : add * row.o[d]) + keep * float_at(p.o, at + d)) / (keep + add);
      }
      own = top + std::log(keep + add);
    }
    store(p.o, at, row.o.data(), p.dim_v);
    lse = static_cast<float>(own);
  }

  // P and ds of one row from the forward's o and lse.
  void gradient_row(const Keys& keys, int64_t h, int64_t i, Row& row) const {
    const Sequence& seq = keys.seq;
    score_row(keys, h, i, row);
    load(p.o, query_offset(p.o, seq, i, h), row.o.data(), p.dim_v);
    load(p.d_o, query_offset(p.d_o, seq, i, h), row.d_o.data(), p.dim_v);
    row.lse = float_at(p.lse, query_offset(p.lse, seq, i, h));
    row.empty = row.lse == -kInfinity;
    row.delta = dot(row.d_o.data(), row.o.data(), p.dim_v);
    if (p.d_lse.data) row.delta -= float_at(p.d_lse, query_offset(p.d_lse, seq, i, h));
    for (int64_t j = row.range.first; j < row.range.last; ++j) {
      // Next to a large bias lse, in fp32, is coarse: P is never more than 1 for all that.
      const Acc log_prob = p.bias.data && row.s[j] > row.lse ? Acc{0} : Acc(row.s[j] - row.lse);
      row.prob[j] = row.empty ? 0 : rounded(std::exp(log_prob));
      const Acc dp = rounded(row.keep[j] * rounded(dot(row.d_o.data(), keys.value(j), p.dim_v)));
      row.ds[j] = rounded(row.prob[j] * (dp - row.delta));
    }
  }

  // What one row adds to dq, dk, dv (by key; unused where not wanted) and dSlopes.
  void accumulate(const Keys& keys, int64_t i, Row& row, Acc* dk, Acc* dv, Acc& d_slope) const {
    const int64_t diagonal = diagonal_of(p, keys.seq, i);
    std::fill(row.dq.begin(), row.dq.end(), Acc{0});
    for (int64_t j = row.range.first; j < row.range.last; ++j) {
      const Acc dz = rounded(p.softmax_scale * rounded(row.ds[j] * row.cap[j]));
      if (p.dq.data) add_scaled(row.dq.data(), dz, keys.key(j), p.dim_qk);
      if (p.dk.data) add_scaled(dk + j * p.dim_qk, dz, row.q.data(), p.dim_qk);
      if (p.dv.data) add_scaled(dv + j * p.dim_v, rounded(row.prob[j] * row.keep[j]), row.d_o.data(), p.dim_v);
      d_slope -= row.ds[j] * static_cast<Acc>(std::abs(diagonal - j));
    }
  }

  // dk or dv from the sums of each (sequence, key head): 0 to every row the tensors hold for a sequence, then the sums
  // of its keys. A row that several sequences read (cache_batch_idx, block_table) gets the total.
  void write_key_gradient(const abi::Tensor& t, int64_t dim, std::vector<std::vector<Acc>>& sums) const {
    launch.for_each_task(p.heads_k, [&](int64_t h, int32_t) {
      const std::vector<Acc> zero(dim);
      std::unordered_map<int64_t, Acc*> rows;  // by offset
      for (int32_t b = 0; b < p.batch; ++b) {
        const Sequence seq = sequence_of(p, b);
        const int64_t first = p.cu_seqlens_k ? p.cu_seqlens_k[b] : 0;
        const int64_t last = p.cu_seqlens_k ? p.cu_seqlens_k[b + 1] : p.seqlen_k;
        for (int64_t r = first; !p.block_table && !p.accumulate && r < last; ++r) {
          store(t, seq.k_batch * t.stride[0] + r * t.stride[1] + h * t.stride[2], zero.data(), dim);
        }
        for (int64_t j = 0; j < seq.keys; ++j) {
          Acc* mine = sums[b * int64_t{p.heads_k} + h].data() + j * dim;
          const auto [row, first_reader] = rows.try_emplace(key_offset(p, t, seq, j, h), mine);
          if (!first_reader) add_scaled(row->second, Acc{1}, mine, dim);
        }
      }
      for (const auto& [offset, sum] : rows) put(t, offset, sum, dim);
    });
  }

  // A task for each (batch, head) that d_bias tells apart sums over those that it does not.
  void bias_gradient() const {
    const abi::Tensor& t = p.d_bias;
    const int64_t batches = t.stride[0] ? p.batch : 1, heads = t.stride[1] ? p.heads_q : 1;
    const int64_t queries = t.stride[2] ? p.seqlen_q : 1, columns = t.stride[3] ? p.seqlen_k : 1;
    launch.for_each_task(batches * heads, [&](int64_t task, int32_t) {
      std::vector<Acc> sum(queries * columns);
      for (int32_t b = 0; b < p.batch; ++b) {
        if (t.stride[0] && b != task / heads) continue;
        const Sequence seq = sequence_of(p, b);
        Row row(p, seq);
        for (int64_t h = 0; h < p.heads_q; ++h) {
          if (t.stride[1] && h != task % heads) continue;
          const Keys keys = load_keys(seq, h / group(), 0, seq.queries);
          for (int64_t i = 0; i < seq.queries; ++i) {
            gradient_row(keys, h, i, row);
            Acc* out = sum.data() + (t.stride[2] ? i * columns : 0);
            for (int64_t j = row.range.first; j < row.range.last; ++j) out[t.stride[3] ? j : 0] += row.ds[j];
          }
        }
      }
      for (int64_t at = 0; at < queries * columns; ++at) {
        const int64_t offset = pair_offset(t, task / heads, task % heads, at / columns, at % columns);
        if (t.dtype == kDType) {
          store(t, offset, &sum[at], 1);
        } else {
          float_at(t, offset) = static_cast<float>(sum[at]);
        }
      }
    });
  }

  void clear_probs(int64_t b, int64_t h, int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < p.seqlen_k; ++j) float_at(p.probs, pair_offset(p.probs, b, h, i, j)) = 0;
    }
  }

  const abi::Params& p;
  const abi::CpuLaunch& launch;
};

template <class Acc, bool kRound, bool kBackward>
void run_attention(const abi::Params& p, const abi::CpuLaunch& launch) {
  const auto run = [](const auto& attention) { kBackward ? attention.backward() : attention.forward(); };
  switch (p.q.dtype) {
    case abi::kF16:
      return run(Attention<Half, Acc, kRound>(p, launch));
    case abi::kBF16:
      return run(Attention<BFloat16, Acc, kRound>(p, launch));
    default:
      return run(Attention<float, Acc, kRound>(p, launch));
  }
}

}  // namespace

void reference_fwd(const abi::Params& p, const abi::CpuLaunch& launch) {
  run_attention<double, false, false>(p, launch);
}
void reference_bwd(const abi::Params& p, const abi::CpuLaunch& launch) {
  run_attention<double, false, true>(p, launch);
}
void naive_fwd(const abi::Params& p, const abi::CpuLaunch& launch) { run_attention<float, true, false>(p, launch); }
void naive_bwd(const abi::Params& p, const abi::CpuLaunch& launch) { run_attention<float, true, true>(p, launch); }

}  // namespace flashwave
