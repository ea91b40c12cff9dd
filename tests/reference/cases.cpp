#include "tests/reference/cases.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace oracle {
namespace {

Array random_array(std::array<int64_t, 4> extent, std::array<int64_t, 4> stride, std::mt19937& rng, Type type) {
  Array a;
  a.stride = stride;
  int64_t size = 1;
  for (int x = 0; x < 4; ++x) size += extent[x] > 0 ? (extent[x] - 1) * stride[x] : 0;
  a.at.resize(size);
  std::normal_distribution<double> normal;
  for (Real& x : a.at) x = quantize(normal(rng), type);
  return a;
}

// (batch, seq, head, dim), dim contiguous.
Array random_rows(std::array<int64_t, 4> n, Layout layout, std::mt19937& rng, Type type) {
  switch (layout) {
    case Layout::kBhsd:
      return random_array(n, {n[2] * n[1] * n[3], n[3], n[1] * n[3], 1}, rng, type);
    case Layout::kPadded: {
      const int64_t head = n[3] + 3, row = n[2] * head + 2, line = n[1] * row + 5;
      return random_array(n, {line, row, head, 1}, rng, type);
    }
    default:
      return random_array(n, {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1}, rng, type);
  }
}

template <class Shape>
NamedCase make(std::string name, Type type, uint32_t seed, Shape&& shape, Layout layout = Layout::kBshd) {
  Case c;
  c.type = type;
  shape(c);
  fill(c, seed, layout);
  return {std::move(name), std::move(c)};
}

}  // namespace

void fill(Case& c, uint32_t seed, Layout layout) {
  std::mt19937 rng(seed);
  const bool ragged_q = !c.cu_seqlens_q.empty(), ragged_k = !c.cu_seqlens_k.empty();
  const int64_t q_lines = ragged_q ? 1 : c.batch, q_rows = ragged_q ? c.cu_seqlens_q.back() : c.seqlen_q;
  int64_t k_lines = c.batch_k > 0 ? c.batch_k : c.batch, k_rows = c.seqlen_k;
  if (c.page_size > 0) {
    k_rows = c.page_size;
  } else if (ragged_k) {
    k_lines = 1, k_rows = c.cu_seqlens_k.back();
  }
  c.q = random_rows({q_lines, q_rows, c.heads_q, c.dim_qk}, layout, rng, c.type);
  c.k = random_rows({k_lines, k_rows, c.heads_k, c.dim_qk}, layout, rng, c.type);
  c.v = random_rows({k_lines, k_rows, c.heads_k, c.dim_v}, layout, rng, c.type);
  c.o = c.d_o = random_rows({q_lines, q_rows, c.heads_q, c.dim_v}, layout, rng, c.type);
  c.lse = c.d_lse = random_rows({q_lines, q_rows, c.heads_q, 1}, layout, rng, Type::kF32);
  if (c.seqlen_new > 0) {
    c.k_new = random_rows({c.batch, c.seqlen_new, c.heads_k, c.dim_qk}, layout, rng, c.type);
    c.v_new = random_rows({c.batch, c.seqlen_new, c.heads_k, c.dim_v}, layout, rng, c.type);
  }
}

void add_bias(Case& c, std::array<bool, 4> broadcast, bool f32) {
  std::mt19937 rng(77);
  const std::array<int64_t, 4> extent = {c.batch, c.heads_q, c.seqlen_q, c.seqlen_k};
  std::array<int64_t, 4> stride{};
  int64_t next = 1;
  for (int x = 3; x >= 0; --x) {
    stride[x] = broadcast[x] ? 0 : next;
    if (!broadcast[x]) next *= extent[x];
  }
  c.bias = random_array(extent, stride, rng, f32 ? Type::kF32 : c.type);
  c.bias_f32 = f32;
}

void add_sinks(Case& c) {
  for (int64_t h = 0; h < c.heads_q; ++h) c.sinks.push_back(quantize(0.7L - 0.9L * h, Type::kF32));
}

