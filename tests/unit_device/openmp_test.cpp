// The executor on an OpenMP runtime: libgomp's, which comes with every GCC.
#include "device/cpu/openmp.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "flashwave/flashwave.h"

namespace flashwave {
namespace {

constexpr const char* kLibrary = "libgomp.so.1";

class OpenMp : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
    GTEST_SKIP() << "ThreadSanitizer does not see how libgomp's threads wait for each other";
#endif
#endif
    if (dlopen(kLibrary, RTLD_NOW) == nullptr) GTEST_SKIP() << "no " << kLibrary << " on this system";
    ASSERT_EQ(fw_openmp_executor(kLibrary, &executor_), FW_OK) << fw_last_error();
    ASSERT_NE(executor_, nullptr);
  }

  const fw_executor* executor_ = nullptr;
};

struct Counts {
  explicit Counts(int32_t workers) : calls(static_cast<size_t>(workers)) {}
  static void call(void* self, int32_t worker) { ++static_cast<Counts*>(self)->calls[static_cast<size_t>(worker)]; }
  std::vector<std::atomic<int>> calls;
};

bool runs_each_worker_once(const fw_executor& executor, int32_t workers) {
  Counts counts(workers);
  executor.run(executor.context, workers, Counts::call, &counts);
  for (const auto& calls : counts.calls) {
    if (calls.load() != 1) return false;
  }
  return true;
}

TEST_F(OpenMp, RunsEachWorkerOnce) {
  for (const int32_t workers : {1, 2, 3, 7, 64}) EXPECT_TRUE(runs_each_worker_once(*executor_, workers)) << workers;
}

TEST_F(OpenMp, UsesOtherThreads) {
  struct Seen {
    std::atomic<bool> other{false};
    std::thread::id caller = std::this_thread::get_id();
  } seen;
  executor_->run(
      executor_->context, 4,
      [](void* arg, int32_t) {
        auto* here = static_cast<Seen*>(arg);
        if (std::this_thread::get_id() != here->caller) here->other = true;
      },
      &seen);
  EXPECT_TRUE(seen.other);
}

TEST_F(OpenMp, IsTheSameForTheSameLibrary) {
  const fw_executor* again = nullptr;
  ASSERT_EQ(fw_openmp_executor(kLibrary, &again), FW_OK);
  EXPECT_EQ(again, executor_);
}

TEST_F(OpenMp, NestedRegionsRunEachWorkerOnce) {
  struct Nest {
    const fw_executor* executor;
    std::atomic<int> good{0};
  } nest{executor_};
  executor_->run(
      executor_->context, 3,
      [](void* arg, int32_t) {
        auto* here = static_cast<Nest*>(arg);
        here->good += runs_each_worker_once(*here->executor, 5) ? 1 : 0;
      },
      &nest);
  EXPECT_EQ(nest.good.load(), 3);
}

TEST_F(OpenMp, WorksInAForkedChild) {
  ASSERT_TRUE(runs_each_worker_once(*executor_, 4));  // libgomp has its threads now
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a hang ends it
    _exit(runs_each_worker_once(*executor_, 4) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(OpenMp, GivesTheBitsOfThePool) {
  constexpr int64_t kLength = 200, kHeads = 4, kDim = 64;
  std::vector<float> q(kLength * kHeads * kDim), o[2];
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 2654435761u % 1000) / 500.0f - 1.0f;
  for (int lent = 0; lent < 2; ++lent) {
    o[lent].assign(q.size(), -1.0f);
    fw_attention a;
    fw_attention_init(&a, sizeof a);
    a.batch = 1;
    a.seqlen_q = a.seqlen_k = kLength;
    a.heads_q = a.heads_k = kHeads;
    a.dim_qk = a.dim_v = kDim;
    const fw_tensor in{q.data(), {0, kHeads * kDim, kDim, 1}, FW_F32, 0};
    a.q = a.k = a.v = in;
    a.o = in;
    a.o.data = o[lent].data();
    fw_exec exec;
    fw_exec_init(&exec, sizeof exec);
    exec.num_threads = 3;
    exec.executor = lent == 1 ? executor_ : nullptr;
    fw_device* cpu = nullptr;
    ASSERT_EQ(fw_device_open("cpu", &cpu), FW_OK);
    ASSERT_EQ(fw_forward(cpu, &a, &exec), FW_OK) << fw_last_error();
  }
  EXPECT_EQ(o[0], o[1]);
}

TEST(OpenMpLibrary, MustBeLoadedAndARuntime) {
  const fw_executor* executor = nullptr;
  EXPECT_EQ(fw_openmp_executor("libnosuch.so.7", &executor), FW_INVALID_ARGUMENT);
  EXPECT_STREQ(fw_last_error(), "library must be a shared library that the process has loaded, got 'libnosuch.so.7'");
  EXPECT_EQ(fw_openmp_executor("libc.so.6", &executor), FW_INVALID_ARGUMENT);
  EXPECT_STREQ(fw_last_error(),
               "library must be an OpenMP runtime with GOMP_parallel (libgomp, libomp, libiomp5), got 'libc.so.6'");
  EXPECT_EQ(executor, nullptr);
  EXPECT_EQ(fw_openmp_executor(nullptr, &executor), FW_INVALID_ARGUMENT);
  EXPECT_EQ(fw_openmp_executor("libc.so.6", nullptr), FW_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace flashwave
