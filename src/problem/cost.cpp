#include "problem/cost.h"

#include <algorithm>
#include <cstdint>

#include "problem/views.h"

namespace flashwave {
namespace {

constexpr int64_t kUnlimited = int64_t{1} << 40;  // as a window: past every position, far from overflow

struct Window {
  int64_t left, right;
};

Window window_of(const Problem& problem) {
  const auto limit = [](int64_t side) { return side < 0 ? kUnlimited : std::min(side, kUnlimited); };
  const int64_t right = limit(problem.a.window_right);
  return {limit(problem.a.window_left), problem.causal() ? std::min<int64_t>(right, 0) : right};
}

// Sum over i in [0, count) of (start + i) held to [0, ceiling]. At most 2^62, as count and ceiling fit in int32.
int64_t clamped_sum(int64_t start, int64_t count, int64_t ceiling) {
  const int64_t rising_from = std::clamp<int64_t>(-start, 0, count);         // before: 0
  const int64_t full_from = std::clamp<int64_t>(ceiling - start, 0, count);  // from here: ceiling
  const int64_t first_plus_last = 2 * start + rising_from + full_from - 1;
  return (full_from - rising_from) * first_plus_last / 2 + (count - full_from) * ceiling;
}

struct Lengths {
  int64_t queries, keys;
};

int64_t diagonal_of(const Problem& problem, Lengths n) {
  return problem.placed() ? problem.position_shift() : n.keys - n.queries;
}

// (query, key) pairs that the mask lets through: of each query's keys those before the window's end, less those before
// its start.
double visible_pairs(const Problem& problem, Lengths n, Window window) {
  const int64_t diagonal = diagonal_of(problem, n);
  return static_cast<double>(clamped_sum(diagonal + window.right + 1, n.queries, n.keys) -
                             clamped_sum(diagonal - window.left, n.queries, n.keys));
}

// Keys that at least one query sees. The windows of consecutive queries move by one, so their union has no hole.
int64_t keys_seen(const Problem& problem, Lengths n, Window window) {
  if (n.queries == 0) return 0;
  const int64_t diagonal = diagonal_of(problem, n), last = diagonal + n.queries + window.right;
  return std::max<int64_t>(
      0, std::clamp<int64_t>(last, 0, n.keys) - std::clamp<int64_t>(diagonal - window.left, 0, n.keys));
}

Lengths lengths_of(const Problem& problem, int64_t b, bool readable) {
  const fw_attention& a = problem.a;
  Lengths n{a.seqlen_q, a.seqlen_k};
  if (!readable) return n;
  if (a.cu_seqlens_q != nullptr) n.queries = int64_t{a.cu_seqlens_q[b + 1]} - a.cu_seqlens_q[b];
  if (a.cu_seqlens_k != nullptr) n.keys = int64_t{a.cu_seqlens_k[b + 1]} - a.cu_seqlens_k[b];
  if (a.seqused_k != nullptr) n.keys = a.seqused_k[b] + a.seqlen_new;
  if (a.leftpad_k != nullptr) n.keys = std::max<int64_t>(0, n.keys - a.leftpad_k[b]);
  return n;
}

struct Totals {
  double pairs = 0;      // visible, of one head
  double all_pairs = 0;  // queries * keys, of one head
  double queries = 0;
  double keys = 0;  // seen by at least one query
  Lengths longest{0, 0};
};

Totals totals_of(const Problem& problem, bool host_readable) {
  const fw_attention& a = problem.a;
  const Window window = window_of(problem);
  const bool ragged = problem.varlen_q() || problem.varlen_k() || a.seqused_k != nullptr || a.leftpad_k != nullptr;
  Totals totals;
  const auto add = [&](Lengths n, double times) {
    totals.pairs += times * visible_pairs(problem, n, window);
    totals.all_pairs += times * static_cast<double>(n.queries) * static_cast<double>(n.keys);
    totals.queries += times * static_cast<double>(n.queries);
    totals.keys += times * static_cast<double>(keys_seen(problem, n, window));
    totals.longest = {std::max(totals.longest.queries, n.queries), std::max(totals.longest.keys, n.keys)};
  };
  if (a.batch == 0) return totals;
  if (!ragged || !host_readable) {
    add(lengths_of(problem, 0, false), static_cast<double>(a.batch));
    // Packed tensors bound the sums more tightly than batch * longest does.
    const double rows = problem.varlen_q() ? static_cast<double>(a.total_q) : totals.queries;
    const double stored = problem.varlen_k() && !problem.paged() ? static_cast<double>(a.total_k) : totals.keys;
    const auto lower = [](double& value, double bound) { value = std::min(value, bound); };
    lower(totals.queries, rows);
    lower(totals.keys, stored);
    lower(totals.pairs, rows * static_cast<double>(a.seqlen_k));
    lower(totals.pairs, static_cast<double>(a.seqlen_q) * stored);
    lower(totals.all_pairs, rows * static_cast<double>(a.seqlen_k));
    return totals;
  }
  for (int64_t b = 0; b < a.batch; ++b) add(lengths_of(problem, b, true), 1);
  return totals;
}

double size_of(const fw_tensor& tensor) { return tensor.dtype == FW_F32 ? 4 : 2; }

// Elements of a (batch, head, query, key) tensor that are in use, each once where it broadcasts.
double score_elements(const Problem& problem, const fw_tensor& tensor, const Totals& totals) {
  const auto longest_queries = static_cast<double>(totals.longest.queries);
  const auto longest_keys = static_cast<double>(totals.longest.keys);
  const bool per_query = tensor.stride[2] != 0, per_key = tensor.stride[3] != 0;
  const double heads = tensor.stride[1] != 0 ? static_cast<double>(problem.a.heads_q) : 1;
  if (per_query && per_key && tensor.stride[0] != 0) return heads * totals.all_pairs;
  const double batch = tensor.stride[0] != 0 ? static_cast<double>(problem.a.batch) : 1;
  return batch * heads * (per_query ? longest_queries : 1) * (per_key ? longest_keys : 1);
}

double bytes_of(const Problem& problem, const Totals& totals) {
  const fw_attention& a = problem.a;
  const fw_gradients& g = problem.g;
  const auto heads_q = static_cast<double>(a.heads_q), heads_k = static_cast<double>(a.heads_k);
  const auto dim_qk = static_cast<double>(a.dim_qk), dim_v = static_cast<double>(a.dim_v);
  const double element = size_of(a.q), rows = totals.queries * heads_q, keys = totals.keys * heads_k;
  double bytes = element * (rows * dim_qk + keys * (dim_qk + dim_v));  // q, k, v
  const bool adds = problem.accumulate() && !problem.backward;
  const double times = problem.accumulate() && problem.backward ? 2 : 1;  // gradients that are read, too
  bytes += size_of(a.o) * rows * dim_v * (adds ? 2 : 1);
  if (adds) bytes += 4 * rows;  // lse as it was
  if (a.lse.data != nullptr) bytes += 4 * rows;
  if (a.bias.data != nullptr) bytes += size_of(a.bias) * score_elements(problem, a.bias, totals);
  if (a.probs.data != nullptr) bytes += 4 * heads_q * totals.all_pairs;
  // Appended keys are read as k_new, v_new and written to the cache; that they are then attended is counted above.
  bytes += 2 * element * static_cast<double>(a.batch * a.seqlen_new) * heads_k * (dim_qk + dim_v);
  const Views views(problem);
  for (const View& view : views.all()) {
    if (view.tensor == nullptr && view.present()) {  // index arrays, slopes, sinks and their gradients
      bytes += 4 * static_cast<double>(view.extent[0]) * static_cast<double>(view.extent[1]);
    } else if (view.present() && (view.tensor == &g.dk || view.tensor == &g.dv)) {  // written whole: 0 where not seen
      bytes += times * size_of(*view.tensor) * static_cast<double>(view.extent[0]) *
               static_cast<double>(view.extent[1]) * heads_k * static_cast<double>(view.extent[3]);
    } else if (view.present() && (view.tensor == &a.rotary_cos || view.tensor == &a.rotary_sin)) {
      bytes += size_of(*view.tensor) * static_cast<double>(std::min(view.extent[0], a.seqlen_k)) *
               static_cast<double>(view.extent[1]);
    }
  }
  if (!problem.backward) return bytes;
  bytes += element * rows * dim_v;  // d_o
  if (g.d_lse.data != nullptr) bytes += 4 * rows;
  if (g.dq.data != nullptr) bytes += times * size_of(g.dq) * rows * dim_qk;
  if (g.d_bias.data != nullptr) bytes += size_of(g.d_bias) * score_elements(problem, a.bias, totals);
  return bytes;
}

double flops_of(const Problem& problem, const Totals& totals) {
  const auto dim_qk = static_cast<double>(problem.a.dim_qk), dim_v = static_cast<double>(problem.a.dim_v);
  const double per_pair = problem.backward ? 2 * (3 * dim_qk + 2 * dim_v) : 2 * (dim_qk + dim_v);
  return per_pair * totals.pairs * static_cast<double>(problem.a.heads_q);
}

}  // namespace

Cost cost_of(const Problem& problem, bool host_readable) {
  const Totals totals = totals_of(problem, host_readable);
  return {.flops = flops_of(problem, totals), .bytes = bytes_of(problem, totals)};
}

double flops_of(const Problem& problem, bool host_readable) {
  return flops_of(problem, totals_of(problem, host_readable));
}

}  // namespace flashwave
