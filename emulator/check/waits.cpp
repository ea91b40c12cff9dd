// Wait counters: which loads have certainly returned.
//
// gfx9   vmcnt: vector loads, stores and atomics in order; lgkmcnt: LDS in order, scalar loads in any order; flat both.
// gfx11  stores and atomics without result count in vscnt instead of vmcnt.
// gfx12  loadcnt, storecnt, dscnt and kmcnt (scalar loads) are separate.
// (CDNA3 ISA "Data dependency resolution", RDNA3 ISA and RDNA4 ISA "Data dependency resolution".)
#include "check/wave_state.h"

namespace emu {
namespace {

const char* half_name(u8 halves) { return halves == kLowHalf ? ".l" : halves == kHighHalf ? ".h" : ""; }

// Returns whether anything was retired.
bool retire(WaitCounter& counter, u32 allowed) {
  if (counter.out_of_order > counter.done && allowed != 0) return false;
  if (counter.issued - counter.done <= allowed) return false;
  counter.done = counter.issued - allowed;
  return true;
}

// Takes the retired loads off the ring and their registers off the mask.
template <u64 RegisterState::* Mask>
void drop_done(WaitCounter& counter, RegisterState* words) {
  while (counter.first != counter.last) {
    const WaitCounter::Load& load = counter.load[counter.first % WaitCounter::kLoads];
    if (load.sequence > counter.done) break;
    for (int r = load.range.first; r < load.range.first + load.range.count; ++r) {
      if (!counter.loading(r)) words[r / 64].*Mask &= ~(1ull << r % 64);
    }
    ++counter.first;
  }
}

template <u64 RegisterState::* Mask>
void add_load(WaitCounter& counter, RegisterState* words, const RegisterRange& range) {
  if (counter.last - counter.first == WaitCounter::kLoads) ++counter.first;
  counter.load[counter.last++ % WaitCounter::kLoads] = {counter.issued, range};
  for (int r = range.first; r < range.first + range.count; ++r) {
    if (range.halves & kLowHalf) counter.sequence[r].low = counter.issued;
    if (range.halves & kHighHalf) counter.sequence[r].high = counter.issued;
    words[r / 64].*Mask |= 1ull << r % 64;
  }
}

}  // namespace

WaitAmounts wait_amounts(Family family, WaitKind kind, u32 code) {
  auto field = [code](int shift, u32 mask) { return code >> shift & mask; };
  WaitAmounts w;
  switch (kind) {
    case WaitKind::waitcnt:
      if (family == Family::gfx9) {  // vmcnt 3:0 and 15:14, expcnt 6:4, lgkmcnt 11:8
        w.load = field(0, 15) | field(14, 3) << 4;
        w.lds = field(8, 15) == 15 ? kNoWait : field(8, 15);
      } else {  // expcnt 2:0, lgkmcnt 9:4, vmcnt 15:10
        w.load = field(10, 63);
        w.lds = field(4, 63) == 63 ? kNoWait : field(4, 63);
      }
      if (w.load == 63) w.load = kNoWait;
      w.scalar = w.lds;
      break;
    case WaitKind::load:
      w.load = field(0, 63);
      break;
    case WaitKind::lds:
      w.lds = field(0, 63);
      if (family != Family::gfx12) w.scalar = w.lds;
      break;
    case WaitKind::scalar:
      w.scalar = field(0, 31);
      break;
    case WaitKind::load_lds:
      w.load = field(8, 63);
      w.lds = field(0, 63);
      break;
    case WaitKind::store_lds:
      w.lds = field(0, 63);
      break;
    case WaitKind::all:
      w.load = w.lds = w.scalar = 0;
      break;
    case WaitKind::store:  // nothing reads what stores leave behind
    case WaitKind::none:
      break;
  }
  return w;
}

void WaveChecker::State::wait(const Instruction& in, WaitKind kind) {
  const WaitAmounts wanted = wait_amounts(family, kind, in.word[0] & 0xffff);
  if (wanted.load != kNoWait && retire(vmem, wanted.load)) drop_done<&RegisterState::loading_vmem>(vmem, words);
  if (wanted.lds != kNoWait && retire(lds, wanted.lds)) drop_done<&RegisterState::loading_lds>(lds, words);
  if (family == Family::gfx12 && wanted.scalar != kNoWait && retire(scalar, wanted.scalar)) {
    drop_done<&RegisterState::loading_lds>(scalar, words);
  }
}

void WaveChecker::State::issue(const Instruction& in, const RegisterUse& use) {
  const RegisterRange* writes = use.write_range();
  const bool loads = use.write_ranges > 0 && !in.to_lds;
  if (use.counters & kCountsLoad) {
    ++vmem.issued;
    if (loads) add_load<&RegisterState::loading_vmem>(vmem, words, writes[0]);
  }
  if (use.counters & kCountsStore) ++stores_issued;
  if (use.counters & kCountsLds) {
    ++lds.issued;
    // A flat load's registers come from LDS only where its addresses point there; on gfx9 it then returns in no known
    // order (LLVM hasFlatLgkmVMemCountInOrder).
    const bool flat = use.traits & kFlat;
    if (flat && flat_in_lds && family == Family::gfx9) lds.out_of_order = lds.issued;
    if (loads && (!flat || flat_in_lds)) add_load<&RegisterState::loading_lds>(lds, words, writes[0]);
  }
  if (use.counters & kCountsScalar) {
    WaitCounter& counter = family == Family::gfx12 ? scalar : lds;
    ++counter.issued;
    counter.out_of_order = counter.issued;
    if (loads) add_load<&RegisterState::loading_lds>(counter, words, writes[0]);
  }
}

const char* WaveChecker::State::counter_name(bool vector_memory, bool scalar_register) const {
  if (family != Family::gfx12) return vector_memory ? "vmcnt" : "lgkmcnt";
  return vector_memory ? "loadcnt" : scalar_register ? "kmcnt" : "dscnt";
}

void WaveChecker::State::report_loading(Wave& wave, const Instruction& in, const RegisterUse& use) {
  auto check = [&](const RegisterRange& range, bool written) {
    for (int r = range.first; r < range.first + range.count; ++r) {
      RegisterState& word = words[r / 64];
      const u64 bit = 1ull << r % 64;
      const bool is_scalar = r >= kScalarBase;
      WaitCounter& other = is_scalar && family == Family::gfx12 ? scalar : lds;
      const bool from_vmem = (word.loading_vmem & bit) && (vmem.loading(r) & range.halves);
      const bool from_lds = (word.loading_lds & bit) && (other.loading(r) & range.halves);
      if (!from_vmem && !from_lds) continue;
      // A later load of the same kind writes the register later, so the first need not be waited for.
      const bool in_order =
          written && ((from_vmem && !from_lds && use.counters == kCountsLoad) ||
                      (from_lds && !from_vmem && use.counters == kCountsLds && lds.out_of_order <= lds.done));
      if (in_order) continue;
      const std::string message = std::string(is_scalar ? "SGPR " : "VGPR ") + register_name(r) +
                                  half_name(range.halves) + (written ? " overwritten before " : " read before ") +
                                  counter_name(from_vmem, is_scalar) + " wait";
      if (options.on(Check::wait)) wave.group->log->add(Check::wait, wave, in, message);
      vmem.forget(r, range.halves);
      other.forget(r, range.halves);
      if (!vmem.loading(r)) word.loading_vmem &= ~bit;
      if (!other.loading(r)) word.loading_lds &= ~bit;
    }
  };
  const RegisterRange* reads = use.read_range();
  for (int i = 0; i < use.read_ranges; ++i) check(reads[i], false);
  const RegisterRange* writes = use.write_range();
  for (int i = 0; i < use.write_ranges; ++i) check(writes[i], true);
}

}  // namespace emu
