// Wait states that the hardware does not insert by itself and the program must.
#pragma once

#include "check/checker.h"
#include "check/register_use.h"
#include "core/report.h"

namespace emu {

struct RegisterState;

// A wait state is an instruction issued, or one of the N + 1 of s_nop N. The numbers are those LLVM 22 keeps between
// the two instructions (GCNHazardRecognizer; AMD's CDNA3 ISA "Manually inserted wait states" has most of them), found
// by running its pass on pairs of instructions. Jumps to other functions forget everything, as the compiler does.
class HazardTracker {
 public:
  void start(const Target& target, const CheckOptions& options);
  // `suspect`: a register of the instruction is hazardous in `words`.
  void before(const Wave& wave, const Instruction& in, const RegisterUse& use, RegisterState* words, bool suspect) {
    if (cdna_) {
      if (suspect) check_matrix(wave, in, use, words);
      for (u32 groups = use.sensitive; groups; groups &= groups - 1) {
        if (time_ < until_[__builtin_ctz(groups)]) {
          check_short(wave, in, use);
          break;
        }
      }
    } else if (use.traits & kValu) {
      check_rdna(wave, in, use);
    }
  }
  // `paused`: a branch was taken, so that instructions are fetched anew, or the wave met others at a barrier.
  void after(const Instruction& in, const RegisterUse& use, RegisterState* words, bool paused) {
    if (cdna_ ? use.begins || (use.traits & (kMfma | kJump)) : use.traits & kRdnaTraits) remember(in, use, words);
    time_ += paused ? kPauseStates : use.wait_states;
  }

 private:
  // A taken branch is 16 to 20 clocks where one that is not is 4 (measured on GCN: CLRX "GCN ISA Instruction Timings").
  // Of barriers no number is known but that they wait for other waves and take no less.
  static constexpr u32 kPauseStates = 4;
  static constexpr u32 kRdnaTraits = kValu | kVmem | kLds | kWaitsForValu | kJump;

  struct Recent {
    u64 time = 0;
    const RegisterUse* use = nullptr;
  };
  struct Matrix {
    u64 time = 0;
    const RegisterUse* use = nullptr;
    RegisterRange result, accumulator;
    const Opcode* opcode = nullptr;
  };

  void remember(const Instruction& in, const RegisterUse& use, RegisterState* words);
  void forget(RegisterState* words);
  void check_short(const Wave& wave, const Instruction& in, const RegisterUse& use);
  void check_matrix(const Wave& wave, const Instruction& in, const RegisterUse& use, RegisterState* words);
  void check_rdna(const Wave& wave, const Instruction& in, const RegisterUse& use);
  void remember_rdna(const Instruction& in, const RegisterUse& use);
  void rebuild(RegisterState* words);
  int states_since(u64 time) const { return static_cast<int>(time_ - time) - 1; }
  bool writes(const RegisterUse& producer, const RegisterRange& range) const;
  bool reads_any(const RegisterUse& consumer, const RegisterUse& producer, bool vector_only) const;
  void report(const Wave& wave, const Instruction& in, const std::string& what, int states, int needed) const;
  int matrix_read_states(const Matrix& first, const RegisterUse& use, const RegisterRange& range, bool accumulator,
                         const Opcode* opcode) const;
  int matrix_write_states(const Matrix& first, const RegisterUse& use, const Opcode* opcode) const;
  int matrix_overwrite_states(const Matrix& first) const;
  int gfx908_states(const Matrix& first, const RegisterUse& use, bool accumulator, bool written) const;

  int cdna_ = 0;
  bool close_vector_ = true;  // CheckOptions::close_vector_hazards
  Family family_ = Family::gfx9;
  u64 time_ = 0;
  u64 until_[kHazardGroups] = {};  // pairs begun by the last of each group are over by then
  static constexpr u32 kRecent = 8, kMatrices = 32;
  Recent recent_[kRecent];
  u32 recent_count_ = 0;
  Matrix matrix_[kMatrices];
  u32 first_matrix_ = 0, last_matrix_ = 0;
  // RDNA: the last two transcendentals, and how many vector instructions there were before them.
  struct Transcendental {
    RegisterRange result;
    Half half = Half::whole;
    u32 vector_count = 0;
  };
  Transcendental transcendental_[2];
  u32 transcendentals_ = 0, live_transcendentals_ = 0, vectors_ = 0;
  const RegisterUse* last_vector_ = nullptr;       // of the VALU
  const RegisterUse* last_real_vector_ = nullptr;  // other than v_nop
};

}  // namespace emu
