#include "peak.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace flashwave::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

#if defined(__x86_64__)

// The registers are named: a compiler given an array of accumulators may spill them and report a third of the truth.
// All are zero, so nothing ever becomes denormal or infinite. Twelve independent chains cover latency 4-5 at two
// multiply-adds per cycle.
#define FW_TWO(OP, R, A, B, C, I, J) OP " %%" R A ",%%" R B ",%%" R I "\n" OP " %%" R A ",%%" R C ",%%" R J "\n"
#define FW_TWELVE(OP, R, A, B, C)  \
  FW_TWO(OP, R, A, B, C, "0", "1") \
  FW_TWO(OP, R, A, B, C, "2", "3") \
  FW_TWO(OP, R, A, B, C, "4", "5") \
  FW_TWO(OP, R, A, B, C, "6", "7") FW_TWO(OP, R, A, B, C, "8", "9") FW_TWO(OP, R, A, B, C, "10", "11")
// Writing an xmm register in VEX form zeroes the rest of its ymm and zmm.
#define FW_ZERO(N) "vxorps %%xmm" #N ",%%xmm" #N ",%%xmm" #N "\n"
#define FW_ZERO_ALL \
  FW_ZERO(0)        \
  FW_ZERO(1)        \
  FW_ZERO(2)        \
  FW_ZERO(3)        \
  FW_ZERO(4)        \
  FW_ZERO(5) FW_ZERO(6) FW_ZERO(7) FW_ZERO(8) FW_ZERO(9) FW_ZERO(10) FW_ZERO(11) FW_ZERO(12) FW_ZERO(13) FW_ZERO(14)
#define FW_CLOBBERS                                                                                                   \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
      "xmm14", "xmm15", "cc"

#define FW_SPIN(name, op, registers)                                                                             \
  void name(int64_t n) {                                                                                         \
    asm volatile(FW_ZERO_ALL                                                                                     \
                 ".p2align 6\n 1:\n" FW_TWELVE(op, registers, "12", "13", "14") "dec %0\n jnz 1b\n vzeroupper\n" \
                 : "+r"(n)                                                                                       \
                 :                                                                                               \
                 : FW_CLOBBERS);                                                                                 \
  }
FW_SPIN(spin_avx2, "vfmadd231ps", "ymm")
FW_SPIN(spin_avx512, "vfmadd231ps", "zmm")
FW_SPIN(spin_pairs, "vdpbf16ps", "zmm")

// Without fused multiply-add: as many multiplications as additions.
void spin_sse(int64_t n) {
  asm volatile(
      "xorps %%xmm0,%%xmm0\n xorps %%xmm1,%%xmm1\n xorps %%xmm2,%%xmm2\n xorps %%xmm3,%%xmm3\n"
      "xorps %%xmm4,%%xmm4\n xorps %%xmm5,%%xmm5\n xorps %%xmm6,%%xmm6\n xorps %%xmm7,%%xmm7\n"
      "xorps %%xmm8,%%xmm8\n xorps %%xmm9,%%xmm9\n xorps %%xmm10,%%xmm10\n xorps %%xmm11,%%xmm11\n"
      "xorps %%xmm12,%%xmm12\n xorps %%xmm13,%%xmm13\n xorps %%xmm14,%%xmm14\n xorps %%xmm15,%%xmm15\n"
      ".p2align 5\n 1:\n"
      "mulps %%xmm15,%%xmm0\n addps %%xmm15,%%xmm1\n mulps %%xmm15,%%xmm2\n addps %%xmm15,%%xmm3\n"
      "mulps %%xmm15,%%xmm4\n addps %%xmm15,%%xmm5\n mulps %%xmm15,%%xmm6\n addps %%xmm15,%%xmm7\n"
      "mulps %%xmm15,%%xmm8\n addps %%xmm15,%%xmm9\n mulps %%xmm15,%%xmm10\n addps %%xmm15,%%xmm11\n"
      "mulps %%xmm15,%%xmm12\n addps %%xmm15,%%xmm13\n"
      "dec %0\n jnz 1b\n"
      : "+r"(n)
      :
      : FW_CLOBBERS);
}

