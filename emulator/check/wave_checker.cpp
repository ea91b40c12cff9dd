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

void WaveChecker::State::look_at_addresses(const Wave& wave, const Instruction& in) {
  // The address is the first source of loads, stores and atomics alike.
  flat_in_lds = false;
  const Operand& address = in.source(0);
  if (!address.is_vgpr() || address.width != 2) return;
  const u32* high = wave.vgpr[address.reg + 1];
  for (u64 lanes = wave.exec(); lanes; lanes &= lanes - 1) {
    flat_in_lds |= high[__builtin_ctzll(lanes)] == kSharedAperture >> 32;
  }
}

void WaveChecker::State::keep_undefined() {
  for (int i = 0; i < kRegisterWords; ++i) {
    words[i].undefined |= new_undefined[i];
    new_undefined[i] = 0;
  }
  leaves_undefined = false;
}

u32 WaveChecker::lds_issued() const { return state_->lds.issued; }
u32 WaveChecker::lds_done() const { return state_->lds.done; }
u32 WaveChecker::vmem_issued() const { return state_->vmem.issued; }
u32 WaveChecker::vmem_done() const { return state_->vmem.done; }
const CheckOptions& WaveChecker::options() const { return state_->options; }

}  // namespace emu
