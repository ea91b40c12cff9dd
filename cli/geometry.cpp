#include "geometry.h"

#include <algorithm>
#include <numeric>

#include "random.h"

namespace flashwave::cli {
namespace {

// Rows of a ragged tensor that belong to no sequence: they must be left alone.
constexpr int64_t kSpareRows = 3;
// Rows of a cache beyond the batch when cache_batch_idx picks, and pages beyond those in use.
constexpr int64_t kSpareCacheRows = 2;

// A length that is often one of the ends: empty sequences and full ones are where mistakes live.
int64_t ragged(Random& random, int64_t most) {
  switch (random.integer(0, 4)) {
    case 0:
      return 0;
    case 1:
      return most;
    default:
      return random.integer(0, most);
  }
}

std::vector<int32_t> distinct(Random& random, int64_t count, int64_t below) {
  std::vector<int32_t> all(static_cast<size_t>(below));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = 0; i < count; ++i) std::swap(all[size_t(i)], all[size_t(random.integer(i, below - 1))]);
  all.resize(size_t(count));
  return all;
}

void choose_lengths(Geometry& g, Random& random) {
  const Case& c = g.problem;
  // A cache (append, cache_batch_idx, or pages counted by seqused_k) is never ragged itself: only its lengths are.
  const bool ragged_k = c.varlen() && !c.append && !c.cache_index && !(c.paged() && c.seqused);
  for (int64_t b = 0; b < c.b; ++b) {
    SequenceShape s{c.sq, c.sk, 0};
    if (c.varlen()) {
      const bool given = !c.lengths.empty();
      s.queries = given ? c.lengths[size_t(b)].first : ragged(random, c.sq);
      if (ragged_k) s.stored = given ? c.lengths[size_t(b)].second : ragged(random, c.sk);
      // Not everything may be empty, or nothing is checked.
      if (!given && b == 0) s.queries = std::max<int64_t>(s.queries, std::min<int64_t>(c.sq, 1 + c.sq / 2));
      if (!given && b == 0 && ragged_k) s.stored = std::max<int64_t>(s.stored, std::min<int64_t>(c.sk, 1 + c.sk / 2));
    }
    g.sequences.push_back(s);
  }
  if (c.varlen()) {
    g.cu_seqlens_q = {0};
    for (const SequenceShape& s : g.sequences) g.cu_seqlens_q.push_back(int32_t(g.cu_seqlens_q.back() + s.queries));
    g.total_q = g.cu_seqlens_q.back() + kSpareRows;
  }
  if (ragged_k) {
    g.cu_seqlens_k = {0};
    for (const SequenceShape& s : g.sequences) g.cu_seqlens_k.push_back(int32_t(g.cu_seqlens_k.back() + s.stored));
    if (!c.paged()) g.total_k = g.cu_seqlens_k.back() + kSpareRows;  // pages hold the keys otherwise
  }
  for (SequenceShape& s : g.sequences) {
    if (c.seqused) {
      s.stored = ragged(random, s.stored - c.append);
      g.seqused_k.push_back(int32_t(s.stored));
    }
    if (c.leftpad) {
      s.leftpad = random.integer(0, std::min<int64_t>(s.stored, 1 + s.stored / 2));
      g.leftpad_k.push_back(int32_t(s.leftpad));
    }
  }
}

void choose_places(Geometry& g, Random& random) {
  const Case& c = g.problem;
  g.batch_k = c.b;
  if (c.cache_index) {
    g.batch_k = c.b + kSpareCacheRows;
    g.cache_batch_idx = distinct(random, c.b, g.batch_k);
  }
  if (c.paged()) {
    const int64_t blocks = (c.sk + c.page - 1) / c.page;
    g.block_table_stride = blocks;
    g.batch_k = c.b * blocks + kSpareCacheRows;
    g.block_table = distinct(random, c.b * blocks, g.batch_k);
  }
}

struct Extent {
  int64_t first, rows, heads, dim;
};

// Gives a tensor its own buffer in the case's layout.
void place_alone(Geometry& g, TensorId id, Extent e, bool heads_first) {
  View& v = g.view[id];
  v.present = true;
  v.buffer = id;
  v.shape = {e.first, e.rows, e.heads, e.dim};
  if (heads_first) {
    v.stride = {e.rows * e.heads * e.dim, e.dim, e.rows * e.dim, 1};
  } else {
    v.stride = {e.rows * e.heads * e.dim, e.heads * e.dim, e.dim, 1};
  }
  g.elements[id] = v.count();
}

// Several tensors side by side in each row of one buffer.
void place_packed(Geometry& g, std::initializer_list<std::pair<TensorId, Extent>> tensors) {
  int64_t width = 0;
  for (const auto& [id, e] : tensors) width += e.heads * e.dim;
  const TensorId buffer = tensors.begin()->first;
  int64_t offset = 0;
  for (const auto& [id, e] : tensors) {
    View& v = g.view[id];
    v.present = true;
    v.buffer = buffer;
    v.offset = offset;
    v.shape = {e.first, e.rows, e.heads, e.dim};
    v.stride = {e.rows * width, width, e.dim, 1};
    offset += e.heads * e.dim;
    g.elements[buffer] = e.first * e.rows * width;
  }
}

void place_qkv(Geometry& g, TensorId q, TensorId k, TensorId v) {
  const Case& c = g.problem;
  const bool heads_first = c.layout == Layout::kBhsd;
  const Extent eq = c.varlen() ? Extent{1, g.total_q, c.hq, c.dqk} : Extent{c.b, c.sq, c.hq, c.dqk};
  Extent ek{g.batch_k, c.sk, c.hk, c.dqk};
  if (c.paged()) {
    ek = {g.batch_k, c.page, c.hk, c.dqk};
  } else if (!g.cu_seqlens_k.empty()) {
    ek = {1, g.total_k, c.hk, c.dqk};
  }
  Extent ev = ek;
  ev.dim = c.dv;
  if (c.layout == Layout::kQkvPacked) {
    place_packed(g, {{q, eq}, {k, ek}, {v, ev}});
    return;
  }
  place_alone(g, q, eq, heads_first);
  if (c.layout == Layout::kKvPacked) {
    place_packed(g, {{k, ek}, {v, ev}});
  } else {
    place_alone(g, k, ek, heads_first);
    place_alone(g, v, ev, heads_first);
  }
}

// Row statistics are kept head by head, as softmax_lse is elsewhere: (batch, head, seq).
void place_row_statistic(Geometry& g, TensorId id) {
  const Case& c = g.problem;
  const int64_t first = c.varlen() ? 1 : c.b, rows = c.varlen() ? g.total_q : c.sq;
  View& v = g.view[id];
  v.present = true;
  v.buffer = id;
  v.shape = {first, rows, c.hq, 1};
  v.stride = {rows * c.hq, 1, rows, 0};
  g.elements[id] = v.count();
}

// (batch, head, query, key), with 1 for broadcast dimensions.
void place_scores(Geometry& g, TensorId id, const std::string& spec) {
  const Case& c = g.problem;
  const int64_t full[4] = {c.b, c.hq, c.sq, c.sk};
  View& v = g.view[id];
  v.present = true;
  v.buffer = id;
  int64_t stride = 1;
  for (int i = 3; i >= 0; --i) {
    const bool broadcast = spec[size_t(i)] == '1';
    v.shape[size_t(i)] = broadcast ? 1 : full[i];
    v.stride[size_t(i)] = broadcast ? 0 : stride;
    stride *= v.shape[size_t(i)];
  }
  g.elements[id] = stride;
}

void place_vector(Geometry& g, TensorId id, int64_t rows, int64_t columns) {
  place_alone(g, id, {1, 1, rows, columns}, false);
}

}  // namespace

