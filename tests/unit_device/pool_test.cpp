#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "device/cpu/thread_pool.h"

namespace flashwave {
namespace {

// A callable as run_on_pool wants it.
template <class Body>
void on_pool(int32_t workers, Body body) {
  run_on_pool(workers, [](void* arg, int32_t worker) { (*static_cast<Body*>(arg))(worker); }, &body);
}

// Runs `workers` numbers and says whether each came exactly once.
bool each_exactly_once(int32_t workers) {
  std::vector<std::atomic<int>> calls(static_cast<size_t>(workers));
  std::atomic<bool> in_range{true};
  on_pool(workers, [&](int32_t worker) {
    if (worker < 0 || worker >= workers) {
      in_range = false;
    } else {
      calls[static_cast<size_t>(worker)].fetch_add(1);
    }
  });
  for (const auto& count : calls) {
    if (count.load() != 1) return false;
  }
  return in_range;
}

// Every number waits until all have started, so each needs a thread of its own. False after ten seconds.
bool all_at_the_same_time(int32_t workers) {
  std::atomic<int32_t> started{0}, met{0};
  on_pool(workers, [&](int32_t) {
    started.fetch_add(1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (started.load() < workers && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (started.load() >= workers) met.fetch_add(1);
  });
  return met.load() == workers;
}

TEST(Pool, CallsEachWorkerExactlyOnce) {
  for (int32_t workers = 0; workers <= 20; ++workers) EXPECT_TRUE(each_exactly_once(workers)) << workers;
}

TEST(Pool, OneWorkerIsTheCaller) {
  std::thread::id thread;
  on_pool(1, [&](int32_t) { thread = std::this_thread::get_id(); });
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST(Pool, TheCallerTakesPartAsWorkerZero) {
  std::thread::id thread;
  on_pool(4, [&](int32_t worker) {
    if (worker == 0) thread = std::this_thread::get_id();
  });
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST(Pool, GrowsToTheLargestNumberAsked) {
  EXPECT_TRUE(all_at_the_same_time(2));
  EXPECT_TRUE(all_at_the_same_time(6));
  EXPECT_TRUE(all_at_the_same_time(3));
  EXPECT_TRUE(all_at_the_same_time(9));
}

TEST(Pool, TenThousandLaunches) {
  int64_t sum = 0;
  for (int i = 0; i < 10000; ++i) {
    std::atomic<int64_t> numbers{0};
    on_pool(4, [&](int32_t worker) { numbers.fetch_add(int64_t{1} << (8 * worker)); });
    sum += numbers.load() == 0x01010101;
  }
  EXPECT_EQ(sum, 10000);
}

// What a job wrote without atomics is there when the call returns, and what the caller wrote before is there for it.
TEST(Pool, PublishesPlainWrites) {
  for (int i = 0; i < 2000; ++i) {
    int in[4] = {i, i + 1, i + 2, i + 3}, out[4] = {};
    on_pool(4, [&](int32_t worker) { out[worker] = in[worker] * 2; });
    for (int k = 0; k < 4; ++k) ASSERT_EQ(out[k], 2 * (i + k));
  }
}

TEST(Pool, SleepingThreadsWakeUp) {
  for (const int idle_us : {0, 20, 60, 75, 100, 300, 2000, 20000}) {
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(all_at_the_same_time(4)) << "after " << idle_us << " us";
      std::this_thread::sleep_for(std::chrono::microseconds(idle_us));
    }
  }
}

TEST(Pool, TheCallerSleepsThroughALongJobOfAnother) {
  std::atomic<int> started{0}, ended{0};
  on_pool(3, [&](int32_t worker) {
    started.fetch_add(1);
    while (started.load() < 3) std::this_thread::yield();  // so that the caller has no other number left to run
    if (worker != 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ended.fetch_add(1);
  });
  EXPECT_EQ(ended.load(), 3);
}

TEST(Pool, SeveralCallersAtOnce) {
  std::atomic<int> good{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 5; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 1000; ++i) good += each_exactly_once(2 + (i + caller) % 5);
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(good.load(), 5000);
}

TEST(Pool, NestedCallsRunInTheirWorker) {
  for (int i = 0; i < 200; ++i) {
    std::atomic<int> inner{0}, elsewhere{0};
    on_pool(3, [&](int32_t) {
      const auto outer_thread = std::this_thread::get_id();
      on_pool(4, [&](int32_t) {
        inner.fetch_add(1);
        elsewhere += std::this_thread::get_id() != outer_thread;
      });
    });
    ASSERT_EQ(inner.load(), 12);
    ASSERT_EQ(elsewhere.load(), 0);
  }
}

// In the child: no number lost, threads of its own; never hangs.
int status_of_child(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}
[[noreturn]] void child_main() {
  alarm(60);
  bool good = true;
  for (int i = 0; i < 20; ++i) good = good && each_exactly_once(4) && all_at_the_same_time(3);
  _exit(good ? 0 : 1);
}

TEST(Pool, WorksInAForkedChild) {
  ASSERT_TRUE(all_at_the_same_time(4));
  for (int i = 0; i < 5; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) child_main();
    EXPECT_EQ(status_of_child(child), 0);
    EXPECT_TRUE(all_at_the_same_time(4));  // the parent's threads are as they were
  }
}

TEST(Pool, WorksInAChildForkedInTheMiddleOfAJob) {
  std::atomic<pid_t> child{-1};
  on_pool(4, [&](int32_t worker) {
    if (worker != 2) return;
    child = fork();
    if (child.load() == 0) child_main();
  });
  ASSERT_GT(child.load(), 0);
  EXPECT_EQ(status_of_child(child.load()), 0);
}

TEST(PoolDeathTest, TheProcessEndsWhileThreadsSpinOrSleep) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto use_and_exit = [](int idle_us) {
    alarm(60);
    all_at_the_same_time(4);
    std::this_thread::sleep_for(std::chrono::microseconds(idle_us));
    std::exit(0);
  };
  EXPECT_EXIT(use_and_exit(0), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(use_and_exit(20000), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace flashwave
