#include "check/wave_state.h"
#include "core/indexing.h"
#include "core/memory_map.h"

namespace emu {

WaveChecker::WaveChecker(const CheckOptions& options) : state_(new State(options)) {}
WaveChecker::~WaveChecker() { delete state_; }

void WaveChecker::start(const Wave& wave, u32 initial_sgprs, u32 initial_vgprs) {
  State& s = *state_;
  s.table = &register_use_of(*wave.group->program);
  s.family = wave.target->family;
  for (WaitCounter* counter : {&s.vmem, &s.lds, &s.scalar}) {
    counter->issued = counter->done = counter->out_of_order = counter->first = counter->last = 0;
  }
  s.stores_issued = 0;
  s.leaves_undefined = false;
  s.start_registers(wave, initial_sgprs, initial_vgprs);
  s.hazards.start(*wave.target, s.options);
}

const RegisterUse& WaveChecker::State::use_by_index(const Wave& wave, const Instruction& in,
                                                    const RegisterUse& named) const {
  const Instruction& original = wave.group->program->code[in.index];
  if (is_indexed(wave, in)) return indexed_use_of(*wave.group->program, in, Indexing::of_mode(wave, original));
  if (named.traits & kRelative) return indexed_use_of(*wave.group->program, in, Indexing::of_move(wave, original));
  return named;
}

void WaveChecker::before(Wave& wave, const Instruction& in) {
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
  if (use.traits & kFlat) [[unlikely]] {
    // The address is the first source of loads, stores and atomics alike.
    s.flat_in_lds = false;
    const Operand& address = in.source(0);
    if (address.is_vgpr() && address.width == 2) {
      const u32* high = wave.vgpr[address.reg + 1];
      for (u64 lanes = wave.exec(); lanes; lanes &= lanes - 1) {
        s.flat_in_lds |= high[__builtin_ctzll(lanes)] == kSharedAperture >> 32;
      }
    }
  }
}

void WaveChecker::after(Wave& wave, const Instruction& in) {
  State& s = *state_;
  const RegisterUse& use = s.use_of(wave, in);
  const RegisterWord* word = use.words + use.read_words;
  for (int i = 0; i < use.write_words; ++i, ++word) s.words[word->word].undefined &= ~word->mask;
  if (s.leaves_undefined) [[unlikely]] {
    for (int i = 0; i < kRegisterWords; ++i) {
      s.words[i].undefined |= s.new_undefined[i];
      s.new_undefined[i] = 0;
    }
    s.leaves_undefined = false;
  }
  if (use.counters) s.issue(in, use);
  if (use.wait != WaitKind::none) s.wait(in, use.wait);
  if (s.options.on(Check::hazard)) {
    // A barrier of a single wave waits for nobody.
    const bool paused = (in.cls == Class::branch && wave.pc != in.index + 1) ||
                        (in.cls == Class::barrier && wave.state == WaveState::at_barrier && wave.group->wave_count > 1);
    s.hazards.after(in, use, s.words, paused);
  }
}

u32 WaveChecker::lds_issued() const { return state_->lds.issued; }
u32 WaveChecker::lds_done() const { return state_->lds.done; }
u32 WaveChecker::vmem_issued() const { return state_->vmem.issued; }
u32 WaveChecker::vmem_done() const { return state_->vmem.done; }
const CheckOptions& WaveChecker::options() const { return state_->options; }

}  // namespace emu
