#include "check/hazards.h"

#include <algorithm>

#include "check/wave_state.h"
#include "core/opcode.h"

namespace emu {
namespace {

// A source that is this vector register, or the same half of it.
bool reads_half(const Instruction& in, u16 reg, Half half) {
  const bool reads_dest = in.opcode && (in.opcode->flags & kReadsDest);
  for (int i = reads_dest ? 0 : in.dest_count; i < in.operand_count; ++i) {
    const Operand& o = in.operand[i];
    if (!o.is_vgpr() || reg < o.reg || reg >= o.reg + o.width) continue;
    if (o.half == Half::whole || half == Half::whole || o.half == half) return true;
  }
  return false;
}

}  // namespace

void HazardTracker::start(const Target& target, const CheckOptions& options) {
  *this = HazardTracker{};
  close_vector_ = options.close_vector_hazards;
  cdna_ = target.cdna;
  family_ = target.family;
}

void HazardTracker::forget(RegisterState* words) {
  recent_count_ = 0;
  first_matrix_ = last_matrix_;
  live_transcendentals_ = 0;
  last_vector_ = last_real_vector_ = nullptr;
  for (u64& until : until_) until = 0;
  rebuild(words);
}

void HazardTracker::report(const Wave& wave, const Instruction& in, const std::string& what, int states,
                           int needed) const {
  wave.group->log->add(
      Check::hazard, wave, in,
      what + ": " + std::to_string(states) + " wait states between them, " + std::to_string(needed) + " needed");
}

bool HazardTracker::writes(const RegisterUse& producer, const RegisterRange& range) const {
  const RegisterRange* w = producer.write_range();
  return std::any_of(w, w + producer.write_ranges, [&](const RegisterRange& r) { return r.overlaps(range); });
}

bool HazardTracker::reads_any(const RegisterUse& consumer, const RegisterUse& producer, bool vector_only) const {
  const RegisterRange* r = consumer.read_range();
  return std::any_of(r, r + consumer.read_ranges, [&](const RegisterRange& range) {
    return (!vector_only || range.first < kScalarBase) && writes(producer, range);
  });
}

void HazardTracker::remember(const Instruction& in, const RegisterUse& use, RegisterState* words) {
  if (use.traits & kJump) return forget(words);
  if (!cdna_) return remember_rdna(in, use);
  // One more than the longest wait after each group.
  static constexpr u8 kWindow[kHazardGroups] = {3, 2, 2, 6, 6, 3, 2, 3, 3};
  if (use.begins) {
    recent_[recent_count_++ % kRecent] = {time_, &use};
    for (u32 groups = use.begins; groups; groups &= groups - 1) {
      const int group = __builtin_ctz(groups);
      until_[group] = time_ + kWindow[group];
    }
  }
  const bool dot = cdna_ >= 2 && (use.traits & kDot);
  const bool acc_write = cdna_ == 1 && (use.traits & kAccWrite);
  if (!(use.traits & kMfma) && !dot && !acc_write) return;
  if (!use.write_ranges) return;
  if (last_matrix_ - first_matrix_ == kMatrices) ++first_matrix_;
  Matrix& m = matrix_[last_matrix_++ % kMatrices];
  m = {time_, &use, use.write_range()[0], {}, in.opcode};
  if (use.accumulator != 0xff) m.accumulator = use.read_range()[use.accumulator];
  for (const RegisterRange& range : {m.result, m.accumulator}) {
    each_word(range, [&](u32 word, u64 bits) { words[word].hazardous |= bits; });
  }
}

// Pairs that are at most five wait states apart.
void HazardTracker::check_short(const Wave& wave, const Instruction& in, const RegisterUse& use) {
  const u32 traits = use.traits;
  const RegisterRange exec{kScalarBase + kExec, 2}, vcc{kScalarBase + kVcc, 2};
  const RegisterRange* reads = use.read_range();
  const u32 kept = std::min(recent_count_, kRecent);
  for (u32 i = 1; i <= kept; ++i) {
    const Recent& first = recent_[(recent_count_ - i) % kRecent];
    const int states = states_since(first.time);
    if (states >= 5) break;
    if (!(first.use->begins & use.sensitive)) continue;
    const u32 before = first.use->traits;
    auto need = [&](int needed, const char* what) {
      if (states < needed) report(wave, in, what, states, needed);
    };
    if ((traits & kFmaF64) && (first.use->begins >> kDgemmIssued & 1)) {
      need(2, "f64 multiply-add after a double-precision MFMA");
    }
    if (before & kValu) {
      const bool wrote_exec = (before & kWritesExecByValu) || writes(*first.use, exec);
      if ((traits & kVmem) && (before & kValuWritesScalar)) {
        for (int r = 0; r < use.read_ranges; ++r) {
          if (reads[r].first >= kScalarBase && writes(*first.use, reads[r])) {
            need(5, "VMEM reads an SGPR that the VALU wrote");
          }
        }
      }
      if (traits & kDppTrait) {
        if (wrote_exec) need(5, "DPP after the VALU wrote EXEC");
      }
      if ((traits & kDivFmas) && writes(*first.use, vcc)) need(4, "v_div_fmas after the VALU wrote VCC");
      if ((traits & kLaneSelect) && reads[use.read_ranges - 1].first >= kScalarBase &&
          writes(*first.use, reads[use.read_ranges - 1])) {
        need(4, "lane select in an SGPR that the VALU wrote");
      }
      const bool matrix = (traits & kMfma) || (cdna_ == 1 && (traits & kAccWrite));
      if (matrix && wrote_exec) need(4, "MFMA after the VALU wrote EXEC");
      const bool plain = !(before & kMfma) && !(cdna_ >= 2 && (before & kDot));
      if (cdna_ == 1 && (before & kAccRead) && (traits & (kVmem | kLds)) && reads_any(use, *first.use, true)) {
        need(2, "memory instruction reads a VGPR that v_accvgpr_read wrote");
      }
      // What v_accvgpr_write of gfx908 leaves in an AGPR has rules of its own (gfx908_states).
      const bool own_rules = cdna_ == 1 && (before & kAccWrite);
      if (close_vector_ && matrix && plain && !own_rules && states < 2 && reads_any(use, *first.use, true)) {
        need(2, "MFMA reads a VGPR that the VALU wrote");
      }
      if (traits & kPermlaneSwap) {
        if (before & kWritesExecByValu) need(4, "permlane swap after v_cmpx");
        if (reads_any(use, *first.use, true)) need(2, "permlane swap of a VGPR that the VALU wrote");
      }
      if (cdna_ >= 3 && close_vector_ && (traits & kValu) && !(traits & kMfma)) {
        if ((before & kTransTrait) && !(traits & kTransTrait) && reads_any(use, *first.use, true)) {
          need(1, "VALU reads the result of a transcendental");
        }
        if ((before & kPartialDest) && reads_any(use, *first.use, true)) {
          need(1, "VALU reads a register that SDWA or op_sel wrote in part");
        }
        if ((before & kValuWritesScalar) && states < 2) {
          for (int r = 0; r < use.read_ranges; ++r) {
            if (reads[r].first >= kScalarBase && writes(*first.use, reads[r])) {
              need(2, "VALU reads an SGPR or VCC that the VALU wrote");
            }
          }
        }
        if ((traits & kReadLane) && reads_any(use, *first.use, true)) need(1, "v_readlane of a VGPR the VALU wrote");
      }
      if (cdna_ >= 3 && (traits & (kReadLane | kWriteLane)) && wrote_exec) {
        need(4, "lane access after the VALU wrote EXEC");
      }
    }
    if ((traits & kDppTrait) && !(before & kMfma) && reads_any(use, *first.use, true)) {
      need(2, "DPP reads a VGPR that was just written");
    }
    if ((before & kBigStore) && (traits & kValu)) {
      // The store's data are its vector reads beyond the address; overwriting the address is harmless but rare.
      const RegisterRange* stored = first.use->read_range();
      for (int r = 0; r < first.use->read_ranges; ++r) {
        if (stored[r].first < kScalarBase && stored[r].count > 2 && writes(use, stored[r])) {
          need(cdna_ >= 3 ? 2 : 1, "VALU overwrites the data of a store that may not have read it");
        }
      }
    }
    if ((before & kSaluWritesM0) && (traits & kReadsM0Late)) need(1, "M0 is read right after the SALU wrote it");
  }
}

// --- RDNA ------------------------------------------------------------------------------------------------------------
// gfx11: a VALU that reads a transcendental's result with at most five VALU and one transcendental between them must
// wait for va_vdst (LLVM fixVALUTransUseHazard). gfx11 and gfx12: A or B of a WMMA that is the result of the WMMA right
// before it needs a v_nop between (RDNA3 ISA "WMMA", LLVM fixWMMAHazards); so does v_permlane after v_cmpx, with
// something other than a v_nop (LLVM fixVcmpxPermlaneHazards).
void HazardTracker::check_rdna(const Wave& wave, const Instruction& in, const RegisterUse& use) {
  const RegisterRange* reads = use.read_range();
  if (live_transcendentals_ && family_ == Family::gfx11) {
    for (u32 i = 0; i < live_transcendentals_; ++i) {
      const Transcendental& t = transcendental_[(transcendentals_ - 1 - i) % 2];
      const int vectors = static_cast<int>(vectors_ - t.vector_count) - 1;
      if (vectors > 5) continue;
      if (!reads_half(in, t.result.first, t.half) && !(in.second && reads_half(*in.second, t.result.first, t.half))) {
        continue;
      }
      wave.group->log->add(Check::hazard, wave, in,
                           "VALU reads the result of a transcendental with " + std::to_string(vectors) +
                               " VALU between them; it needs s_waitcnt_depctr with va_vdst(0)");
    }
  }
  if ((use.traits & kWmma) && last_vector_ && (last_vector_->traits & kWmma)) {
    const RegisterRange result = last_vector_->write_range()[0];
    for (int r = 0; r < use.read_ranges; ++r) {
      if (r != use.accumulator && reads[r].overlaps(result)) {
        report(wave, in, "WMMA reads the result of the WMMA before it as A or B", 0, 1);
        break;
      }
    }
  }
  if ((use.traits & kPermlane) && last_real_vector_ && (last_real_vector_->traits & kWritesExecByValu)) {
    report(wave, in, "v_permlane after v_cmpx", 0, 1);
  }
}

void HazardTracker::remember_rdna(const Instruction& in, const RegisterUse& use) {
  if (!(use.traits & kValu)) {
    live_transcendentals_ = 0;  // memory instructions wait for the VALU's results, as s_waitcnt_depctr may
    return;
  }
  ++vectors_;
  last_vector_ = &use;
  if (!(use.traits & kVNop)) last_real_vector_ = &use;
  if (in.cls != Class::transcendental || !use.write_ranges) return;
  transcendental_[transcendentals_++ % 2] = {use.write_range()[0], in.operand[0].half, vectors_ - 1};
  live_transcendentals_ = std::min<u32>(live_transcendentals_ + 1, 2);
}

}  // namespace emu
