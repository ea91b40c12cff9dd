// One broken rule after another, and the edge cases that must pass.
#include "problem/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sample.h"

namespace flashwave::test {
namespace {

constexpr int64_t kTooLarge = int64_t{1} << 31;
const float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

#define CHANGE(code)                  \
  [](Sample& s) {                     \
    [[maybe_unused]] auto& a = s.p.a; \
    [[maybe_unused]] auto& g = s.p.g; \
    code;                             \
  }

const std::vector<BrokenRule>& rules() {
  static const std::vector<BrokenRule> all = {
      // Sizes.
      {"batch", Sample::dense, CHANGE(a.batch = -1), {"batch must be in [0,", "got -1"}},
      {"batch_large", Sample::dense, CHANGE(a.batch = kTooLarge), {"batch must be in", "2147483648"}},
      {"seqlen_q", Sample::dense, CHANGE(a.seqlen_q = -4), {"seqlen_q must be in [0,", "got -4"}},
      {"seqlen_k", Sample::dense, CHANGE(a.seqlen_k = kTooLarge), {"seqlen_k must be in [0,"}},
      {"heads_q", Sample::dense, CHANGE(a.heads_q = 0), {"heads_q must be in [1,", "got 0"}},
      {"heads_k", Sample::dense, CHANGE(a.heads_k = 0), {"heads_k must be in [1,", "got 0"}},
      {"group", Sample::dense, CHANGE(a.heads_k = 3), {"heads_q must be a multiple of heads_k", "4 and 3"}},
      {"rows", Sample::dense, CHANGE(a.batch = 1 << 29), {"batch * heads_q must be at most", "536870912 * 4"}},
      {"q_elements", Sample::dense, CHANGE(a.batch = 1 << 20; a.seqlen_q = 1 << 20), {"batch * heads_q * seqlen_q"}},
      {"k_elements", Sample::dense, CHANGE(a.batch = 1 << 20; a.seqlen_k = 1 << 20), {"batch * heads_q * seqlen_k"}},
      {"dim_qk", Sample::dense, CHANGE(a.dim_qk = 513), {"dim_qk must be in [1, 512]", "513"}},
      {"dim_qk_zero", Sample::dense, CHANGE(a.dim_qk = 0), {"dim_qk must be in [1, 512]"}},
      {"dim_v", Sample::dense, CHANGE(a.dim_v = 0), {"dim_v must be in [1, 512]"}},
      {"total_q", Sample::varlen, CHANGE(a.total_q = -1), {"total_q must be in [0,"}},
      {"total_k", Sample::varlen, CHANGE(a.total_k = kTooLarge), {"total_k must be in [0,"}},
      {"total_q_dense", Sample::dense, CHANGE(a.total_q = 8), {"total_q must be 0 without cu_seqlens_q"}},
      {"total_k_dense", Sample::dense, CHANGE(a.total_k = 8), {"total_k must be 0 without cu_seqlens_k"}},
      {"total_k_paged",
       Sample::paged,
       CHANGE(a.cu_seqlens_k = s.indices({0, 6, 12}); a.total_k = 12),
       {"total_k must be 0 with block_table"}},
      {"batch_k", Sample::dense, CHANGE(a.batch_k = 3), {"batch_k must be 0 or batch"}},
      {"batch_k_negative", Sample::cached, CHANGE(a.batch_k = -1), {"batch_k must be in [0,"}},
      {"seqlen_new_negative", Sample::dense, CHANGE(a.seqlen_new = -1), {"seqlen_new must be in [0,"}},
      {"page_size_negative", Sample::paged, CHANGE(a.page_size = -1), {"page_size must be in [0,"}},
      {"rotary_seqlen_negative", Sample::appended, CHANGE(a.rotary_seqlen = -1), {"rotary_seqlen must be in [0,"}},
      // Scalars.
      {"flags", Sample::dense, CHANGE(a.flags = 1 << 8), {"flags has unknown bits", "256"}},
      {"window_left", Sample::dense, CHANGE(a.window_left = -2), {"window_left must be at least -1", "-2"}},
      {"window_right", Sample::dense, CHANGE(a.window_right = -9), {"window_right must be at least -1", "-9"}},
      {"scale_nan", Sample::dense, CHANGE(a.softmax_scale = kNan), {"softmax_scale must be finite", "nan"}},
      {"scale_inf", Sample::dense, CHANGE(a.softmax_scale = -kInf), {"softmax_scale must be finite", "-inf"}},
      {"softcap_negative", Sample::dense, CHANGE(a.softcap = -1), {"softcap must be finite and at least 0", "-1"}},
      {"softcap_nan", Sample::dense, CHANGE(a.softcap = kNan), {"softcap must be finite"}},
      {"softcap_inf", Sample::dense, CHANGE(a.softcap = kInf), {"softcap must be finite"}},
      {"dropout_one", Sample::dense, CHANGE(a.dropout_p = 1), {"dropout_p must be in [0, 1)", "got 1"}},
      {"dropout_negative", Sample::dense, CHANGE(a.dropout_p = -0.5f), {"dropout_p must be in [0, 1)"}},
      {"dropout_nan", Sample::dense, CHANGE(a.dropout_p = kNan), {"dropout_p must be in [0, 1)"}},
      {"splits", Sample::dense, CHANGE(a.num_splits = 257), {"num_splits must be in [0, 256]", "257"}},
      {"splits_negative", Sample::dense, CHANGE(a.num_splits = -1), {"num_splits must be in [0, 256]"}},
      {"alibi_stride", Sample::backward, CHANGE(a.alibi_batch_stride = -4), {"alibi_batch_stride must be at least 0"}},
      // Presence.
      {"q", Sample::dense, CHANGE(a.q.data = nullptr), {"q.data must not be NULL"}},
      {"k", Sample::dense, CHANGE(a.k.data = nullptr), {"k.data must not be NULL"}},
      {"v", Sample::dense, CHANGE(a.v.data = nullptr), {"v.data must not be NULL"}},
      {"o", Sample::dense, CHANGE(a.o.data = nullptr), {"o.data must not be NULL"}},
      {"k_new", Sample::appended, CHANGE(a.k_new.data = nullptr), {"k_new.data must not be NULL"}},
      {"v_new", Sample::appended, CHANGE(a.v_new.data = nullptr), {"v_new.data must not be NULL"}},
      {"lse_backward", Sample::backward, CHANGE(a.lse.data = nullptr), {"lse.data must not be NULL"}},
      {"o_backward", Sample::backward, CHANGE(a.o.data = nullptr), {"o.data must not be NULL"}},
      {"d_o", Sample::backward, CHANGE(g.d_o.data = nullptr), {"d_o.data must not be NULL"}},
      // Types.
      {"q_dtype", Sample::dense, CHANGE(a.q.dtype = FW_DTYPE_NONE), {"q.dtype must be FW_F16, FW_BF16 or FW_F32"}},
      {"q_dtype_unknown", Sample::dense, CHANGE(a.q.dtype = 77), {"q.dtype must be", "77"}},
      {"k_dtype", Sample::dense, CHANGE(a.k.dtype = FW_F16), {"k.dtype must be that of q, FW_BF16", "FW_F16"}},
      {"v_dtype", Sample::dense, CHANGE(a.v.dtype = FW_F32), {"v.dtype must be that of q"}},
      {"o_dtype", Sample::dense, CHANGE(a.o.dtype = FW_F16), {"o.dtype must be FW_F32 or that of q"}},
      {"lse_dtype", Sample::dense, CHANGE(a.lse.dtype = FW_BF16), {"lse.dtype must be FW_F32"}},
      {"bias_dtype", Sample::backward, CHANGE(a.bias.dtype = FW_F16), {"bias.dtype must be FW_F32 or that of q"}},
      {"probs_dtype", Sample::dense, CHANGE(a.probs = s.tensor(2, 4, 4, 6, FW_BF16)), {"probs.dtype must be FW_F32"}},
      {"k_new_dtype", Sample::appended, CHANGE(a.k_new.dtype = FW_F16), {"k_new.dtype must be that of q"}},
      {"v_new_dtype", Sample::appended, CHANGE(a.v_new.dtype = FW_F16), {"v_new.dtype must be that of q"}},
      {"cos_dtype", Sample::appended, CHANGE(a.rotary_cos.dtype = FW_F16), {"rotary_cos.dtype must be FW_F32 or"}},
      {"sin_dtype", Sample::appended, CHANGE(a.rotary_sin.dtype = 0), {"rotary_sin.dtype must be FW_F32 or"}},
      {"d_o_dtype", Sample::backward, CHANGE(g.d_o.dtype = FW_F16), {"d_o.dtype must be that of q"}},
      {"d_lse_dtype", Sample::backward, CHANGE(g.d_lse.dtype = FW_F16), {"d_lse.dtype must be FW_F32"}},
      {"dq_dtype", Sample::backward, CHANGE(g.dq.dtype = FW_F16), {"dq.dtype must be FW_F32 or that of q"}},
      {"dk_dtype", Sample::backward, CHANGE(g.dk.dtype = FW_F16), {"dk.dtype must be FW_F32 or that of q"}},
      {"dv_dtype", Sample::backward, CHANGE(g.dv.dtype = FW_F16), {"dv.dtype must be FW_F32 or that of q"}},
      // Pieces.
      {"accumulate_dtype", Sample::dense, CHANGE(a.flags = FW_ACCUMULATE), {"o.dtype must be FW_F32", "FW_ACCUMULATE"}},
      {"accumulate_lse",
       Sample::dense,
       CHANGE(a.flags = FW_ACCUMULATE; a.o = s.tensor(2, 4, 4, 8, FW_F32); a.lse = {}),
       {"lse must be given"}},
      {"accumulate_probs",
       Sample::dense,
       CHANGE(a.flags = FW_ACCUMULATE; a.o = s.tensor(2, 4, 4, 8, FW_F32); a.probs = s.tensor(2, 4, 4, 6, FW_F32)),
       {"probs cannot be used with FW_ACCUMULATE"}},
      {"accumulate_dq",
       Sample::backward,
       CHANGE(a.flags = FW_ACCUMULATE),
       {"dq.dtype must be FW_F32 with FW_ACCUMULATE"}},
      {"accumulate_dv",
       Sample::backward,
       CHANGE(a.flags = FW_ACCUMULATE; g.dq = g.dk = {}),
       {"dv.dtype must be FW_F32 with FW_ACCUMULATE"}},
      {"position_without_flag", Sample::dense, CHANGE(a.position_q = 1), {"position_q must be 0 without FW_POSITIONS"}},
      {"position_negative",
       Sample::dense,
       CHANGE(a.flags = FW_POSITIONS; a.position_k = -1),
       {"position_k must be in"}},
      {"position_far",
       Sample::dense,
       CHANGE(a.flags = FW_POSITIONS; a.position_k = INT32_MAX - 5),
       {"position_k must be in [0, 2147483641]"}},
      {"dropout_heads", Sample::dense, CHANGE(a.dropout_heads = 3), {"dropout_heads must be 0 or at least heads_q"}},
      {"dropout_first", Sample::dense, CHANGE(a.dropout_first = -1), {"dropout_first must be in [0"}},
      {"d_bias_dtype", Sample::backward, CHANGE(g.d_bias.dtype = FW_F16), {"d_bias.dtype must be FW_F32 or"}},
      // Strides and addresses.
      {"q_reserved", Sample::dense, CHANGE(a.q.reserved = 1), {"q.reserved must be 0, got 1"}},
      {"gradients_reserved", Sample::backward, CHANGE(g.reserved = 5), {"gradients.reserved must be 0, got 5"}},
      {"q_dim_stride",
       Sample::dense,
       CHANGE(a.q.stride[3] = 2),
       {"q.stride[3] must be 1 (the head dimension is contiguous), got 2"}},
      {"o_dim_stride", Sample::dense, CHANGE(a.o.stride[3] = 0), {"o.stride[3] must be 1", "got 0"}},
      {"cos_stride", Sample::appended, CHANGE(a.rotary_cos.stride[1] = 2), {"rotary_cos.stride[1] must be 1"}},
      {"negative_stride", Sample::dense, CHANGE(a.k.stride[1] = -16), {"k.stride[1] must not be negative, got -16"}},
      {"stride_overflow",
       Sample::dense,
       CHANGE(a.k.stride[0] = std::numeric_limits<int64_t>::max()),
       {"k.stride", "does not fit in 64 bits"}},
      {"stride_overflow_bytes", Sample::dense, CHANGE(a.k.stride[0] = int64_t{1} << 62), {"k.stride", "64 bits"}},
      {"address_space",
       Sample::dense,
       CHANGE(a.k.data = reinterpret_cast<void*>(UINTPTR_MAX - 63)),
       {"k.stride", "past the end of the address space"}},
      {"alignment",
       Sample::dense,
       CHANGE(a.v.data = static_cast<char*>(a.v.data) + 1),
       {"v.data must be aligned to its element size of 2 bytes"}},
      {"lse_alignment",
       Sample::dense,
       CHANGE(a.lse.data = static_cast<char*>(a.lse.data) + 2),
       {"lse.data must be aligned to its element size of 4 bytes"}},
      {"index_alignment",
       Sample::cached,
       CHANGE(a.seqused_k = reinterpret_cast<const int32_t*>(reinterpret_cast<const char*>(a.seqused_k) + 2)),
       {"seqused_k must be aligned", "4 bytes"}},
      {"sinks_alignment",
       Sample::backward,
       CHANGE(a.sinks = reinterpret_cast<const float*>(reinterpret_cast<const char*>(a.sinks) + 1)),
       {"sinks must be aligned"}},
      // Cache and append.
      {"page_size", Sample::dense, CHANGE(a.page_size = 16), {"page_size must be 0 without block_table, got 16"}},
      {"page_size_zero", Sample::paged, CHANGE(a.page_size = 0), {"page_size must be at least 1 with block_table"}},
      {"pages", Sample::paged, CHANGE(a.batch_k = 0), {"batch_k must be the number of pages"}},
      {"table_stride", Sample::paged, CHANGE(a.block_table_stride = 1), {"block_table_stride must be at least 2"}},
      {"idx_paged",
       Sample::paged,
       CHANGE(a.cache_batch_idx = s.indices({0, 1})),
       {"cache_batch_idx cannot be used with block_table"}},
      {"idx_varlen",
       Sample::varlen,
       CHANGE(a.cache_batch_idx = s.indices({0, 1})),
       {"cache_batch_idx cannot be used with cu_seqlens_k"}},
      {"append_varlen",
       Sample::appended,
       CHANGE(a.cache_batch_idx = nullptr; a.batch_k = 0; a.cu_seqlens_k = s.indices({0, 6, 12}); a.total_k = 12),
       {"seqlen_new > 0 cannot be used with cu_seqlens_k"}},
      {"append_seqused", Sample::appended, CHANGE(a.seqused_k = nullptr), {"seqused_k must be given with seqlen_new"}},
      {"append_room", Sample::appended, CHANGE(a.seqlen_new = 7), {"seqlen_new must be at most seqlen_k", "7 and 6"}},
      {"k_new_alone", Sample::dense, CHANGE(a.k_new = a.k), {"k_new is given but seqlen_new is 0"}},
      {"v_new_alone", Sample::dense, CHANGE(a.v_new = a.v), {"v_new is given but seqlen_new is 0"}},
      {"rotary_alone",
       Sample::appended,
       CHANGE(a.seqlen_new = 0; a.k_new.data = nullptr; a.v_new.data = nullptr),
       {"rotary_cos needs seqlen_new > 0"}},
      {"cos_alone", Sample::appended, CHANGE(a.rotary_sin.data = nullptr), {"rotary_sin must be given"}},
      {"sin_alone", Sample::appended, CHANGE(a.rotary_cos.data = nullptr), {"rotary_cos must be given"}},
      {"rotary_odd", Sample::appended, CHANGE(a.rotary_dim = 3), {"rotary_dim must be even", "got 3"}},
      {"rotary_zero", Sample::appended, CHANGE(a.rotary_dim = 0), {"rotary_dim must be even and in [2, dim_qk]"}},
      {"rotary_wide", Sample::appended, CHANGE(a.rotary_dim = 10), {"rotary_dim must be", "[2, dim_qk]", "got 10"}},
      {"rotary_short", Sample::appended, CHANGE(a.rotary_seqlen = 1), {"rotary_seqlen must be at least seqlen_new"}},
      {"rotary_dim_alone", Sample::dense, CHANGE(a.rotary_dim = 4), {"rotary_dim must be 0 without rotary_cos"}},
      {"rotary_seqlen_alone", Sample::dense, CHANGE(a.rotary_seqlen = 4), {"rotary_seqlen must be 0 without"}},
      // Backward.
      {"bwd_append", Sample::backward, CHANGE(a.seqlen_new = 1), {"seqlen_new must be 0 in a backward"}},
      {"bwd_paged",
       Sample::backward,
       CHANGE(a.block_table = s.indices({0, 1}); a.block_table_stride = 1; a.page_size = 8; a.batch_k = 2),
       {"block_table cannot be used in a backward"}},
      {"bwd_idx",
       Sample::backward,
       CHANGE(a.cache_batch_idx = s.indices({0, 1})),
       {"cache_batch_idx cannot be used in a backward"}},
      {"bwd_probs",
       Sample::backward,
       CHANGE(a.probs = s.tensor(2, 4, 4, 6, FW_F32)),
       {"probs is an output of the forw"}},
      {"d_bias_alone", Sample::backward, CHANGE(a.bias.data = nullptr), {"d_bias needs bias"}},
      {"d_sinks_alone", Sample::backward, CHANGE(a.sinks = nullptr), {"d_sinks needs sinks"}},
      {"d_slopes_alone", Sample::backward, CHANGE(a.alibi_slopes = nullptr), {"d_slopes needs alibi_slopes"}},
      {"d_slopes_stride",
       Sample::backward,
       CHANGE(a.alibi_batch_stride = 3),
       {"alibi_batch_stride must be 0 or at least heads_q with d_slopes, got 3"}},
      {"d_bias_broadcast",
       Sample::backward,
       CHANGE(g.d_bias.stride[0] = 96),
       {"d_bias.stride[0] must be 0 exactly where bias.stride is 0, got 96 and 0"}},
      {"d_bias_sum", Sample::backward, CHANGE(g.d_bias.stride[1] = 0), {"d_bias.stride[1] must be 0 exactly where"}},
      {"d_bias_sum_of_none",
       Sample::backward,
       CHANGE(a.seqlen_k = 0; g.d_bias.stride[3] = 0),
       {"d_bias.stride[3] must be 0 exactly where"}},
      {"no_output",
       Sample::backward,
       CHANGE(g.dq.data = g.dk.data = g.dv.data = g.d_bias.data = nullptr; g.d_sinks = g.d_slopes = nullptr),
       {"dq, dk, dv", "at least one output"}},
  };
  return all;
}

class Rules : public testing::TestWithParam<size_t> {};
TEST_P(Rules, AreEnforced) { expect_refused(rules()[GetParam()]); }
INSTANTIATE_TEST_SUITE_P(All, Rules, testing::Range<size_t>(0, rules().size()),
                         [](const auto& instance) { return std::string(rules()[instance.param].name); });

void expect_valid(const char* what, Sample sample, const std::function<void(Sample&)>& change = {}) {
  SCOPED_TRACE(what);
  if (change) change(sample);
  const Status status = validate(sample.p, true);
  EXPECT_TRUE(status.ok()) << status.message;
}

TEST(Accepted, EverySample) {
  expect_valid("dense", Sample::dense());
  expect_valid("varlen", Sample::varlen());
  expect_valid("cached", Sample::cached());
  expect_valid("paged", Sample::paged());
  expect_valid("appended", Sample::appended());
  expect_valid("backward", Sample::backward());
  expect_valid("varlen_backward", Sample::varlen_backward());
}

TEST(Accepted, ZeroSizesNeedNoPointers) {
  expect_valid("no batch", Sample::dense(), CHANGE(a.batch = 0; a.q.data = a.k.data = a.v.data = a.o.data = nullptr));
  expect_valid("no queries", Sample::dense(), CHANGE(a.seqlen_q = 0; a.q.data = a.o.data = a.lse.data = nullptr));
  expect_valid("no keys", Sample::dense(), CHANGE(a.seqlen_k = 0; a.k.data = a.v.data = nullptr));
  expect_valid("no rows", Sample::varlen(),
               CHANGE(a.total_q = a.total_k = 0; a.cu_seqlens_q = s.indices({0, 0, 0});
                      a.cu_seqlens_k = s.indices({0, 0, 0}); a.q.data = a.k.data = a.v.data = a.o.data = nullptr));
  expect_valid("no sequence", Sample::varlen(),
               CHANGE(a.batch = 0; a.total_q = a.total_k = 0; a.q.data = a.k.data = a.v.data = a.o.data = nullptr));
  expect_valid("backward of nothing", Sample::backward(),
               CHANGE(a.seqlen_q = 0; a.q.data = a.o.data = a.lse.data = nullptr;
                      g.d_o.data = g.dq.data = g.dk.data = g.dv.data = g.d_bias.data = g.d_lse.data = nullptr;
                      g.d_sinks = g.d_slopes = nullptr));
}

TEST(Accepted, Extremes) {
  expect_valid("auto scale", Sample::dense(), CHANGE(a.softmax_scale = FW_SCALE_AUTO));
  expect_valid("zero scale", Sample::dense(), CHANGE(a.softmax_scale = 0));
  expect_valid("wide window", Sample::dense(), CHANGE(a.window_left = a.window_right = INT64_MAX));
  expect_valid("splits", Sample::dense(), CHANGE(a.num_splits = 256));
  expect_valid("dropout", Sample::dense(), CHANGE(a.dropout_p = 0.99999f));
  expect_valid("all flags", Sample::dense(), CHANGE(a.flags = FW_ALL_FLAGS; a.o = s.tensor(2, 4, 4, 8, FW_F32)));
  expect_valid("far positions", Sample::dense(), CHANGE(a.flags = FW_POSITIONS; a.position_q = INT32_MAX - 4));
  expect_valid("no lse", Sample::dense(), CHANGE(a.lse.data = nullptr; a.lse.dtype = 0));
  expect_valid("cos like q", Sample::appended(), CHANGE(a.rotary_cos.dtype = FW_BF16));
  expect_valid("explicit batch_k", Sample::dense(), CHANGE(a.batch_k = 2));
  expect_valid("only dq", Sample::backward(),
               CHANGE(g.dk.data = g.dv.data = g.d_bias.data = nullptr; g.d_sinks = g.d_slopes = nullptr));
  expect_valid("shared slopes", Sample::backward(), CHANGE(a.alibi_batch_stride = 0));
  // A stride that no index uses may be anything.
  expect_valid("unused strides", Sample::dense(), CHANGE(a.lse.stride[3] = -7; a.seqlen_q = 1; a.q.stride[1] = -1));
  expect_valid("dim of one", Sample::dense(), CHANGE(a.dim_v = 1; a.v.stride[3] = 9; a.o.stride[3] = 0));
  expect_valid("broadcast keys", Sample::dense(), CHANGE(a.k.stride[0] = a.v.stride[0] = 0; a.k.stride[2] = 0));
}

TEST(Accepted, StructRulesLookAtNoAddress) {
  Sample s = Sample::paged();
  fw_attention& a = s.p.a;
  void* const fake = reinterpret_cast<void*>(uintptr_t{1});
  for (fw_tensor* t : {&a.q, &a.k, &a.v, &a.o, &a.lse}) t->data = fake;
  a.block_table = a.seqused_k = a.leftpad_k = static_cast<const int32_t*>(fake);
  EXPECT_TRUE(validate_structs(s.p).ok());
  EXPECT_FALSE(validate(s.p, false).ok());
}

}  // namespace
}  // namespace flashwave::test
