#include "sample.h"

#include <gtest/gtest.h>

#include "problem/validate.h"

namespace flashwave::test {

int32_t* Sample::indices(std::vector<int32_t> values) {
  memory_.push_back(std::move(values));
  return memory_.back().data();
}

float* Sample::floats(size_t count) {
  memory_.emplace_back(count);
  return reinterpret_cast<float*>(memory_.back().data());
}

fw_tensor Sample::tensor(int64_t a, int64_t b, int64_t c, int64_t d, fw_dtype dtype) {
  fw_tensor t{};
  memory_.emplace_back(static_cast<size_t>(a * b * c * d));
  t.data = memory_.back().data();
  t.stride[0] = b * c * d;
  t.stride[1] = c * d;
  t.stride[2] = d;
  t.stride[3] = 1;
  t.dtype = dtype;
  return t;
}

Sample Sample::dense() {
  Sample s;
  fw_attention& a = s.p.a;
  a.struct_size = sizeof a;
  a.softmax_scale = FW_SCALE_AUTO;
  a.window_left = a.window_right = -1;
  a.batch = 2, a.seqlen_q = 4, a.seqlen_k = 6, a.heads_q = 4, a.heads_k = 2, a.dim_qk = a.dim_v = 8;
  a.q = s.tensor(2, 4, 4, 8, FW_BF16);
  a.k = s.tensor(2, 6, 2, 8, FW_BF16);
  a.v = s.tensor(2, 6, 2, 8, FW_BF16);
  a.o = s.tensor(2, 4, 4, 8, FW_BF16);
  a.lse = s.tensor(2, 4, 4, 1, FW_F32);
  return s;
}

namespace {

Sample ragged(Sample s) {
  fw_attention& a = s.p.a;
  a.cu_seqlens_q = s.indices({0, 1, 5});
  a.cu_seqlens_k = s.indices({0, 6, 8});
  a.total_q = 5, a.total_k = 8;
  return s;
}

}  // namespace

Sample Sample::varlen() { return ragged(dense()); }

Sample Sample::cached() {
  Sample s = dense();
  fw_attention& a = s.p.a;
  a.batch_k = 3;
  a.k = s.tensor(3, 6, 2, 8, FW_BF16);
  a.v = s.tensor(3, 6, 2, 8, FW_BF16);
  a.cache_batch_idx = s.indices({2, 0});
  a.seqused_k = s.indices({3, 4});
  a.leftpad_k = s.indices({0, 1});
  return s;
}

Sample Sample::paged() {
  Sample s = cached();
  fw_attention& a = s.p.a;
  a.cache_batch_idx = nullptr;
  a.page_size = 4, a.batch_k = 5;
  a.k = s.tensor(5, 4, 2, 8, FW_BF16);
  a.v = s.tensor(5, 4, 2, 8, FW_BF16);
  a.block_table = s.indices({4, 0, 2, 3});
  a.block_table_stride = 2;
  return s;
}

Sample Sample::appended() {
  Sample s = cached();
  fw_attention& a = s.p.a;
  a.seqlen_new = 2;
  a.k_new = s.tensor(2, 2, 2, 8, FW_BF16);
  a.v_new = s.tensor(2, 2, 2, 8, FW_BF16);
  a.rotary_seqlen = 8, a.rotary_dim = 4;
  for (fw_tensor* t : {&a.rotary_cos, &a.rotary_sin}) {
    *t = s.tensor(8, 2, 1, 1, FW_F32);
    t->stride[0] = 2, t->stride[1] = 1;
  }
  return s;
}

Sample Sample::backward() {
  Sample s = dense();
  fw_attention& a = s.p.a;
  fw_gradients& g = s.p.g;
  s.p.backward = true;
  g.struct_size = sizeof g;
  a.bias = s.tensor(2, 4, 4, 6, FW_F32);
  a.bias.stride[0] = 0;
  a.sinks = s.floats(4);
  a.alibi_slopes = s.floats(8);
  a.alibi_batch_stride = 4;
  g.d_o = s.tensor(2, 4, 4, 8, FW_BF16);
  g.d_lse = s.tensor(2, 4, 4, 1, FW_F32);
  g.dq = s.tensor(2, 4, 4, 8, FW_BF16);
  g.dk = s.tensor(2, 6, 2, 8, FW_BF16);
  g.dv = s.tensor(2, 6, 2, 8, FW_BF16);
  g.d_bias = s.tensor(1, 4, 4, 6, FW_F32);
  g.d_bias.stride[0] = 0;
  g.d_sinks = s.floats(4);
  g.d_slopes = s.floats(8);
  return s;
}

Sample Sample::varlen_backward() { return ragged(backward()); }

void expect_refused(const BrokenRule& rule) {
  SCOPED_TRACE(rule.name);
  Sample sample = rule.sample();
  const Status before = validate(sample.p, true);
  ASSERT_TRUE(before.ok()) << "before the change: " << before.message;
  rule.change(sample);
  const Status after = validate(sample.p, true);
  EXPECT_EQ(after.code, FW_INVALID_ARGUMENT);
  for (const std::string& part : rule.message) {
    EXPECT_NE(after.message.find(part), std::string::npos) << "'" << part << "' is not in: " << after.message;
  }
}

}  // namespace flashwave::test
