#include "run/once.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "core/errors.h"
#include "run/workgroup.h"

namespace emu {
namespace {

std::vector<u64> workgroup_order(u64 groups, const RunOptions& options) {
  std::vector<u64> order(groups);
  for (u64 i = 0; i < groups; ++i) order[i] = options.reverse ? groups - 1 - i : i;
  if (options.seed) {
    std::mt19937_64 random(options.seed);
    std::shuffle(order.begin(), order.end(), random);
  }
  return order;
}

void check_shape(const Program& program, const Kernel& kernel, const LaunchShape& shape) {
  const u64 items = static_cast<u64>(shape.block[0]) * shape.block[1] * shape.block[2];
  if (items == 0 || items > kernel.max_workgroup) {
    throw ExecutionError("workgroup of " + std::to_string(items) + " work-items; the kernel takes 1 to " +
                         std::to_string(kernel.max_workgroup));
  }
  const u64 lds = static_cast<u64>(kernel.lds_bytes) + shape.dynamic_lds;
  if (lds > program.target->lds_bytes) {
    throw ExecutionError("workgroup needs " + std::to_string(lds) + " bytes of LDS; " + program.target->name + " has " +
                         std::to_string(program.target->lds_bytes));
  }
}

}  // namespace

LaunchResult run_once(const Program& program, const Kernel& kernel, const LaunchShape& shape, const void* arguments,
                      size_t argument_bytes, std::vector<Region> memory, const RunOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  LaunchResult result;
  LaunchLog log(program, kernel);
  try {
    check_shape(program, kernel, shape);
    const u64 groups = static_cast<u64>(shape.grid[0]) * shape.grid[1] * shape.grid[2];
    const std::vector<u64> order = workgroup_order(groups, options);
    u64 threads = options.threads > 0 ? static_cast<u64>(options.threads) : std::thread::hardware_concurrency();
    if (options.on_instruction) threads = 1;
    threads = std::clamp<u64>(threads, 1, std::max<u64>(groups, 1));

    const DispatchMemory dispatch = make_dispatch(program, kernel, shape, arguments, argument_bytes);
    std::vector<std::unique_ptr<WorkgroupRunner>> runners;
    memory.insert(memory.end(), dispatch.regions.begin(), dispatch.regions.end());
    for (u64 i = 0; i < threads; ++i) {
      runners.push_back(std::make_unique<WorkgroupRunner>(program, kernel, shape, options, log));
      const std::vector<Region> scratch = runners.back()->scratch_regions();
      memory.insert(memory.end(), scratch.begin(), scratch.end());
    }
    MemoryMap map(std::move(memory));
    for (auto& runner : runners) runner->use_memory(dispatch, map);
    result.waves_per_group =
        (shape.block[0] * shape.block[1] * shape.block[2] + kernel.wave_size - 1) / static_cast<u32>(kernel.wave_size);
    result.lds_bytes = kernel.lds_bytes + shape.dynamic_lds;

    std::atomic<u64> next{0};
    std::atomic<bool> failed{false};
    std::vector<std::exception_ptr> errors(threads);
    auto work = [&](u64 thread) {
      try {
        for (u64 i = next++; i < groups && !failed; i = next++) {
          const u64 group = order[i];
          const u32 id[3] = {static_cast<u32>(group % shape.grid[0]),
                             static_cast<u32>(group / shape.grid[0] % shape.grid[1]),
                             static_cast<u32>(group / shape.grid[0] / shape.grid[1])};
          const bool traced = options.trace && group == 0;
          runners[thread]->run(id, options.seed ? options.seed + group + 1 : 0, traced ? &result.trace : nullptr);
        }
      } catch (...) {
        errors[thread] = std::current_exception();
        failed = true;
      }
    };
    std::vector<std::thread> helpers;
    for (u64 i = 1; i < threads; ++i) helpers.emplace_back(work, i);
    work(0);
    for (std::thread& helper : helpers) helper.join();
    for (auto& runner : runners) {
      if (result.executed.empty()) {
        result.executed = std::move(runner->executed);
      } else {
        for (size_t i = 0; i < result.executed.size(); ++i) result.executed[i] += runner->executed[i];
      }
      result.instructions += runner->instructions;
      if (!runner->counter) continue;
      if (result.accesses) {
        result.accesses->join(*runner->counter);
      } else {
        result.accesses = std::move(runner->counter);
      }
    }
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  } catch (const ExecutionError& error) {
    result.error = error.what();
  }
  result.reports = log.reports();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return result;
}

}  // namespace emu
