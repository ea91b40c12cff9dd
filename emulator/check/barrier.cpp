// Barriers that do not do what they seem to: all waves of a workgroup should execute the same ones.
#include <algorithm>

#include "check/checker.h"

namespace emu {

void check_barrier_divergence(const std::vector<std::unique_ptr<Wave>>& waves, const Program& program) {
  u32 most = 0;
  for (const auto& wave : waves) most = std::max(most, wave->barriers_passed);
  for (const auto& wave : waves) {
    if (!wave->checker || !wave->checker->options().on(Check::barrier) || wave->pc == 0) continue;
    LaunchLog& log = *wave->group->log;
    const Instruction& last = program.code[wave->pc - 1];
    if (wave->state == WaveState::at_barrier) {
      log.add(Check::barrier, *wave, last, "the wave waits at a barrier that other waves never signal");
    } else if (wave->state == WaveState::done && wave->barriers_passed < most &&
               wave->checker->options().skipped_barriers) {
      log.add(Check::barrier, *wave, last,
              "the wave ended after " + std::to_string(wave->barriers_passed) + " barriers, others passed " +
                  std::to_string(most));
    }
  }
}

}  // namespace emu