// Four independent products of tiles. Random numbers: zeros run at a higher clock than any kernel's data ever will.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
struct alignas(64) TileData {
  uint16_t tile[4][512];
  TileData(uint16_t random, uint16_t fixed) {  // bits
    uint32_t x = 1;
    for (auto& numbers : tile) {
      for (uint16_t& v : numbers) {
        x = x * 1664525 + 1013904223;
        v = uint16_t((x >> 16 & random) | fixed);
      }
    }
  }
};
#define FW_SPIN_TILES(product)                                                                        \
  asm volatile(                                                                                       \
      "ldtilecfg %1\n"                                                                                \
      "tileloadd 0(%2,%3,1),%%tmm4\n tileloadd 1024(%2,%3,1),%%tmm5\n"                                \
      "tileloadd 2048(%2,%3,1),%%tmm6\n tileloadd 3072(%2,%3,1),%%tmm7\n"                             \
      "tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"                       \
      ".p2align 5\n 1:\n" product " %%tmm6,%%tmm4,%%tmm0\n" product " %%tmm7,%%tmm4,%%tmm1\n" product \
      " %%tmm6,%%tmm5,%%tmm2\n" product                                                               \
      " %%tmm7,%%tmm5,%%tmm3\n"                                                                       \
      "dec %0\n jnz 1b\n tilerelease\n"                                                               \
      : "+r"(n)                                                                                       \
      : "m"(config), "r"(data.tile), "r"(stride)                                                      \
      : "cc", "memory")

void spin_amx(int64_t n) {
  static const TileConfig config;
  static const TileData data(0x80FF, 0x3F00);  // |v| in 0.5 .. 2
  const int64_t stride = 64;
  FW_SPIN_TILES("tdpbf16ps");
}
void spin_amx_fp16(int64_t n) {
  static const TileConfig config;
  static const TileData data(0x87FF, 0x3800);  // |v| in 0.5 .. 2
  const int64_t stride = 64;
  FW_SPIN_TILES("tdpfp16ps");
}

double flops_per_turn(VectorWidth width) {
  switch (width) {
    case VectorWidth::kAmx:
    case VectorWidth::kAmxFp16:
      return 4 * 16 * 16 * 32 * 2;
    case VectorWidth::kPairs:
      return 12 * 32 * 2;
    case VectorWidth::kAvx512:
      return 12 * 16 * 2;
    case VectorWidth::kAvx2:
      return 12 * 8 * 2;
    default:
      return 14 * 4;
  }
}

void spin(VectorWidth width, int64_t turns) {
  switch (width) {
    case VectorWidth::kAmx:
      return spin_amx(turns);
    case VectorWidth::kAmxFp16:
      return spin_amx_fp16(turns);
    case VectorWidth::kPairs:
      return spin_pairs(turns);
    case VectorWidth::kAvx512:
      return spin_avx512(turns);
    case VectorWidth::kAvx2:
      return spin_avx2(turns);
    default:
      return spin_sse(turns);
  }
}

#elif defined(__aarch64__)

// 24 chains: latency 4 at up to four multiply-adds per cycle, with some to spare. The registers are named for the same
// reason, and zero.
#define FW_FMLA(N) "fmla v" #N ".4s, v24.4s, v25.4s\n"
#define FW_ZERO(N) "movi v" #N ".4s, #0\n"
#define FW_FIRST8(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define FW_SECOND8(F) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15)
#define FW_THIRD8(F) F(16) F(17) F(18) F(19) F(20) F(21) F(22) F(23)
#define FW_ALL24(F) FW_FIRST8(F) FW_SECOND8(F) FW_THIRD8(F)

double flops_per_turn(VectorWidth) { return 24 * 4 * 2; }

void spin(VectorWidth, int64_t turns) {
  asm volatile(FW_ALL24(FW_ZERO) FW_ZERO(24)
                   FW_ZERO(25) ".p2align 5\n 1:\n" FW_ALL24(FW_FMLA) "subs %0, %0, #1\n b.ne 1b\n"
               : "+r"(turns)
               :
               : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15",
                 "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "cc");
}

#else

double flops_per_turn(VectorWidth) { return 0; }
void spin(VectorWidth, int64_t) {}

#endif

// Runs body(thread) on all threads, released at the same moment.
template <class Body>
void on_threads(int threads, Body&& body) {
  if (threads <= 1) {
    body(0);
    return;
  }
  std::atomic<int> waiting{threads};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      waiting.fetch_sub(1);
      while (waiting.load() > 0) std::this_thread::yield();
      body(t);
    });
  }
  for (std::thread& thread : pool) thread.join();
}

