// What WaveChecker keeps of a wave, and what it does at every instruction. Each part has a file of its own: waits.cpp,
// registers.cpp, hazards.cpp.
#pragma once

#include <algorithm>

#include "check/checker.h"
#include "check/hazards.h"
#include "check/register_use.h"

namespace emu {

// One of the hardware's counters of memory instructions in flight.
struct WaitCounter {
  u32 issued = 0, done = 0;
  u32 out_of_order = 0;  // sequence of the last one that may return out of order; until done, only a wait for 0 helps
  struct Load {
    u32 sequence = 0;
    RegisterRange range;
  };
  // Loads not yet waited for, oldest first. The hardware counts to 63 at most and then stalls, so a ring does.
  static constexpr u32 kLoads = 256;
  Load load[kLoads];
  u32 first = 0, last = 0;
  // Of the last load into each half of a register.
  struct Halves {
    u32 low = 0, high = 0;
  };
  Halves sequence[kScalarBase + kScalarRegisters] = {};

  bool idle() const { return issued == done; }
  // The halves of a register that are still being loaded.
  u8 loading(int reg) const {
    const Halves& h = sequence[reg];
    return (h.low > done ? kLowHalf : 0) | (h.high > done ? kHighHalf : 0);
  }
  // They count as loaded, so that a mistake is reported once.
  void forget(int reg, u8 halves) {
    if (halves & kLowHalf) sequence[reg].low = 0;
    if (halves & kHighHalf) sequence[reg].high = 0;
  }
};

// Registers, 64 to a word: why one, or half of it, may not be read or overwritten just now.
struct RegisterState {
  u64 loading_vmem = 0;  // a load waits on vmcnt or loadcnt
  u64 loading_lds = 0;   // on lgkmcnt, dscnt or kmcnt
  u64 undefined = 0;     // never written, or a copy of such a one
  u64 hazardous = 0;     // result or accumulator of a matrix instruction that may still run
};

// Calls f(word, bits) for each word that registers of the range are in.
template <class F>
inline void each_word(const RegisterRange& range, F f) {
  for (u32 first = range.first, end = static_cast<u32>(range.first) + range.count; first < end;) {
    const u32 next = std::min(end, (first / 64 + 1) * 64);
    f(first / 64, (~0ull >> (64 - (next - first))) << first % 64);
    first = next;
  }
}

struct WaveChecker::State {
  explicit State(const CheckOptions& o) : options(o) {}

  const CheckOptions& options;
  const RegisterUseTable* table = nullptr;
  Family family = Family::gfx9;
  RegisterState words[kRegisterWords];
  WaitCounter vmem, lds, scalar;  // scalar: kmcnt of gfx12; before, scalar loads share lgkmcnt
  u32 stores_issued = 0;
  bool flat_in_lds = false;                // the flat instruction being executed touches LDS
  u64 new_undefined[kRegisterWords] = {};  // what the instruction being executed leaves undefined
  bool leaves_undefined = false;
  HazardTracker hazards;

  const RegisterUse& use_of(const Wave& wave, const Instruction& in) const {
    const RegisterUse& use = table->use[in.index];
    if (wave.indexing || (use.traits & kRelative)) [[unlikely]]
      return use_by_index(wave, in, use);
    return use;
  }
  const RegisterUse& use_by_index(const Wave& wave, const Instruction& in, const RegisterUse& named) const;
  void look_at_addresses(const Wave& wave, const Instruction& in);
  void keep_undefined();
  // waits.cpp
  void wait(const Instruction& in, WaitKind kind);
  void issue(const Instruction& in, const RegisterUse& use);
  void report_loading(Wave& wave, const Instruction& in, const RegisterUse& use);
  const char* counter_name(bool vector_memory, bool scalar_register) const;
  // registers.cpp
  void start_registers(const Wave& wave, u32 initial_sgprs, u32 initial_vgprs);
  void examine_undefined(Wave& wave, const Instruction& in, const RegisterUse& use);
  bool undefined(int reg) const { return words[reg / 64].undefined >> (reg % 64) & 1; }
};

inline const RegisterUse& WaveChecker::before(Wave& wave, const Instruction& in) {
  State& s = *state_;
  const RegisterUse& use = s.use_of(wave, in);
  const RegisterWord* word = use.words;
  u64 loading = 0, undefined = 0, hazardous = 0;
  for (int i = 0; i < use.read_words; ++i, ++word) {
    const RegisterState& state = s.words[word->word];
    loading |= (state.loading_vmem | state.loading_lds) & word->mask;
    undefined |= state.undefined & word->mask;
    hazardous |= state.hazardous & word->mask;
  }
  for (int i = 0; i < use.write_words; ++i, ++word) {
    const RegisterState& state = s.words[word->word];
    loading |= (state.loading_vmem | state.loading_lds) & word->mask;
    hazardous |= state.hazardous & word->mask;
  }
  if (loading) [[unlikely]]
    s.report_loading(wave, in, use);
  if (undefined) [[unlikely]]
    s.examine_undefined(wave, in, use);
  if (s.options.on(Check::hazard)) s.hazards.before(wave, in, use, s.words, hazardous != 0);
  if (use.traits & kFlat) [[unlikely]]
    s.look_at_addresses(wave, in);
  return use;
}

inline void WaveChecker::after(Wave& wave, const Instruction& in, const RegisterUse& use) {
  State& s = *state_;
  const RegisterWord* word = use.words + use.read_words;
  for (int i = 0; i < use.write_words; ++i, ++word) s.words[word->word].undefined &= ~word->mask;
  if (s.leaves_undefined) [[unlikely]]
    s.keep_undefined();
  bool paused = false;
  if (use.traits & (kOnCounters | kMayPause)) {
    if (use.counters) s.issue(in, use);
    if (use.wait != WaitKind::none) s.wait(in, use.wait);
    // A barrier of a single wave waits for nobody.
    paused = (in.cls == Class::branch && wave.pc != in.index + 1) ||
             (in.cls == Class::barrier && wave.state == WaveState::at_barrier && wave.group->wave_count > 1);
  }
  if (s.options.on(Check::hazard)) s.hazards.after(in, use, s.words, paused);
}

}  // namespace emu
