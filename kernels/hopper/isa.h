// The instructions of compute capability 9.0 beside wgmma itself (wgmma.h): mbarriers, TMA, descriptors of operands in
// shared memory, registers moved between warpgroups, fragments. Names of sections are those of the PTX ISA manual.
#pragma once

#include "kernels/abi/tensor_maps.h"
#include "kernels/hopper/wgmma.h"
#include "kernels/nvidia/gpu.h"

namespace flashwave {

using abi::MapPlace;
using abi::TensorMap;
using abi::TensorMaps;

inline constexpr int kWarpgroup = 128;

// PTX ISA, "tanh": relative error at most 2^-11.
FW_DEVICE float tanh_fast(float x) {
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Shared memory is addressed by number. Dynamic shared memory starts here when there is no other: the system's part is
// before it. Kernels that count on it check it; addresses and descriptors then are constants.
inline constexpr uint32_t kSharedBase = 1024;
FW_DEVICE void check_shared_base(uint32_t cta = 0) {  // cta: the rank of a cluster's, in the top byte
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  if (uint32_t(__cvta_generic_to_shared(dynamic_shared)) != cta + kSharedBase) __trap();
}
FW_DEVICE void store_shared(uint32_t at, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
FW_DEVICE uint32_t load_shared(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
FW_DEVICE int4 load_shared4(uint32_t at) {
  int4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
FW_DEVICE void store_shared4(uint32_t at, int4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// The thread's number, read anew where it is used: what follows from it then takes no register in between.
FW_DEVICE int thread_again() {
  int x;
  asm volatile("mov.u32 %0, %tid.x;" : "=r"(x));
  return x;
}

// The same in all lanes: ptxas then keeps it, and what branches on it, in uniform registers, as descriptors have to be.
FW_DEVICE int uniform(int x) { return __reduce_max_sync(kAllLanes, x); }

// "Parallel Synchronization and Communication Instructions: mbarrier".
FW_DEVICE void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
FW_DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
FW_DEVICE void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and the phase ends only after so many bytes of asynchronous copies as well.
FW_DEVICE void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
FW_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "again_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end_%=; bra again_%=;\n"
      "end_%=: }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Clusters: the shared memories of the CTAs of one lie in one address space, by rank in the top byte ("Shared Memory
// Address Space"). A plain address of a CTA of rank 1 or more has its own rank there.
FW_DEVICE uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
FW_DEVICE uint32_t in_cta(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
FW_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at a barrier of another CTA; releasing: what this thread stored there before is seen by who waits for it with
// barrier_wait_acquire. (Without, one instruction; with, a fence of the whole GPU.)
FW_DEVICE void barrier_arrive_in(uint32_t barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(in_cta(barrier, rank)) : "memory");
}
FW_DEVICE void barrier_arrive_releasing(uint32_t barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(in_cta(barrier, rank)) : "memory");
}
FW_DEVICE void barrier_wait_acquire(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "again_%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end_%=; bra again_%=;\n"
      "end_%=: }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
FW_DEVICE void store_shared4_in(uint32_t at, uint32_t rank, int4 x) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(in_cta(at, rank)), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}

// Named barriers ("bar{.cta}"), of a number of threads of which some only arrive.
FW_DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
FW_DEVICE void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Programmatic dependent launch (PTX ISA, "griddepcontrol"): the next kernel may start while this one runs; what the
// kernel before has written is there. Each does nothing where the launch did not ask for it.
FW_DEVICE void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
FW_DEVICE void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Ordinary writes to shared memory before this are seen by TMA and wgmma after it ("Async proxy").
FW_DEVICE void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// What a tensor map says comes from memory at its first use: soon is better.
FW_DEVICE void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
// "Data Movement and Conversion Instructions: Tensor copy". Coordinates as in kernels/abi/tensor_maps.h.
// L2 eviction priorities, as createpolicy makes them.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000, kEvictLast = 0x14F0000000000000;
FW_DEVICE void tma_load(uint32_t to, const TensorMap& map, uint32_t barrier, int column, int head, const MapPlace& at,
                        uint64_t priority) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(at.row), "r"(head), "r"(at.fine), "r"(at.coarse), "l"(priority)
      : "memory");
}
// The same into both CTAs of a pair, at the same place, each with its own barrier.
FW_DEVICE void tma_load_both(uint32_t to, const TensorMap& map, uint32_t barrier, int column, int head,
                             const MapPlace& at, uint64_t priority) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8, %9;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(at.row), "r"(head), "r"(at.fine), "r"(at.coarse), "h"(uint16_t{3}),
      "l"(priority)
      : "memory");
}
// Plain bytes, a multiple of 16: from global memory; from here to another CTA (to and barrier by in_cta).
FW_DEVICE void bulk_load(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
FW_DEVICE void bulk_send(uint32_t to, uint32_t from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
FW_DEVICE void tma_store(const TensorMap& map, uint32_t from, int column, int head, const MapPlace& at) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
               "r"(from), "r"(column), "r"(at.row), "r"(head), "r"(at.fine), "r"(at.coarse)
               : "memory");
}
FW_DEVICE void tma_commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
FW_DEVICE void tma_wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
FW_DEVICE void tma_wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// "Matrix Descriptor": an operand in shared memory as TMA writes it with 128-byte swizzle, in panels of 64 columns
// whose rows are 128 bytes apart; 16-byte unit u of row r lies at u ^ r % 8. The second number is the distance of 8
// rows. panel_bytes: from panel to panel of an operand whose rows run along N (V); the others advance by address.
FW_DEVICE constexpr uint64_t operand(uint32_t address, uint32_t panel_bytes) {
  return uint64_t((address & 0x3FFFF) >> 4) | uint64_t(panel_bytes >> 4) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t{1} << 62;
}
// The same of a tile without a swizzle, pieces of 8 rows of 16 bytes: from 8 columns to the next and from 8 rows to the
// next.
FW_DEVICE constexpr uint64_t narrow_operand(uint32_t address, uint32_t columns_bytes, uint32_t rows_bytes) {
  return uint64_t((address & 0x3FFFF) >> 4) | uint64_t(columns_bytes >> 4) << 16 | uint64_t(rows_bytes >> 4) << 32;
}
inline constexpr int kPanel = 64;  // columns
inline constexpr int kPanelRowBytes = 128;
FW_DEVICE uint32_t swizzled(uint32_t row, uint32_t unit) { return row * kPanelRowBytes + ((unit ^ (row & 7)) << 4); }

// Before the first wgmma after registers of it were touched.
FW_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FW_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// At most so many groups are still running.
template <int kGroups>
FW_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// The compiler does not know that wgmma reads and writes registers until it is waited for: no access moves across this.
template <int N>
FW_DEVICE void hold(float (&x)[N]) {
  FW_UNROLL for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N>
FW_DEVICE void hold(uint32_t (&x)[N]) {
  FW_UNROLL for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

// "setmaxnreg": the producer gives registers, the consumers take them.
template <int kRegisters>
FW_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
FW_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Four 8 x 8 matrices of 16-bit elements, laid out as accumulators are, to the rows that each lane names.
FW_DEVICE void store_matrices(uint32_t at, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x0), "r"(x1), "r"(x2),
               "r"(x3)
               : "memory");
}

// The same transposed: rows become columns.
FW_DEVICE void store_matrices_transposed(uint32_t at, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x0), "r"(x1),
               "r"(x2), "r"(x3)
               : "memory");
}
FW_DEVICE void load_matrices(uint32_t* x, uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
FW_DEVICE void load_matrices_transposed(uint32_t* x, uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
FW_DEVICE float4 load_shared_floats(uint32_t at) {
  const int4 x = load_shared4(at);
  return make_float4(float_of(x.x), float_of(x.y), float_of(x.z), float_of(x.w));
}

// 16 bytes per lane of fp32 sums made in the L2 cache; nothing comes back.
FW_DEVICE void add_to_memory(float* to, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
// As wait_until_equal.
FW_DEVICE void wait_until_not_0(const int* counter) {
  int x;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
  } while (x == 0);
}
FW_DEVICE uint32_t clock_now() {
  uint32_t x;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(x));
  return x;
}
// x, of which the compiler may assume nothing: what follows from it is computed where it is used and not kept.
FW_DEVICE uint32_t last_bit(uint32_t x) {
  uint32_t bit;
  asm volatile("and.b32 %0, %1, 1;" : "=r"(bit) : "r"(x));
  return bit;
}

// Halves of ones where their top bit is set, else of zeros.
FW_DEVICE uint32_t halves_of_signs(uint32_t x) {
  uint32_t result;
  asm("prmt.b32 %0, %1, 0, 0xBB99;" : "=r"(result) : "r"(x));
  return result;
}

// The larger of three, in both halves of a word: one instruction.
FW_DEVICE uint32_t max3_pairs(uint32_t a, uint32_t b, uint32_t c) { return __vimax3_u16x2(a, b, c); }

// Over the four lanes that share a row of an accumulator.
FW_DEVICE float quad_max(float x) {
  x = fmaxf(x, exchange(x, 1));
  return fmaxf(x, exchange(x, 2));
}
FW_DEVICE float quad_sum(float x) {
  x += exchange(x, 1);
  return x + exchange(x, 2);
}

// Word i of the lane at `place` of its four becomes word `place` of the i-th of them. The four are kApart lanes apart.
template <int kApart = 1>
FW_DEVICE void transpose_quad(uint32_t (&x)[4], int place) {
  FW_UNROLL for (int bit = 1; bit <= 2; bit *= 2) {
    FW_UNROLL for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t other = __shfl_xor_sync(kAllLanes, place & bit ? x[i] : x[i | bit], bit * kApart);
      (place & bit ? x[i] : x[i | bit]) = other;
    }
  }
}