void add_slopes(Case& c, bool per_batch) {
  const int64_t rows = per_batch ? c.batch : 1;
  c.slopes_batch_stride = per_batch ? c.heads_q : 0;
  for (int64_t x = 0; x < rows * c.heads_q; ++x) c.slopes.push_back(quantize(std::exp2(-1.0L - 0.7L * x), Type::kF32));
}

void add_rotary(Case& c, int64_t dim, bool interleaved, bool f32) {
  const int64_t pairs = dim / 2, positions = c.seqlen_k + c.seqlen_q;
  const Type type = f32 ? Type::kF32 : c.type;
  c.rotary_dim = dim;
  c.rotary_interleaved = interleaved;
  c.rotary_f32 = f32;
  c.cos.stride = c.sin.stride = {pairs, 1, 0, 0};
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const Real angle = position * std::pow(100.0L, -static_cast<Real>(pair) / pairs);
      c.cos.at.push_back(quantize(std::cos(angle), type));
      c.sin.at.push_back(quantize(std::sin(angle), type));
    }
  }
}

std::vector<NamedCase> attention_cases(Type type) {
  std::vector<NamedCase> cases;
  uint32_t seed = 1;
  const auto add = [&](std::string name, auto&& shape, auto&& after, Layout layout = Layout::kBshd) {
    cases.push_back(make(std::move(name), type, seed++, shape, layout));
    after(cases.back().problem);
  };
  const auto nothing = [](Case&) {};
  const auto square = [](Case& c) { c.seqlen_q = c.seqlen_k = 6; };
  const auto grouped = [](Case& c) { c.heads_q = 4, c.heads_k = 2, c.causal = true; };
  const auto ragged = [](Case& c) {
    c.batch = 3;
    c.cu_seqlens_q = {0, 3, 3, 8}, c.seqlen_q = 5;
    c.cu_seqlens_k = {0, 4, 6, 6}, c.seqlen_k = 4;  // the last sequence has queries and no key
  };

  add("plain", nothing, nothing);
  add("bhsd", nothing, nothing, Layout::kBhsd);
  add("padded", grouped, nothing, Layout::kPadded);
  add("one_query", [](Case& c) { c.seqlen_q = 1, c.heads_q = 4, c.heads_k = 1; }, nothing);
  add("dims_11_3", [](Case& c) { c.dim_qk = 11, c.dim_v = 3; }, nothing);
  add("dims_1_17", [](Case& c) { c.dim_qk = 1, c.dim_v = 17, c.heads_q = 4; }, nothing);
  add("causal_square", [&](Case& c) { square(c), c.causal = true; }, nothing);
  add("causal_fewer_queries", [](Case& c) { c.causal = true; }, nothing);
  add("causal_more_queries", [](Case& c) { c.seqlen_q = 7, c.seqlen_k = 4, c.causal = true; }, nothing);
  add("causal_more_queries_sinks", [](Case& c) { c.seqlen_q = 7, c.seqlen_k = 4, c.causal = true; }, add_sinks);
  add(
      "sink_of_minus_infinity", [](Case& c) { c.seqlen_q = 7, c.seqlen_k = 4, c.causal = true; },
      [](Case& c) { c.sinks = {-std::numeric_limits<Real>::infinity(), 0.5L}; });
  add("window_both", [](Case& c) { c.window_left = 2, c.window_right = 1; }, nothing);
  add("window_left_only", [](Case& c) { c.window_left = 1; }, nothing);
  add("window_right_only", [](Case& c) { c.window_right = 2, c.seqlen_q = 8; }, nothing);
  add("window_causal", [](Case& c) { c.window_left = 3, c.window_right = 4, c.causal = true; }, nothing);
  add("window_zero", [](Case& c) { c.window_left = c.window_right = 0, c.seqlen_q = 9; }, nothing);
  add("no_keys", [](Case& c) { c.seqlen_k = 0; }, nothing);
  add("no_keys_sinks", [](Case& c) { c.seqlen_k = 0; }, add_sinks);
  add("softcap", [](Case& c) { c.softcap = 1.25f, c.scale = 1.0f; }, nothing);
  add("negative_scale", [](Case& c) { c.scale = -0.4f; }, nothing);
  add("alibi_shared", grouped, [](Case& c) { add_slopes(c, false); });
  add("alibi_per_batch", [](Case& c) { c.seqlen_q = 8; }, [](Case& c) { add_slopes(c, true); });
  add("sinks", grouped, add_sinks);
  const std::pair<const char*, std::array<bool, 4>> patterns[] = {
      {"full", {false, false, false, false}},      {"batch", {true, false, false, false}},
      {"head", {false, true, false, false}},       {"batch_head", {true, true, false, false}},
      {"query", {false, true, true, false}},       {"key", {true, false, false, true}},
      {"batch_query", {true, false, true, false}}, {"all", {true, true, true, true}}};
  for (const auto& [name, broadcast] : patterns) {
    add(std::string("bias_broadcast_") + name, grouped, [&](Case& c) { add_bias(c, broadcast); });
  }
  add("bias_storage_type", nothing, [](Case& c) { add_bias(c, {false, true, false, false}, false); });
  add("bias_infinite", nothing, [](Case& c) {
    add_bias(c, {true, false, false, false});
    for (size_t x = 0; x < c.bias.at.size(); x += 3) c.bias.at[x] = -std::numeric_limits<Real>::infinity();
    for (int64_t j = 0; j < c.seqlen_k; ++j) c.bias.at[j] = -std::numeric_limits<Real>::infinity();  // a whole row
  });
  add("dropout", [](Case& c) { c.dropout_p = 0.3f, c.seed = 0x123456789ABCDEFull, c.seqlen_k = 19; }, nothing);
  add(
      "dropout_offset", [&](Case& c) { grouped(c), c.dropout_p = 0.5f, c.seed = 3, c.offset = 0x700000001ull; },
      nothing);
  add("varlen", ragged, nothing);
  add("varlen_causal_grouped", [&](Case& c) { ragged(c), c.causal = true, c.heads_q = 4; }, nothing, Layout::kPadded);
  const auto at = [](int64_t q, int64_t k) {
    return [=](Case& c) { c.placed = true, c.position_q = q, c.position_k = k; };
  };
  add("positions_causal", [&](Case& c) { at(4, 3)(c), c.causal = true; }, nothing);
  add("positions_before_all_keys", [&](Case& c) { at(0, 3)(c), c.causal = true; }, nothing);
  add("positions_past_all_keys", [&](Case& c) { at(6, 2)(c), c.window_left = 3, c.seqlen_q = 9; }, nothing);
  add("positions_window", [&](Case& c) { at(5, 3)(c), c.window_left = 2, c.window_right = 1; }, add_sinks);
  add("positions_alibi", [&](Case& c) { grouped(c), at(11, 2)(c); }, [](Case& c) { add_slopes(c, true); });
  add("positions_dropout", [&](Case& c) { at(6, 13)(c), c.dropout_p = 0.4f, c.seqlen_k = 19, c.seed = 5; }, nothing);
  add(
      "dropout_of_other_heads",
      [](Case& c) { c.dropout_p = 0.4f, c.seqlen_k = 19, c.dropout_first = 3, c.dropout_heads = 7; }, nothing);
  add(
      "positions_varlen",
      [&](Case& c) { ragged(c), at(3, 1)(c), c.window_left = 3, c.window_right = 1, c.dropout_p = 0.2f; },
      [](Case& c) { add_slopes(c, false); });
  add(
      "varlen_everything", [&](Case& c) { ragged(c), c.window_left = 2, c.softcap = 2, c.dropout_p = 0.2f; },
      [](Case& c) {
        add_bias(c, {false, true, false, false});
        add_slopes(c, true);
        add_sinks(c);
      });
  add("varlen_seqused", [&](Case& c) { ragged(c), c.seqused_k = {2, 2, 0}; }, nothing);
  add("seqused", [](Case& c) { c.seqused_k = {4, 0}, c.causal = true; }, nothing);
  add(
      "leftpad", [](Case& c) { c.leftpad_k = {0, 3}, c.causal = true; },
      [](Case& c) { add_bias(c, {true, true, false, false}); });
  add(
      "seqused_leftpad",
      [](Case& c) { c.batch = 3, c.seqused_k = {6, 5, 2}, c.leftpad_k = {1, 0, 4}, c.causal = true; },
      [](Case& c) { add_slopes(c, false), add_sinks(c); }, Layout::kPadded);
  add(
      "cache_rows", [](Case& c) { c.batch = 3, c.batch_k = 5, c.cache_batch_idx = {4, 0, 2}, c.seqused_k = {3, 7, 6}; },
      nothing);
  add(
      "cache_rows_shared", [](Case& c) { c.batch = 3, c.batch_k = 2, c.cache_batch_idx = {1, 1, 1}, c.causal = true; },
      nothing);
  add(
      "paged",
      [&](Case& c) {
        grouped(c);
        c.page_size = 3, c.batch_k = 7, c.block_table = {5, 1, 6, 0, 3, -1}, c.block_table_stride = 3,
        c.seqused_k = {7, 5};
      },
      nothing);
  add(
      "paged_shared_prefix",
      [](Case& c) {
        c.page_size = 2, c.batch_k = 8, c.seqlen_k = 6, c.block_table = {7, 2, 5, 99, 7, 2, 0, 99},
        c.block_table_stride = 4;
        c.seqused_k = {6, 5};
      },
      nothing, Layout::kPadded);
  add(
      "paged_varlen",
      [&](Case& c) {
        ragged(c);
        c.page_size = 1, c.batch_k = 9, c.block_table = {5, 1, 6, 0, 3, 4, -1, -1, -1, -1, -1, -1},
        c.block_table_stride = 4;
      },
      nothing);
  add(
      "everything",
      [&](Case& c) {
        grouped(c);
        c.batch = 3, c.dim_v = 9, c.window_left = 4, c.softcap = 3, c.dropout_p = 0.25f, c.seed = 99;
        c.seqused_k = {7, 4, 6}, c.leftpad_k = {2, 0, 1};
      },
      [](Case& c) {
        add_bias(c, {true, false, false, false});
        add_slopes(c, true);
        add_sinks(c);
      },
      Layout::kBhsd);
  return cases;
}

