#include "device/cpu/openmp.h"

#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <list>
#include <mutex>
#include <string>

namespace flashwave {
namespace {

struct Runtime {
  void* handle;
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);  // libgomp's ABI
  int (*thread_num)();
  int (*num_threads)();
  pid_t process;
  fw_executor executor;
};

struct Region {
  const Runtime* runtime;
  int32_t workers;
  void (*job)(void* arg, int32_t worker);
  void* arg;
};

// Runs in every thread of the team, which may be smaller than asked for (nested regions, a limit of the program's).
void body(void* data) {
  const auto& region = *static_cast<const Region*>(data);
  const int threads = region.runtime->num_threads();
  for (int32_t worker = region.runtime->thread_num(); worker < region.workers; worker += threads) {
    region.job(region.arg, worker);
  }
}

void run(void* context, int32_t workers, void (*job)(void* arg, int32_t worker), void* arg) {
  const auto* runtime = static_cast<const Runtime*>(context);
  Region region{runtime, workers, job, arg};
  if (getpid() == runtime->process) {
    runtime->parallel(body, &region, static_cast<unsigned>(workers), 0);
    return;
  }
  // libgomp waits forever for the threads that a forked child does not have.
  for (int32_t worker = 0; worker < workers; ++worker) job(arg, worker);
}

template <class Function>
bool find(void* handle, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(handle, name));
  return *function != nullptr;
}

}  // namespace

Status openmp_executor(const char* library, const fw_executor** executor) {
  static std::mutex mutex;
  static auto* known = new std::list<Runtime>;  // never destroyed: executors live as long as the process
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) {
    dlerror();  // leave no message behind
    return Status::invalid("library must be a shared library that the process has loaded, got '" +
                           std::string(library) + "'");
  }
  const std::lock_guard lock(mutex);
  for (const Runtime& runtime : *known) {
    if (runtime.handle == handle && runtime.process == getpid()) {
      dlclose(handle);
      *executor = &runtime.executor;
      return {};
    }
  }
  Runtime runtime{};
  runtime.handle = handle;
  runtime.process = getpid();
  if (!find(handle, "GOMP_parallel", &runtime.parallel) || !find(handle, "omp_get_thread_num", &runtime.thread_num) ||
      !find(handle, "omp_get_num_threads", &runtime.num_threads)) {
    dlerror();
    dlclose(handle);
    return Status::invalid("library must be an OpenMP runtime with GOMP_parallel (libgomp, libomp, libiomp5), got '" +
                           std::string(library) + "'");
  }
  Runtime& kept = known->emplace_back(runtime);
  kept.executor = {&kept, run};
  *executor = &kept.executor;
  return {};
}

}  // namespace flashwave