// The element types. Weights above 2^16 (bf16) or 2^15 (fp16) are too large to go on with the same reference: sums stay
// far from infinity. As the bits of positive numbers are ordered like the numbers, and infinity and NaN come after
// them, an integer comparison finds them. A reference that had to be raised is put so many powers of two above the
// largest score: scores that keep growing then raise it more rarely, and in bf16 small weights are as exact as large
// ones.
struct BF16 {
  static constexpr uint32_t kOnes = 0x3F803F80, kLargest = 0x47804780;
  static constexpr float kHeadroom = 64.f;
  static constexpr bool kWideRange = true;  // as fp32: products of rounded factors do not overflow
  FW_METHOD static float low(uint32_t pair) { return float_of(pair << 16); }
  FW_METHOD static float high(uint32_t pair) { return float_of(pair & 0xFFFF0000u); }
  FW_METHOD static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t x;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
    return x;
  }
  FW_METHOD static uint32_t pack(float low, float high) {
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
  }
};
struct F16 {
  static constexpr uint32_t kOnes = 0x3C003C00, kLargest = 0x78007800;
  static constexpr float kHeadroom = 0.f;
  static constexpr bool kWideRange = false;
  FW_METHOD static float low(uint32_t pair) { return float_of_half(uint16_t(pair)); }
  FW_METHOD static float high(uint32_t pair) { return float_of_half(uint16_t(pair >> 16)); }
  FW_METHOD static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t x;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
    return x;
  }
  FW_METHOD static uint32_t pack(float low, float high) {
    uint32_t x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
  }
};

}  // namespace flashwave
