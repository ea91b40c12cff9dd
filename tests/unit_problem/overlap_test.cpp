// Tensors that share a buffer: packed layouts pass, real overlaps do not.
#include "problem/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "problem/validate.h"
#include "sample.h"

namespace flashwave::test {
namespace {

void expect_overlap(Sample s, const std::string& message) {
  const Status status = validate(s.p, true);
  EXPECT_EQ(status.code, FW_INVALID_ARGUMENT);
  EXPECT_NE(status.message.find(message), std::string::npos) << status.message;
}

fw_tensor moved(const fw_tensor& tensor, int64_t elements) {
  fw_tensor t = tensor;
  t.data = static_cast<char*>(tensor.data) + elements * (t.dtype == FW_F32 ? 4 : 2);
  return t;
}

TEST(Overlap, OutputsMayNotAliasInputs) {
  Sample s = Sample::dense();
  s.p.a.o.data = s.p.a.q.data;
  expect_overlap(std::move(s), "o overlaps q");
  Sample partly = Sample::dense();
  partly.p.a.o = moved(partly.p.a.q, 255);  // the last element of q
  expect_overlap(std::move(partly), "o overlaps q");
  Sample gradient = Sample::backward();
  gradient.p.g.dq.data = gradient.p.a.q.data;
  expect_overlap(std::move(gradient), "dq overlaps q");
  Sample outputs = Sample::backward();
  outputs.p.g.dv.data = outputs.p.g.dk.data;
  expect_overlap(std::move(outputs), "dv overlaps dk");
  Sample lse = Sample::dense();
  lse.p.a.lse.data = lse.p.a.v.data;
  expect_overlap(std::move(lse), "lse overlaps v");
  Sample index = Sample::cached();
  index.p.a.seqused_k = static_cast<const int32_t*>(index.p.a.o.data);
  expect_overlap(std::move(index), "o overlaps seqused_k");
  Sample sinks = Sample::backward();
  sinks.p.g.d_sinks = const_cast<float*>(sinks.p.a.sinks);
  expect_overlap(std::move(sinks), "d_sinks overlaps sinks");
}

TEST(Overlap, AppendWritesTheCache) {
  Sample s = Sample::appended();
  s.p.a.v.data = s.p.a.k.data;
  expect_overlap(std::move(s), "v overlaps k");
  Sample fresh = Sample::appended();
  fresh.p.a.k_new = moved(fresh.p.a.k, 0);
  expect_overlap(std::move(fresh), "k overlaps k_new");
  Sample shared = Sample::dense();
  shared.p.a.v = shared.p.a.k;  // only read: fine
  EXPECT_TRUE(validate(shared.p, true).ok());
}

TEST(Overlap, OutputElementsAreDistinct) {
  Sample s = Sample::dense();
  s.p.a.o.stride[1] = 0;
  expect_overlap(std::move(s), "o.stride[1]");
  Sample near = Sample::dense();
  near.p.a.o.stride[2] = 7;
  expect_overlap(std::move(near), "o.stride[2] must be at least 8");
  Sample cache = Sample::appended();
  cache.p.a.k.stride[0] = 0;
  expect_overlap(std::move(cache), "k.stride[0]");
  Sample probs = Sample::dense();
  probs.p.a.probs = probs.tensor(2, 4, 4, 6, FW_F32);
  probs.p.a.probs.stride[0] = 0;
  expect_overlap(std::move(probs), "probs.stride[0]");
}

// qkv as (batch, seq, q heads + 2 * kv heads, dim), the gradients likewise.
TEST(Overlap, PackedGradientsAreAccepted) {
  Sample s = Sample::backward();
  fw_attention& a = s.p.a;
  a.seqlen_k = 4;
  a.bias = s.tensor(1, 4, 4, 4, FW_F32);
  s.p.g.d_bias = s.tensor(1, 4, 4, 4, FW_F32);
  a.bias.stride[0] = s.p.g.d_bias.stride[0] = 0;
  const fw_tensor packed = s.tensor(2, 4, 8, 8, FW_BF16), gradient = s.tensor(2, 4, 8, 8, FW_BF16);
  a.q = packed, a.k = moved(packed, 4 * 8), a.v = moved(packed, 6 * 8);
  s.p.g.dq = gradient, s.p.g.dk = moved(gradient, 4 * 8), s.p.g.dv = moved(gradient, 6 * 8);
  const Status status = validate(s.p, true);
  EXPECT_TRUE(status.ok()) << status.message;
  s.p.g.dv = moved(gradient, 6 * 8 - 1);
  expect_overlap(std::move(s), "dv overlaps dk");
}

// A cache of (pages, 2, page, heads, dim): k and v of a page one after the other.
TEST(Overlap, PackedCacheIsAccepted) {
  Sample s = Sample::paged();
  fw_attention& a = s.p.a;
  a.seqlen_new = 2;
  a.k_new = s.tensor(2, 2, 2, 8, FW_BF16);
  a.v_new = s.tensor(2, 2, 2, 8, FW_BF16);
  fw_tensor cache = s.tensor(5, 2 * 4, 2, 8, FW_BF16);
  a.k = cache;
  a.v = moved(cache, 4 * 2 * 8);
  EXPECT_TRUE(validate(s.p, true).ok());
  a.v = moved(cache, 3 * 2 * 8);
  expect_overlap(std::move(s), "v overlaps k");
}

TEST(Overlap, SliceOfAWiderTensorIsAccepted) {
  Sample s = Sample::dense();  // o is written beside q, in rows of 16
  const fw_tensor wide = s.tensor(2, 4, 4, 16, FW_BF16);
  s.p.a.q = wide;
  s.p.a.o = moved(wide, 8);
  EXPECT_TRUE(validate(s.p, true).ok());
}

// Against the sets of bytes themselves.
TEST(Overlap, AgreesWithBruteForce) {
  std::mt19937 random(7);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  int counts[3] = {};
  for (int round = 0; round < 4000; ++round) {
    fw_tensor tensors[2] = {};
    View views[2];
    Footprint footprints[2];
    std::set<uintptr_t> bytes[2];
    const uintptr_t arena = 4096;
    int64_t shared_stride[4];
    for (int64_t& stride : shared_stride) stride = below(40);
    for (int n = 0; n < 2; ++n) {
      tensors[n].dtype = below(2) ? FW_F32 : FW_BF16;
      View& view = views[n];
      view = {};
      view.tensor = &tensors[n];
      const int64_t element = view.element_bytes();
      for (int i = 0; i < 4; ++i) {
        view.extent[i] = 1 + below(4);
        view.stride[i] = i == 3 ? 1 : below(4) ? shared_stride[i] : below(40);
      }
      const uintptr_t begin = arena + static_cast<uintptr_t>(element * below(60));
      int64_t last = 0;
      for (int i = 0; i < 4; ++i) last += (view.extent[i] - 1) * view.stride[i];
      footprints[n] = {&view, begin, begin + static_cast<uintptr_t>((last + 1) * element)};
      for (int64_t i = 0; i < view.extent[0]; ++i)
        for (int64_t j = 0; j < view.extent[1]; ++j)
          for (int64_t k = 0; k < view.extent[2]; ++k)
            for (int64_t l = 0; l < view.extent[3] * element; ++l)
              bytes[n].insert(
                  begin +
                  static_cast<uintptr_t>((i * view.stride[0] + j * view.stride[1] + k * view.stride[2]) * element + l));
    }
    bool shared = false;
    for (const uintptr_t b : bytes[0]) shared |= bytes[1].count(b) > 0;
    const Overlap overlap = overlap_of(footprints[0], footprints[1]);
    ++counts[static_cast<int>(overlap)];
    EXPECT_EQ(overlap, shared ? Overlap::kShared : Overlap::kDisjoint) << "round " << round;
  }
  EXPECT_GT(counts[static_cast<int>(Overlap::kDisjoint)], 200);
  EXPECT_GT(counts[static_cast<int>(Overlap::kShared)], 200);
}

TEST(Overlap, SearchIsBounded) {
  fw_tensor tensors[2] = {};
  View views[2];
  Footprint footprints[2];
  for (int n = 0; n < 2; ++n) {
    tensors[n].dtype = FW_BF16;
    views[n] = {};
    views[n].tensor = &tensors[n];
    // Even distances only, and the two start an odd one apart: disjoint, but the strides do not show it at once.
    views[n].extent = {100000, 100000, 100000, 1};
    views[n].stride = {n ? 2002 : 2000, n ? 2006 : 2004, n ? 2010 : 2008, 1};
    const uintptr_t begin = 4096 + 2u * static_cast<uintptr_t>(n);
    footprints[n] = {&views[n], begin, begin + (uintptr_t{1} << 31)};
  }
  EXPECT_EQ(overlap_of(footprints[0], footprints[1]), Overlap::kUndecided);
}

}  // namespace
}  // namespace flashwave::test