uint64_t sum_of(const uint64_t* data, size_t count) {
  uint64_t sum[16] = {};
  for (size_t i = 0; i + 16 <= count; i += 16) {
    for (size_t j = 0; j < 16; ++j) sum[j] += data[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t s : sum) total += s;
  return total;
}

bool is_tiles(VectorWidth width) { return width == VectorWidth::kAmx || width == VectorWidth::kAmxFp16; }

}  // namespace

VectorWidth width_of_kernel(const std::string& kernel) {
#if defined(__x86_64__)
  if (kernel.starts_with("amx_fp16_")) return VectorWidth::kAmxFp16;
  if (kernel.starts_with("amx_")) return VectorWidth::kAmx;
  if (kernel.starts_with("zen4_fwd_") || kernel.starts_with("zen4_bwd_")) return VectorWidth::kPairs;
  if (kernel.starts_with("avx512_") || kernel.starts_with("zen4_")) return VectorWidth::kAvx512;
  if (kernel.starts_with("avx2_")) return VectorWidth::kAvx2;
  return VectorWidth::kSse;
#elif defined(__aarch64__)
  return VectorWidth::kNeon;
#else
  return VectorWidth::kNone;
#endif
}

const char* width_name(VectorWidth width) {
  switch (width) {
    case VectorWidth::kAmx:
      return "AMX tiles, bf16";
    case VectorWidth::kAmxFp16:
      return "AMX tiles, fp16";
    case VectorWidth::kPairs:
      return "AVX512_BF16 products of pairs";
    case VectorWidth::kAvx512:
      return "AVX-512 FMA";
    case VectorWidth::kAvx2:
      return "AVX2 FMA";
    case VectorWidth::kSse:
      return "SSE multiply and add";
    case VectorWidth::kNeon:
      return "NEON FMA";
    default:
      return "none";
  }
}

double cpu_seconds(int threads) {
  timespec now{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

bool throttled(VectorWidth width, int threads, double gflops) {
  constexpr double kFullRate = 0.8;
  static std::mutex mutex;
  static std::array<double, size_t(VectorWidth::kCount)> best{};  // per thread
  const std::lock_guard lock(mutex);
  double& highest = best[size_t(width)];
  const double rate = gflops / std::max(threads, 1);
  highest = std::max(highest, rate);
  return is_tiles(width) && rate < kFullRate * highest;
}

double peak_gflops(VectorWidth width, int threads) {
  if (width == VectorWidth::kNone || flops_per_turn(width) == 0) return 0;
  constexpr double kSeconds = 0.002;
  const int64_t turns = is_tiles(width) ? 10000 : 100000;  // some 0.3 ms either way
  std::vector<double> rate(size_t(std::max(threads, 1)), 0.0);
  on_threads(threads, [&](int t) {
    // The best of a few short bursts: one that was interrupted must not make the peak, and so our share, look better.
    const auto start = Clock::now();
    do {
      const double burst = cpu_seconds(1);
      spin(width, turns);
      const double seconds = cpu_seconds(1) - burst;
      rate[size_t(t)] = std::max(rate[size_t(t)], double(turns) * flops_per_turn(width) / seconds * 1e-9);
    } while (seconds_since(start) < kSeconds);
  });
  double total = 0;
  for (const double r : rate) total += r;
  return total;
}

ReadLoop::ReadLoop() : data_((size_t{256} << 20) / sizeof(uint64_t), 1) {}

double ReadLoop::gbs(int threads) const {
  const size_t part = data_.size() / size_t(std::max(threads, 1));
  std::atomic<uint64_t> sink{0};
  const auto start = Clock::now();
  const double cpu_before = cpu_seconds(1);
  on_threads(threads, [&](int t) { sink += sum_of(data_.data() + size_t(t) * part, part); });
  const double seconds = threads <= 1 ? cpu_seconds(1) - cpu_before : seconds_since(start);
  const double bytes = double(data_.size() * sizeof(uint64_t));
  return sink.load() != 0 ? bytes / seconds * 1e-9 : 0;  // uses the sums, so that the reading cannot be left out
}

double read_bandwidth_gbs(int threads) {
  constexpr int kPasses = 5;
  const ReadLoop loop;
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) best = std::max(best, loop.gbs(threads));
  return best;
}

}  // namespace flashwave::cli
