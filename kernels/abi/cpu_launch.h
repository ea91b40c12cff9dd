// How a CPU kernel is called: the parameters, the schedule, its memory, and a way to run on several threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/abi/params.h"

namespace flashwave::abi {

struct CpuLaunch {
  Schedule schedule;
  char* workspace;  // schedule.workspace_bytes, 64-byte aligned
  char* scratch;    // workers * schedule.scratch_bytes, 64-byte aligned
  int32_t workers;
  // Runs job(arg, worker) once for each worker in [0, workers), possibly in parallel; returns when all are done.
  void* executor;
  void (*run)(void* executor, int32_t workers, void (*job)(void* arg, int32_t worker), void* arg);

  char* scratch_of(int32_t worker) const { return scratch + worker * schedule.scratch_bytes; }

  // body(task, worker) for each task in [0, tasks), handed out in order as workers come free. Every result is a
  // function of its task alone, so who runs it does not matter.
  template <class Body>
  void for_each_task(int64_t tasks, Body&& body) const {
    struct Job {
      std::atomic<int64_t> next{0};
      int64_t tasks;
      Body* body;
    } job;
    job.tasks = tasks;
    job.body = &body;
    auto work = [](void* arg, int32_t worker) {
      auto* job = static_cast<Job*>(arg);
      for (int64_t t; (t = job->next.fetch_add(1, std::memory_order_relaxed)) < job->tasks;) (*job->body)(t, worker);
    };
    const int32_t useful = static_cast<int32_t>(tasks < workers ? tasks : workers);
    if (useful <= 1) {
      work(&job, 0);
    } else {
      run(executor, useful, work, &job);
    }
  }
};

using CpuKernel = void (*)(const Params&, const CpuLaunch&);

}  // namespace flashwave::abi
