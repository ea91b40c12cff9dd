#include "device/cpu/cpu_device.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

#include "device/cpu/cpu_info.h"
#include "device/cpu/thread_pool.h"
#include "device/cpu/tiles.h"
#include "kernels/abi/cpu_launch.h"

namespace flashwave {

namespace {

// Round to nearest, subnormals kept, no traps, whatever the program set for the thread; put back at the end. Without
// it the result would depend on which thread computed it.
class StandardFloatingPoint {
 public:
#if defined(__x86_64__)
  // MXCSR alone: kernels do not compute in the x87 unit, whose state fegetenv() and fesetenv() also move, which was
  // 0.18 us of a call.
  StandardFloatingPoint() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~StandardFloatingPoint() { _mm_setcsr(before_); }
#else
  StandardFloatingPoint() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~StandardFloatingPoint() { std::fesetenv(&before_); }
#endif
  StandardFloatingPoint(const StandardFloatingPoint&) = delete;
  StandardFloatingPoint& operator=(const StandardFloatingPoint&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kDefault = 0x1F80;  // all exceptions masked; Intel SDM vol. 1, 10.2.3
  unsigned before_;
#else
  std::fenv_t before_;
#endif
};

// Runs jobs on the caller's executor, or on the pool, each under the standard floating point rules.
struct Executor {
  const fw_executor* lent;  // nullptr: the pool
  bool missed = false;      // the caller's executor did not keep its contract

  struct Job {
    void (*job)(void*, int32_t);
    void* arg;
    std::atomic<int32_t> calls{0};

    static void call(void* self, int32_t worker) {
      auto* wrapped = static_cast<Job*>(self);
      StandardFloatingPoint standard;
      wrapped->job(wrapped->arg, worker);
      wrapped->calls.fetch_add(1, std::memory_order_relaxed);
    }
  };

  static void run(void* self, int32_t workers, void (*job)(void*, int32_t), void* arg) {
    auto* executor = static_cast<Executor*>(self);
    Job wrapped{job, arg};
    if (executor->lent == nullptr) {
      run_on_pool(workers, Job::call, &wrapped);
      return;
    }
    executor->lent->run(executor->lent->context, workers, Job::call, &wrapped);
    if (wrapped.calls.load(std::memory_order_relaxed) != workers) executor->missed = true;
  }
};

constexpr size_t kAlignment = 64;
constexpr size_t kKeptBytes = size_t{64} << 20;  // larger workspaces go back to the system after the call
constexpr size_t kSmallestBytes = size_t{64} << 10;

char* allocate(size_t bytes) {
  if (bytes > PTRDIFF_MAX - kAlignment) return nullptr;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return static_cast<char*>(std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded));
}

// The workspace a thread keeps from call to call. Only grows.
struct KeptWorkspace {
  char* data = nullptr;
  size_t bytes = 0;
  bool lent = false;

  ~KeptWorkspace() { std::free(data); }

  char* lend(size_t wanted) {
    if (wanted > bytes) {
      std::free(data);
      bytes = 0;
      // Doubling, so that a sequence that gets longer call by call does not allocate in each.
      size_t grown = kSmallestBytes;
      while (grown < wanted) grown *= 2;
      data = allocate(grown);
      if (data == nullptr) return nullptr;
      bytes = grown;
    }
    lent = true;
    return data;
  }
};
thread_local KeptWorkspace kept;

class CpuDevice final : public Device {
 public:
  CpuDevice() {
    const char* limit = std::getenv("FLASHWAVE_CPU_ISA");
    const uint32_t detected = detected_isa();
    if (!limited_isa(detected, limit, &info_.isa)) {
      std::fprintf(stderr, "flashwave: FLASHWAVE_CPU_ISA must be %s; '%s' is ignored\n", limit_words().c_str(), limit);
    }
    info_.name = "cpu";
    info_.kind = "cpu";
    info_.arch = arch_name(info_.isa);
    info_.description = cpu_brand();
    if (limit != nullptr && info_.isa != detected)
      info_.description += ", limited by FLASHWAVE_CPU_ISA=" + std::string(limit);
    info_.compute_units = usable_cores();
    info_.memory_bytes = physical_memory();
    info_.host_memory = true;
  }

  const DeviceInfo& info() const override { return info_; }

  uint32_t refused(uint32_t isa) override {
    return (isa & kIsaTiles) != 0 && !tiles_granted() ? kIsaTiles : uint32_t{kIsaNone};
  }

  Status alloc(size_t bytes, void** pointer) override {
    *pointer = allocate(bytes);
    if (*pointer != nullptr) return {};
    return {FW_OUT_OF_MEMORY, "cpu cannot allocate " + std::to_string(bytes) + " bytes"};
  }

  Status free(void* pointer) override {
    std::free(pointer);
    return {};
  }

  Status copy(void* destination, const void* source, size_t bytes, fw_copy_kind, void*) override {
    if (bytes > 0) std::memcpy(destination, source, bytes);
    return {};
  }

  Status synchronize(void*) override { return {}; }  // every launch has ended when it returns

  char* cached_workspace(size_t bytes) override {
    // `lent`: this call is nested in one whose executor runs other work on the waiting thread.
    return kept.lent || bytes > kKeptBytes ? allocate(bytes) : kept.lend(bytes);
  }

  void release_workspace(char* workspace) override {
    if (workspace == kept.data) {
      kept.lent = false;
    } else {
      std::free(workspace);
    }
  }

  Status launch(const Kernel& kernel, const abi::Params& params, const abi::Schedule& schedule,
                const LaunchOptions& options) override {
    if (kernel.function == nullptr)
      return {FW_INTERNAL_ERROR, std::string(kernel.name) + " is not a kernel of this CPU"};
    Executor executor{options.executor};
    const abi::CpuLaunch launch{schedule,        options.workspace, options.scratch,
                                options.threads, &executor,         Executor::run};
    {
      StandardFloatingPoint standard;
      kernel.function(params, launch);
    }
    if (executor.missed) return Status::invalid("executor.run must call its job exactly once for each worker");
    return {};
  }

 private:
  DeviceInfo info_;
};

}  // namespace

Device& cpu_device() {
  static auto& device = *new CpuDevice;  // never destroyed: a call may still run while the process exits
  return device;
}

}  // namespace flashwave