const char* tensor_name(TensorId id) {
  static const char* const names[kTensorCount] = {
      "q",    "k",     "v",   "o",     "lse", "k_new", "v_new", "rotary_cos", "rotary_sin", "alibi_slopes", "sinks",
      "bias", "probs", "d_o", "d_lse", "dq",  "dk",    "dv",    "d_bias",     "d_sinks",    "d_slopes"};
  return names[id];
}

Geometry make_geometry(const Case& c) {
  Geometry g;
  g.problem = c;
  Random random(mix(c.seed, hash_text("geometry")));
  choose_lengths(g, random);
  choose_places(g, random);

  place_qkv(g, kQ, kK, kV);
  const Extent eo = c.varlen() ? Extent{1, g.total_q, c.hq, c.dv} : Extent{c.b, c.sq, c.hq, c.dv};
  place_alone(g, kO, eo, c.layout == Layout::kBhsd);
  if (c.lse || c.backward) place_row_statistic(g, kLse);
  if (c.append) {
    place_alone(g, kKNew, {c.b, c.append, c.hk, c.dqk}, c.layout == Layout::kBhsd);
    place_alone(g, kVNew, {c.b, c.append, c.hk, c.dv}, c.layout == Layout::kBhsd);
  }
  if (c.rotary) {
    g.rotary_seqlen = c.sk + c.sq;
    place_vector(g, kCos, g.rotary_seqlen, c.rotary / 2);
    place_vector(g, kSin, g.rotary_seqlen, c.rotary / 2);
  }
  const int64_t slope_rows = c.alibi == Alibi::kPerBatchHead ? c.b : 1;
  if (c.alibi != Alibi::kNone) place_vector(g, kSlopes, slope_rows, c.hq);
  if (c.sinks) place_vector(g, kSinks, 1, c.hq);
  if (!c.bias.empty()) place_scores(g, kBias, c.bias);
  if (c.probs) place_scores(g, kProbs, "bhqk");
  if (c.backward) {
    place_alone(g, kDO, eo, c.layout == Layout::kBhsd);
    if (c.d_lse) place_row_statistic(g, kDLse);
    place_qkv(g, kDQ, kDK, kDV);
    if (c.d_bias) place_scores(g, kDBias, c.bias);
    if (c.d_sinks) place_vector(g, kDSinks, 1, c.hq);
    if (c.d_slopes) place_vector(g, kDSlopes, slope_rows, c.hq);
  }
  return g;
}

