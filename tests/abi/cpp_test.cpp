// flashwave.hpp as a user's program sees it.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "flashwave/flashwave.hpp"

namespace {

constexpr int64_t kRows = 5, kHeadsQ = 4, kHeadsK = 2, kDim = 8;

std::vector<float> filled(int64_t count, float phase) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(phase + 0.7f * static_cast<float>(i));
  return values;
}

struct Case {
  std::vector<float> q = filled(kRows * kHeadsQ * kDim, 0), k = filled(kRows * kHeadsK * kDim, 1),
                     v = filled(kRows * kHeadsK * kDim, 2), o = std::vector<float>(q.size());
  fw::Attention problem() {
    return fw::Attention(fw::Tensor::bshd(q.data(), FW_F32, 1, kRows, kHeadsQ, kDim),
                         fw::Tensor::bshd(k.data(), FW_F32, 1, kRows, kHeadsK, kDim),
                         fw::Tensor::bshd(v.data(), FW_F32, 1, kRows, kHeadsK, kDim),
                         fw::Tensor::bshd(o.data(), FW_F32, 1, kRows, kHeadsQ, kDim));
  }
};

TEST(Cpp, ForwardOfBothLayoutsAgrees) {
  const fw::Device device = fw::Device::open("cpu");
  Case c;
  fw::Attention problem = c.problem();
  std::vector<float> lse(kRows * kHeadsQ);
  problem.causal().scale(0.5f).with_lse(lse.data());
  fw::forward(device, problem);
  for (int64_t i = 0; i < kHeadsQ * kDim; ++i) {
    const int64_t head_k = i / kDim / (kHeadsQ / kHeadsK);
    EXPECT_NEAR(c.o[static_cast<size_t>(i)], c.v[static_cast<size_t>(head_k * kDim + i % kDim)], 1e-6f);
  }

  const auto transposed = [](const std::vector<float>& from, int64_t heads) {
    std::vector<float> to(from.size());
    for (int64_t s = 0; s < kRows; ++s)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t d = 0; d < kDim; ++d)
          to[static_cast<size_t>((h * kRows + s) * kDim + d)] = from[static_cast<size_t>((s * heads + h) * kDim + d)];
    return to;
  };
  std::vector<float> q = transposed(c.q, kHeadsQ), k = transposed(c.k, kHeadsK), v = transposed(c.v, kHeadsK),
                     o(q.size());
  fw::Attention other(fw::Tensor::bhsd(q.data(), FW_F32, 1, kHeadsQ, kRows, kDim),
                      fw::Tensor::bhsd(k.data(), FW_F32, 1, kHeadsK, kRows, kDim),
                      fw::Tensor::bhsd(v.data(), FW_F32, 1, kHeadsK, kRows, kDim),
                      fw::Tensor::bhsd(o.data(), FW_F32, 1, kHeadsQ, kRows, kDim));
  other.causal().scale(0.5f);
  fw::forward(device, other);
  EXPECT_EQ(o, transposed(c.o, kHeadsQ)) << "strides do not change the arithmetic";
}

TEST(Cpp, BackwardOfPackedHeads) {
  const fw::Device device = fw::Device::open("cpu");
  std::vector<float> packed = filled(kRows * 3 * kDim, 0), gradient(packed.size(), NAN), o(kRows * kDim),
                     d_o = filled(kRows * kDim, 3), lse(kRows);
  const fw::Tensor qkv = fw::Tensor::bshd(packed.data(), FW_F32, 1, kRows, 3, kDim);
  const fw::Tensor dqkv = fw::Tensor::bshd(gradient.data(), FW_F32, 1, kRows, 3, kDim);
  const fw::Tensor out = fw::Tensor::bshd(o.data(), FW_F32, 1, kRows, 1, kDim);
  fw::Attention problem(qkv.slice_heads(0, 1), qkv.slice_heads(1, 1), qkv.slice_heads(2, 1), out);
  problem.with_lse(lse.data());
  fw::forward(device, problem);
  const fw::Gradients gradients(fw::Tensor::bshd(d_o.data(), FW_F32, 1, kRows, 1, kDim), dqkv.slice_heads(0, 1),
                                dqkv.slice_heads(1, 1), dqkv.slice_heads(2, 1));
  fw::backward(device, problem, gradients);
  for (const float g : gradient) EXPECT_TRUE(std::isfinite(g));
  for (int64_t d = 0; d < kDim; ++d) {  // softmax rows sum to 1: so do the columns of dv over the keys
    float sum = 0, expected = 0;
    for (int64_t s = 0; s < kRows; ++s) {
      sum += gradient[static_cast<size_t>((s * 3 + 2) * kDim + d)];
      expected += d_o[static_cast<size_t>(s * kDim + d)];
    }
    EXPECT_NEAR(sum, expected, 1e-5f);
  }
}

