#include "device/cpu/thread_pool.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>

#include "device/cpu/cpu_info.h"

namespace flashwave {
namespace {

constexpr int32_t kMostThreads = 1024;
constexpr auto kSpinTime = std::chrono::microseconds(75);  // longer than the gap between two launches of a layer
constexpr int kSpinsPerClockRead = 64;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether ready() came true within kSpinTime.
template <class Ready>
bool spin_until(Ready&& ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kSpinsPerClockRead; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

// The threads never end, so their code must never be unmapped: closing the library with dlclose leaves it in place.
void keep_library_loaded() {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&keep_library_loaded), &self) != 0 && self.dli_fname != nullptr) {
    dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    dlerror();  // inside a program rather than a library there is nothing to keep; leave no message behind
  }
}

// One owner at a time offers `open_` worker numbers; threads and the owner claim them by counting it down. A number is
// claimed before job_ and arg_ are read, and the owner changes those only when every claimed number is finished.
class Pool {
 public:
  Pool() : process_(getpid()), cores_(usable_cores()) {}

  pid_t process() const { return process_; }

  // False if another call has the threads.
  bool try_run(int32_t workers, void (*job)(void*, int32_t), void* arg) {
    if (owned_.exchange(true, std::memory_order_acquire)) return false;
    grow(std::min(workers - 1, kMostThreads));
    job_ = job;
    arg_ = arg;
    finished_.store(0, std::memory_order_relaxed);
    open_.store(workers - 1, std::memory_order_release);
    launches_.fetch_add(1, std::memory_order_seq_cst);
    wake_one();  // it wakes others: the owner has its own work to do

    job(arg, 0);
    int32_t own = 1;
    for (int32_t worker; (worker = claim()) != 0; ++own) job(arg, worker);
    wait_for_finished(workers - own);
    owned_.store(false, std::memory_order_release);
    return true;
  }

 private:
  // A worker number that nobody else gets, or 0 if none is left.
  int32_t claim() {
    int32_t open = open_.load(std::memory_order_relaxed);
    while (open > 0 &&
           !open_.compare_exchange_weak(open, open - 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
    }
    return open;
  }

  // With more threads than cores, one that spins keeps another from working.
  bool may_spin() const { return threads_.load(std::memory_order_relaxed) < cores_; }

  // Waking costs a system call, so both sides first say that they sleep. Sequential consistency makes that safe: either
  // the sleeper sees the new value and does not sleep, or the other side sees the sleeper and wakes it.
  void wake_one() {
    if (sleepers_.load(std::memory_order_seq_cst) > 0) launches_.notify_one();
  }
  void sleep(uint32_t seen) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    launches_.wait(seen, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

  void finish_one() {
    finished_.fetch_add(1, std::memory_order_seq_cst);
    if (owner_sleeps_.load(std::memory_order_seq_cst)) finished_.notify_one();
  }
  void wait_for_finished(int32_t expected) {
    const auto done = [&] { return finished_.load(std::memory_order_acquire) == expected; };
    if (done() || (may_spin() && spin_until(done))) return;
    owner_sleeps_.store(true, std::memory_order_seq_cst);
    for (int32_t seen; (seen = finished_.load(std::memory_order_seq_cst)) != expected;) {
      finished_.wait(seen, std::memory_order_seq_cst);
    }
    owner_sleeps_.store(false, std::memory_order_relaxed);
  }

  void grow(int32_t wanted) {
    if (threads_.load(std::memory_order_relaxed) >= wanted) return;
    // The program's signals are for the program's threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (int32_t n = threads_.load(std::memory_order_relaxed); n < wanted; ++n) {
        std::thread([this] { serve(); }).detach();
        threads_.store(n + 1, std::memory_order_relaxed);
      }
    } catch (const std::system_error&) {
      // No more threads to be had: the owner runs the numbers that are left.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  [[noreturn]] void serve() {
    for (;;) {
      const uint32_t seen = launches_.load(std::memory_order_acquire);
      for (int32_t worker; (worker = claim()) != 0;) {
        if (worker > 1) {  // numbers are left: two more threads may rise
          wake_one();
          wake_one();
        }
        job_(arg_, worker);
        finish_one();
      }
      const auto offered = [&] { return open_.load(std::memory_order_relaxed) > 0; };
      if (may_spin() && spin_until(offered)) continue;
      sleep(seen);
    }
  }

  const pid_t process_;
  const int64_t cores_;
  std::atomic<int32_t> threads_{0};
  std::atomic<bool> owned_{false};
  std::atomic<bool> owner_sleeps_{false};
  std::atomic<int32_t> sleepers_{0};
  void (*job_)(void*, int32_t) = nullptr;
  void* arg_ = nullptr;
  // Apart from each other: idle threads read the first, finishing ones write the second.
  alignas(64) std::atomic<int32_t> open_{0};
  alignas(64) std::atomic<int32_t> finished_{0};
  alignas(64) std::atomic<uint32_t> launches_{0};
};

// Never destroyed: its threads use it until the process is gone. A forked child has the parent's pool in its memory
// but not its threads, so it leaves that one alone and makes its own.
std::atomic<Pool*> current_pool{nullptr};

Pool& pool() {
  Pool* pool = current_pool.load(std::memory_order_acquire);
  if (pool != nullptr && pool->process() == getpid()) return *pool;
  if (pool == nullptr) keep_library_loaded();
  auto* made = new Pool;
  if (current_pool.compare_exchange_strong(pool, made, std::memory_order_acq_rel)) return *made;
  delete made;  // another thread was first
  return *pool;
}

}  // namespace

void run_on_pool(int32_t workers, void (*job)(void* arg, int32_t worker), void* arg) {
  if (workers > 1 && pool().try_run(workers, job, arg)) return;
  for (int32_t worker = 0; worker < workers; ++worker) job(arg, worker);
}

}  // namespace flashwave
