// Problems and devices made up for the tests. The pointers only count as present; nothing reads through them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "catalog/catalog.h"
#include "device/driver.h"
#include "problem/problem.h"
#include "problem/rotary.h"

namespace flashwave {

// Tests of the plans for kernels that not every build has. device: as in the rows.
class PlanOf : public testing::Test {
 protected:
  explicit PlanOf(std::string_view device) : device_(device) {}
  void SetUp() override {
    if (catalog_of(device_).empty()) GTEST_SKIP() << "built without kernels of " << device_ << " devices";
  }

 private:
  std::string_view device_;
};

alignas(64) inline char somewhere[64];

inline fw_tensor tensor(fw_dtype dtype, int64_t s0, int64_t s1, int64_t s2, int64_t s3 = 1) {
  return {somewhere, {s0, s1, s2, s3}, dtype, 0};
}
template <class T>
T* present() {
  return reinterpret_cast<T*>(somewhere);
}

// b=2 sq=128 sk=256 h=4 d=64 bf16, (batch, seq, head, dim) packed.
inline Problem forward_problem(int64_t seqlen_q = 128) {
  Problem p;
  fw_attention& a = p.a;
  a.struct_size = sizeof a;
  a.softmax_scale = FW_SCALE_AUTO;
  a.window_left = a.window_right = -1;
  a.batch = 2, a.seqlen_q = seqlen_q, a.seqlen_k = 256;
  a.heads_q = a.heads_k = 4;
  a.dim_qk = a.dim_v = 64;
  a.q = a.o = tensor(FW_BF16, seqlen_q * 256, 256, 64);
  a.k = a.v = tensor(FW_BF16, 256 * 256, 256, 64);
  return p;
}

inline Problem backward_problem() {
  Problem p = forward_problem();
  p.backward = true;
  p.a.lse = tensor(FW_F32, 128 * 4, 4, 1);
  p.g.struct_size = sizeof p.g;
  p.g.d_o = p.g.dq = p.a.q;
  p.g.dk = p.g.dv = p.a.k;
  return p;
}

// A decode step that appends one rotated key: q is (2, 1, 4, 64).
inline Problem append_problem() {
  Problem p = forward_problem(1);
  p.a.seqused_k = present<int32_t>();
  p.a.seqlen_new = 1;
  p.a.k_new = p.a.v_new = p.a.q;
  p.a.rotary_cos = p.a.rotary_sin = tensor(FW_BF16, 16, 1, 0, 0);
  p.a.rotary_seqlen = 256, p.a.rotary_dim = 32;
  return p;
}

// b=2 s=128 h=4 d=64 rotary=32 bf16.
inline Rotary rotary_problem() {
  Rotary p;
  fw_rotary_embedding& r = p.r;
  r.struct_size = sizeof r;
  r.batch = 2, r.seqlen = 128, r.heads = 4, r.dim = 64, r.rotary_seqlen = 200, r.rotary_dim = 32;
  r.x = r.out = tensor(FW_BF16, 128 * 256, 256, 64);
  r.cos = r.sin = tensor(FW_F32, 16, 1, 0, 0);
  return p;
}

inline DeviceInfo cpu_with(uint32_t isa, int64_t cores = 8) {
  DeviceInfo d;
  d.name = d.kind = "cpu";
  d.arch = "x86-64";
  d.description = "a \"made up\" CPU";
  d.isa = isa;
  d.compute_units = cores;
  d.host_memory = true;
  return d;
}

}  // namespace flashwave