std::vector<NamedCase> append_cases(Type type) {
  std::vector<NamedCase> cases;
  uint32_t seed = 500;
  const auto add = [&](std::string name, auto&& shape, auto&& after, Layout layout = Layout::kBshd) {
    cases.push_back(make(std::move(name), type, seed++, shape, layout));
    after(cases.back().problem);
  };
  const auto base = [](Case& c) {
    c.seqlen_k = 12, c.seqlen_q = c.seqlen_new = 3, c.seqused_k = {5, 0}, c.dim_qk = 10;
  };
  const auto halves = [](Case& c) { add_rotary(c, 8, false, true); };
  const auto interleaved = [](Case& c) { add_rotary(c, 6, true, false); };
  add("no_rotary", base, [](Case&) {});
  add("halves_all_one_position", base, halves);
  add("halves_causal", [&](Case& c) { base(c), c.causal = true; }, halves, Layout::kPadded);
  add("interleaved_window", [&](Case& c) { base(c), c.window_left = 4; }, interleaved, Layout::kBhsd);
  add("whole_head", [&](Case& c) { base(c), c.causal = true; }, [](Case& c) { add_rotary(c, 10, true, true); });
  add("grouped_one_token", [&](Case& c) { base(c), c.heads_q = 4, c.seqlen_q = c.seqlen_new = 1; }, interleaved);
  add("leftpad", [&](Case& c) { base(c), c.leftpad_k = {2, 0}, c.causal = true; }, halves);
  add("cache_rows", [&](Case& c) { base(c), c.batch_k = 4, c.cache_batch_idx = {3, 1}, c.causal = true; }, halves);
  add(
      "paged",
      [&](Case& c) {
        base(c);
        c.causal = true, c.page_size = 4, c.batch_k = 5, c.block_table = {3, 0, -1, 2, -1, -1},
        c.block_table_stride = 3;
      },
      interleaved);
  add("varlen_queries", [&](Case& c) { base(c), c.causal = true, c.cu_seqlens_q = {0, 1, 4}; }, halves);
  add("more_new_keys_than_queries", [&](Case& c) { base(c), c.causal = true, c.seqlen_new = 5; }, halves);
  return cases;
}

}  // namespace oracle
