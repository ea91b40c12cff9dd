// Tiles as a user meets them: asked for when there is work for them and not before, given up when the operating system
// refuses, and usable from any thread and after a fork. The arithmetic is the business of `flashwave check`.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/isa.h"
#include "device/cpu/cpu_info.h"
#include "flashwave/flashwave.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>

namespace flashwave {
namespace {

constexpr int64_t kRows = 300, kHeads = 3, kDim = 80;

uint16_t bf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>(bits >> 16);
}

// One forward and one backward in a type, with what ran.
struct Call {
  std::vector<uint32_t> q, k, v, o, d_o, dq, dk, dv;  // more than enough for any type
  std::vector<float> lse = std::vector<float>(kRows * kHeads);
  fw_device* device = nullptr;
  fw_attention attention;
  fw_gradients gradients;
  fw_exec exec;
  fw_report report{};

  explicit Call(fw_dtype dtype) {
    fw_attention_init(&attention, sizeof attention);
    fw_gradients_init(&gradients, sizeof gradients);
    fw_exec_init(&exec, sizeof exec);
    report.struct_size = sizeof report;
    exec.report = &report;
    attention.batch = 1, attention.seqlen_q = attention.seqlen_k = kRows;
    attention.heads_q = attention.heads_k = kHeads, attention.dim_qk = attention.dim_v = kDim;
    attention.flags = FW_CAUSAL;
    float phase = 0;
    for (auto* data : {&q, &k, &v, &o, &d_o, &dq, &dk, &dv}) {
      data->assign(kRows * kHeads * kDim, 0);
      for (size_t i = 0; i < data->size(); ++i) {
        const float x = std::sin(phase += 0.37f);
        if (dtype == FW_F32) std::memcpy(data->data() + i, &x, 4);
        if (dtype != FW_F32) reinterpret_cast<uint16_t*>(data->data())[i] = bf16(x);
      }
    }
    const auto tensor = [&](std::vector<uint32_t>& data) {
      fw_tensor t{};
      t.data = data.data(), t.dtype = dtype;
      t.stride[0] = kRows * kHeads * kDim, t.stride[1] = kHeads * kDim, t.stride[2] = kDim, t.stride[3] = 1;
      return t;
    };
    attention.q = tensor(q), attention.k = tensor(k), attention.v = tensor(v), attention.o = tensor(o);
    attention.lse.data = lse.data(), attention.lse.dtype = FW_F32;
    attention.lse.stride[0] = kRows * kHeads, attention.lse.stride[1] = kHeads, attention.lse.stride[2] = 1;
    gradients.d_o = tensor(d_o), gradients.dq = tensor(dq), gradients.dk = tensor(dk), gradients.dv = tensor(dv);
    EXPECT_EQ(fw_device_open("cpu", &device), FW_OK);
  }
  std::string forward() {
    EXPECT_EQ(fw_forward(device, &attention, &exec), FW_OK) << fw_last_error();
    return report.kernel;
  }
  std::string backward() {
    EXPECT_EQ(fw_backward(device, &attention, &gradients, &exec), FW_OK) << fw_last_error();
    return report.kernel;
  }
  std::vector<uint32_t> results() const {
    std::vector<uint32_t> all;
    for (const auto* data : {&o, &dq, &dk, &dv}) all.insert(all.end(), data->begin(), data->end());
    return all;
  }
};

bool tiles_permitted() {
  constexpr long kGetPermission = 0x1022, kTileData = 18;  // ARCH_GET_XCOMP_PERM
  uint64_t mask = 0;
  return syscall(SYS_arch_prctl, kGetPermission, &mask) == 0 && (mask >> kTileData & 1) != 0;
}

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

class Amx : public testing::Test {
 protected:
  void SetUp() override {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";  // each case in a process of its own
    if ((detected_isa() & kIsaAmx) == 0) GTEST_SKIP() << "this CPU has no AMX";
  }
};
using AmxDeathTest = Amx;

[[noreturn]] void asks_when_there_is_work() {
  if (tiles_permitted()) std::exit(1);
  Call plain(FW_F32);
  plain.forward();
  plain.backward();
  if (tiles_permitted()) std::exit(2);
  Call call(FW_BF16);
  if (!starts_with(call.forward(), "amx_fwd_")) std::exit(3);
  if (!starts_with(call.backward(), "amx_bwd_")) std::exit(4);
  std::exit(tiles_permitted() ? 0 : 5);
}

TEST_F(AmxDeathTest, TilesAreAskedForWhenThereIsWorkForThem) {
  EXPECT_EXIT(asks_when_there_is_work(), testing::ExitedWithCode(0), "");
}

// A signal stack too small for tiles makes Linux refuse them to the whole process.
[[noreturn]] void runs_without_tiles() {
  static char stack[4096];
  stack_t small{};
  small.ss_sp = stack, small.ss_size = sizeof stack;
  if (sigaltstack(&small, nullptr) != 0) std::exit(1);
  Call call(FW_BF16);
  if (!starts_with(call.forward(), "avx512_fwd_")) std::exit(2);
  if (!starts_with(call.backward(), "avx512_bwd_")) std::exit(3);
  if (!starts_with(Call(FW_F16).forward(), "avx512_fwd_")) std::exit(6);
  char text[4096];
  size_t needed = 0;
  if (fw_explain(call.device, &call.attention, nullptr, nullptr, FW_TEXT, text, sizeof text, &needed) != FW_OK) {
    std::exit(4);
  }
  std::exit(std::strstr(text, "which the operating system refused") != nullptr ? 0 : 5);
}

TEST_F(AmxDeathTest, RefusalFallsBackToAvx512) { EXPECT_EXIT(runs_without_tiles(), testing::ExitedWithCode(0), ""); }

TEST_F(Amx, AChildProcessGetsTheSameBits) {
  Call call(FW_BF16);
  ASSERT_TRUE(starts_with(call.forward(), "amx_fwd_"));
  ASSERT_TRUE(starts_with(call.backward(), "amx_bwd_"));
  const std::vector<uint32_t> before = call.results();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Call again(FW_BF16);
    const bool tiles = starts_with(again.forward(), "amx_fwd_") && starts_with(again.backward(), "amx_bwd_");
    _exit(tiles && again.results() == before ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Lent threads that never saw a tile, a new one for every job, and any number of them: the same bits.
void expect_the_same_bits(fw_dtype dtype, const char* forward, const char* backward,
                          const char* force_forward = nullptr, const char* force_backward = nullptr) {
  Call alone(dtype);
  alone.exec.num_threads = 1, alone.exec.force_kernel = force_forward;
  ASSERT_TRUE(starts_with(alone.forward(), forward));
  alone.exec.force_kernel = force_backward;
  alone.backward();
  const fw_executor lent{nullptr, [](void*, int32_t workers, void (*job)(void*, int32_t), void* arg) {
                           std::vector<std::thread> threads;
                           for (int32_t w = 0; w < workers; ++w) threads.emplace_back(job, arg, w);
                           for (std::thread& thread : threads) thread.join();
                         }};
  for (const int32_t threads : {2, 3, 8}) {
    for (const fw_executor* executor : {static_cast<const fw_executor*>(nullptr), &lent}) {
      Call call(dtype);
      call.exec.num_threads = threads, call.exec.executor = executor, call.exec.force_kernel = force_forward;
      EXPECT_TRUE(starts_with(call.forward(), forward));
      call.exec.force_kernel = force_backward;
      EXPECT_TRUE(starts_with(call.backward(), backward));
      EXPECT_TRUE(call.results() == alone.results()) << threads << (executor ? " lent threads" : " threads");
    }
  }
}
TEST_F(Amx, AnyThreadsGiveTheSameBits) {
  expect_the_same_bits(FW_BF16, "amx_fwd_", "amx_bwd_");
  expect_the_same_bits(FW_F16, "amx_split_fwd_", "amx_split_bwd_", "amx_split_fwd_m32n128", "amx_split_bwd_m256n128");
}

}  // namespace
}  // namespace flashwave
#endif
