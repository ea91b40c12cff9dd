// The options of include/flashwave_emu.h.
#pragma once

#include <string>

#include "core/launch.h"

namespace emu::hip {

enum class CheckMode : u8 { off, report, fail };

struct Settings {
  CheckMode check = CheckMode::fail;
  CheckOptions checks;
  bool count = false, model = false, reverse = false, log = false;
  bool hardware_numerics = false;
  WaveOrder order = WaveOrder::waves;
  u64 seed = 0;
  int threads = 0;

  RunOptions run_options() const;
};

// As they are now. The first use reads the environment.
Settings current_settings();
// Empty, or what is wrong with the name or the value.
std::string set_option(const std::string& name, const std::string& value);

// "compiler" or "assembly", as CheckOptions::close_vector_hazards. Empty, or what is wrong.
std::string parse_hazards(const std::string& value, bool* close_vector);
// "waves", "lockstep" or "compare". Empty, or what is wrong.
std::string parse_order(const std::string& value, WaveOrder* order);

// "wait,bounds" or "all" as bits of CheckOptions::enabled. Empty, or what is wrong.
std::string parse_checks(const std::string& list, u32* enabled);

}  // namespace emu::hip