TEST(Cpp, VarlenSequencesAreApart) {
  const fw::Device device = fw::Device::open("cpu");
  std::vector<float> q = filled(kRows * kDim, 0), k = filled(kRows * kDim, 1), v = filled(kRows * kDim, 2), o(q.size());
  const int32_t offsets[] = {0, 1, 5};
  fw::Attention problem(
      fw::Tensor::packed(q.data(), FW_F32, kRows, 1, kDim), fw::Tensor::packed(k.data(), FW_F32, kRows, 1, kDim),
      fw::Tensor::packed(v.data(), FW_F32, kRows, 1, kDim), fw::Tensor::packed(o.data(), FW_F32, kRows, 1, kDim));
  problem.varlen(2, offsets, offsets, 4, 4);
  fw::forward(device, problem);
  for (size_t d = 0; d < kDim; ++d) EXPECT_NEAR(o[d], v[d], 1e-6f);
  EXPECT_EQ(fw::cost(device, problem).flops, 2.0 * 2 * kDim * (1 + 16));
}

TEST(Cpp, RotaryEmbeddingTurnsAndTurnsBack) {
  const fw::Device device = fw::Device::open("cpu");
  const std::vector<float> before = filled(kRows * kHeadsQ * kDim, 0), angles = filled(kRows * kDim / 2, 1);
  std::vector<float> x = before, cos(angles.size()), sin(angles.size());
  for (size_t i = 0; i < angles.size(); ++i) cos[i] = std::cos(angles[i]), sin[i] = std::sin(angles[i]);
  const fw::Tensor view = fw::Tensor::bshd(x.data(), FW_F32, 1, kRows, kHeadsQ, kDim);
  fw::RotaryEmbedding embedding(view, view, cos.data(), sin.data(), kRows, kDim / 2);
  fw::rotary(device, embedding);
  EXPECT_NEAR(x[0], before[0] * cos[0] - before[kDim / 2] * sin[0], 1e-6f);
  embedding.flags = FW_ROTARY_CONJUGATE;
  fw::rotary(device, embedding);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], before[i], 1e-6f);
  EXPECT_THROW(fw::RotaryEmbedding(view, view.slice_heads(0, 1), cos.data(), sin.data(), kRows, 4), fw::Error);
}

TEST(Cpp, ErrorsCarryTheStatusAndTheRule) {
  Case c;
  fw::Attention problem = c.problem();
  problem.dropout(1.5f, 0);
  try {
    fw::forward(fw::Device::open("cpu"), problem);
    FAIL() << "no exception";
  } catch (const fw::Error& error) {
    EXPECT_EQ(error.status(), FW_INVALID_ARGUMENT);
    EXPECT_STREQ(error.what(), "FW_INVALID_ARGUMENT: dropout_p must be in [0, 1), got 1.5");
  }
  EXPECT_THROW(fw::Device::open("nowhere"), fw::Error);
  EXPECT_THROW(
      fw::Attention(fw::Tensor::bshd(nullptr, FW_F32, 1, 2, 2, 8), fw::Tensor::bshd(nullptr, FW_F32, 1, 2, 2, 4),
                    fw::Tensor::bshd(nullptr, FW_F32, 1, 2, 2, 8), fw::Tensor::bshd(nullptr, FW_F32, 1, 2, 2, 8)),
      fw::Error);
}

TEST(Cpp, DeviceAndBuffers) {
  const std::vector<fw::Device> devices = fw::Device::all();
  ASSERT_FALSE(devices.empty());
  EXPECT_STREQ(devices[0].info().name, "cpu");
  EXPECT_FALSE(devices[0].kernels().empty());
  fw::Buffer buffer = devices[0].alloc(16);
  const int32_t in[4] = {1, 2, 3, 4};
  int32_t out[4] = {};
  buffer.upload(in, sizeof in);
  fw::Buffer moved = std::move(buffer);
  moved.download(out, sizeof out);
  EXPECT_EQ(out[3], 4);
  EXPECT_THROW(moved.download(out, 17), fw::Error);
  EXPECT_THROW(devices[0].counters(), fw::Error) << "emulated devices alone count";
}

TEST(Cpp, WorkspaceAndExplain) {
  const fw::Device device = fw::Device::open("cpu");
  Case c;
  const fw::Attention problem = c.problem();
  const size_t bytes = fw::workspace_size(device, problem);
  fw::Exec exec;
  fw_report report{};
  report.struct_size = sizeof report;
  exec.report = &report;
  fw::forward(device, problem, &exec);
  EXPECT_EQ(report.workspace_size, bytes);
  const std::string text = fw::explain(device, problem);
  EXPECT_NE(text.find(report.kernel), std::string::npos) << text;
  EXPECT_NE(text.find("b=1 sq=5 sk=5 hq=4 hk=2 d=8 dtype=f32"), std::string::npos) << text;
  EXPECT_EQ(fw::explain(device, problem, nullptr, FW_JSON).front(), '{');
  fw::Buffer workspace = device.alloc(bytes + 64);
  exec.workspace = workspace.data();
  exec.workspace_size = bytes;
  if (bytes > 0) {
    fw::forward(device, problem, &exec);
    exec.workspace_size = bytes - 1;
    try {
      fw::forward(device, problem, &exec);
      FAIL() << "no exception";
    } catch (const fw::Error& error) {
      EXPECT_EQ(error.status(), FW_WORKSPACE_TOO_SMALL);
    }
  }
}

}  // namespace