Geometry::Place Geometry::key_place(int64_t b, int64_t row) const {
  if (problem.paged()) {
    const int64_t block = row / problem.page;
    return {block_table[size_t(b * block_table_stride + block)], row % problem.page};
  }
  if (!cu_seqlens_k.empty()) return {0, cu_seqlens_k[size_t(b)] + row};
  return {cache_batch_idx.empty() ? b : cache_batch_idx[size_t(b)], row};
}

Geometry::Place Geometry::query_place(int64_t b, int64_t query) const {
  if (!cu_seqlens_q.empty()) return {0, cu_seqlens_q[size_t(b)] + query};
  return {b, query};
}

fw_dtype Geometry::dtype_of(TensorId id, fw_dtype data_dtype) const {
  switch (id) {
    case kO:
      return problem.float_out ? FW_F32 : data_dtype;
    case kDQ:
    case kDK:
    case kDV:
      return problem.float_gradients ? FW_F32 : data_dtype;
    case kLse:
    case kSlopes:
    case kSinks:
    case kProbs:
    case kDLse:
    case kDSinks:
    case kDSlopes:
      return FW_F32;
    case kBias:
    case kDBias:
      // The yardstick runs in F32 throughout; otherwise what the case says.
      return data_dtype == FW_F32 || problem.bias_dtype == FW_DTYPE_NONE ? FW_F32 : problem.bias_dtype;
    default:
      return data_dtype;
  }
}

bool Geometry::is_output(TensorId id) const {
  if (id == kO || id == kLse) return !problem.backward && !problem.accumulate;
  return id == kProbs || (id >= kDQ && id <= kDSlopes);
}

bool Geometry::is_updated(TensorId id) const {
  if (id == kO || id == kLse) return problem.accumulate;
  return problem.append > 0 && (id == kK || id == kV);
}

VisibleKeys visible_keys(const Case& c, const SequenceShape& s, int64_t query) {
  const int64_t keys = s.keys(c.append);
  const int64_t diagonal = query + (c.placed ? c.position_q - c.position_k : keys - s.queries);
  int64_t right = c.window_right;
  if (c.causal) right = right < 0 ? 0 : std::min<int64_t>(right, 0);
  int64_t first = c.window_left < 0 ? 0 : std::max<int64_t>(0, diagonal - c.window_left);
  int64_t last = right < 0 ? keys : std::min(keys, diagonal + right + 1);
  first = std::min(first, keys);
  last = std::max<int64_t>(last, 0);
  return {std::min(first, last), last};
}

}  // namespace flashwave::cli
