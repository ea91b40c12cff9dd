#include "run/workgroup.h"

#include <algorithm>

#include "check/register_use.h"
#include "core/errors.h"
#include "run/step.h"

namespace emu {

WorkgroupRunner::WorkgroupRunner(const Program& program, const Kernel& kernel, const LaunchShape& shape,
                                 const RunOptions& options, LaunchLog& log)
    : executed(program.code.size(), 0), program_(program), shape_(shape), options_(options) {
  group_.program = &program;
  group_.kernel = &kernel;
  group_.target = program.target;
  group_.log = &log;
  if (options.count) {
    counter = std::make_unique<AccessCounter>(program);
    group_.counter = counter.get();
  }
  const u32 threads = shape.block[0] * shape.block[1] * shape.block[2];
  const u32 lanes = static_cast<u32>(kernel.wave_size);
  group_.wave_count = static_cast<int>((threads + lanes - 1) / lanes);
  for (int i = 0; i < group_.wave_count; ++i) {
    waves_.push_back(std::make_unique<Wave>());
    waves_.back()->scratch.resize(static_cast<size_t>(scratch_per_lane(kernel)) * lanes);
    wave_pointers_.push_back(waves_.back().get());
  }
  group_.waves = wave_pointers_.data();
}

std::vector<Region> WorkgroupRunner::scratch_regions() const {
  std::vector<Region> regions;
  for (const auto& wave : waves_) {
    if (wave->scratch.empty()) continue;
    const u64 begin = reinterpret_cast<u64>(wave->scratch.data());
    regions.push_back({begin, begin + wave->scratch.size(), "the wave's scratch memory", true, false});
  }
  return regions;
}

void WorkgroupRunner::use_memory(const DispatchMemory& dispatch, MemoryMap& memory) {
  dispatch_ = &dispatch;
  group_.memory = &memory;
}

void WorkgroupRunner::run(const u32 id[3], u64 seed, std::vector<std::vector<u32>>* trace) {
  std::copy(id, id + 3, group_.id);
  group_.lds.assign(group_.kernel->lds_bytes + shape_.dynamic_lds, 0xff);
  std::unique_ptr<LdsChecker> lds_checker;
  if (options_.check) {
    lds_checker = std::make_unique<LdsChecker>(options_.checks, group_.lds.size(), group_.wave_count,
                                               register_use_of(program_).loads_to_lds);
    checkers_.clear();
    for (auto& wave : waves_) {
      checkers_.push_back(std::make_unique<WaveChecker>(options_.checks));
      wave->checker = checkers_.back().get();
    }
  }
  group_.lds_checker = lds_checker.get();
  trace_ = trace;
  if (trace_) trace_->assign(waves_.size(), {});
  for (int i = 0; i < group_.wave_count; ++i) start_wave(*waves_[i], i, group_, shape_, *dispatch_);
  if (options_.order == WaveOrder::lockstep) {
    run_in_lockstep();
  } else if (seed) {
    run_interleaved(seed);
  } else {
    run_in_order();
  }
  for (auto& wave : waves_) instructions += wave->executed;
}

bool WorkgroupRunner::finished() const {
  return std::all_of(waves_.begin(), waves_.end(), [](const auto& w) { return w->state == WaveState::done; });
}

// Waves that have ended do not hold a barrier up (CDNA3 ISA, S_BARRIER).
bool WorkgroupRunner::can_pass(const Wave& wave) const {
  return std::all_of(waves_.begin(), waves_.end(), [&](const auto& other) {
    return other->state == WaveState::done || other->barriers_signalled > wave.barriers_passed;
  });
}

bool WorkgroupRunner::release_barriers() {
  std::vector<Wave*> released;
  for (auto& wave : waves_) {
    if (wave->state == WaveState::at_barrier && can_pass(*wave)) released.push_back(wave.get());
  }
  for (Wave* wave : released) {
    ++wave->barriers_passed;
    wave->state = WaveState::running;
  }
  return !released.empty();
}

void WorkgroupRunner::stuck() {
  if (options_.check) check_barrier_divergence(waves_, program_);
  throw ExecutionError("the workgroup is stuck: some waves wait at a barrier that others never reach");
}

void WorkgroupRunner::run_in_order() {
  while (!finished()) {
    bool moved = false;
    for (auto& wave : waves_) {
      if (wave->state != WaveState::running) continue;
      advance(*wave, ~0ull);
      moved = true;
    }
    if (release_barriers()) continue;
    if (!moved) stuck();
  }
  if (options_.check) check_barrier_divergence(waves_, program_);
}

void WorkgroupRunner::run_in_lockstep() {
  while (!finished()) {
    bool moved = false, waiting = false;
    for (auto& wave : waves_) {
      if (wave->state == WaveState::running) {
        advance(*wave, 1);
        moved = true;
      }
      waiting |= wave->state == WaveState::at_barrier;
    }
    if (waiting && release_barriers()) continue;
    if (!moved) stuck();
  }
  if (options_.check) check_barrier_divergence(waves_, program_);
}

void WorkgroupRunner::run_interleaved(u64 seed) {
  std::mt19937_64 random(seed);
  while (!finished()) {
    release_barriers();
    std::vector<Wave*> ready;
    for (auto& wave : waves_) {
      if (wave->state == WaveState::running) ready.push_back(wave.get());
    }
    if (ready.empty()) stuck();
    // Short and long turns: races need both fine interleaving and one wave far ahead of another.
    const u64 turn = random() % 8 == 0 ? 1000 : 1 + random() % 40;
    advance(*ready[random() % ready.size()], turn);
  }
  if (options_.check) check_barrier_divergence(waves_, program_);
}

template <bool Checked, bool Watched>
void WorkgroupRunner::advance_as(Wave& wave, u64 limit) {
  const Instruction* code = program_.code.data();
  const size_t size = program_.code.size();
  u64* counts = executed.data();
  for (u64 done = 0; done < limit && wave.state == WaveState::running; ++done) {
    if (wave.pc >= size) [[unlikely]]
      throw ExecutionError("the wave runs past the end of the code");
    const Instruction& in = code[wave.pc];
    ++counts[wave.pc];
    if constexpr (Watched) {
      if (trace_) (*trace_)[wave.id].push_back(in.index);
    }
    step<Checked>(wave, in);
    if constexpr (Checked) {
      if (in.cls == Class::barrier) group_.lds_checker->barrier_signalled(wave);
    }
    if constexpr (Watched) {
      if (options_.on_instruction) options_.on_instruction(wave, in);
    }
  }
  if (wave.executed > options_.instruction_limit) {
    throw ExecutionError("a wave executed more than " + std::to_string(options_.instruction_limit) + " instructions");
  }
}

void WorkgroupRunner::advance(Wave& wave, u64 limit) {
  const bool watched = trace_ || options_.on_instruction;
  // In slices, so that a kernel that never ends meets the instruction limit.
  constexpr u64 kSlice = 1ull << 22;
  for (u64 left = limit; left > 0 && wave.state == WaveState::running;) {
    const u64 now = std::min(left, kSlice);
    if (options_.check) {
      watched ? advance_as<true, true>(wave, now) : advance_as<true, false>(wave, now);
    } else {
      watched ? advance_as<false, true>(wave, now) : advance_as<false, false>(wave, now);
    }
    left -= now;
  }
}

}  // namespace emu
