// Wait states around MFMA. Names of the tables: LLVM GCNHazardRecognizer::checkMAIHazards90A, checkMAIVALUHazards and,
// for gfx908, checkMAIHazards908; the same numbers are in CDNA3 ISA "Dependency resolution: required independent
// instructions". "XDL" are MFMAs other than double precision and (from gfx942 on) plain f32.
#include <algorithm>

#include "check/hazards.h"
#include "check/wave_state.h"
#include "core/opcode.h"

namespace emu {
namespace {

constexpr int kLongestWindow = 21;

bool is_dgemm(MatrixKind kind) { return kind == MatrixKind::dgemm4 || kind == MatrixKind::dgemm16; }

}  // namespace

void HazardTracker::rebuild(RegisterState* words) {
  for (int i = 0; i < kRegisterWords; ++i) words[i].hazardous = 0;
  for (u32 i = first_matrix_; i != last_matrix_; ++i) {
    const Matrix& m = matrix_[i % kMatrices];
    for (const RegisterRange& range : {m.result, m.accumulator}) {
      each_word(range, [&](u32 word, u64 bits) { words[word].hazardous |= bits; });
    }
  }
}

// The first instruction wrote `range`'s registers as its matrix result; `use` reads them.
int HazardTracker::matrix_read_states(const Matrix& first, const RegisterUse& use, const RegisterRange& range,
                                      bool accumulator, const Opcode* opcode) const {
  const MatrixKind kind = first.use->matrix, next = use.matrix;
  const int passes = first.use->passes;
  const bool gfx950 = cdna_ >= 4;
  if (first.use->traits & kDot) {  // a chain of one dot instruction through its accumulator is forwarded
    if (use.traits & kMfma) return 0;
    return first.opcode == opcode && accumulator ? 0 : 3;
  }
  if (!(use.traits & kMfma)) {
    const bool memory = use.traits & (kVmem | kLds);
    if (kind == MatrixKind::dgemm4) return memory ? 9 : 6;
    if (kind == MatrixKind::dgemm16) return memory ? 18 : gfx950 ? 19 : 11;
    return kind == MatrixKind::single ? passes + 2 : passes + 3 + (gfx950 && passes != 2);
  }
  if (!accumulator) {
    if (kind == MatrixKind::dgemm4) return 6;
    if (kind == MatrixKind::dgemm16) return gfx950 ? 19 : 11;
    return kind == MatrixKind::single ? passes + 2 : passes + 3 + (gfx950 && passes != 2);
  }
  // Accumulating on the registers just written: forwarded if they are exactly the same.
  if (cdna_ == 2 && is_dgemm(kind) && !is_dgemm(next)) return 0;
  if (range == first.result) {
    if (kind == MatrixKind::dgemm4 && next == MatrixKind::dgemm4) return 4;
    return cdna_ >= 3 && passes == 2 ? 2 : 0;
  }
  if (is_dgemm(kind)) {
    if (next == MatrixKind::xdl) return 0;
    return kind == MatrixKind::dgemm4 ? 4 : gfx950 ? 17 : 9;
  }
  if (cdna_ == 2) return passes + (is_dgemm(next) ? 1 : 0);
  if (kind == MatrixKind::single) return next == MatrixKind::xdl ? 0 : passes;
  return passes + 1 + (gfx950 && (next == MatrixKind::xdl || passes != 2));
}

// Overwriting the result by something other than an MFMA.
int HazardTracker::matrix_write_states(const Matrix& first, const RegisterUse& use, const Opcode* opcode) const {
  if (use.traits & kMfma) return 0;
  if (first.use->traits & kDot) return first.opcode == opcode ? 0 : 3;
  switch (first.use->matrix) {
    case MatrixKind::dgemm4:
      return 6;
    case MatrixKind::dgemm16:
      return 11;
    case MatrixKind::single:
      return first.use->passes + 2;
    default:
      return first.use->passes + 3 + (cdna_ >= 4 && first.use->passes != 2);
  }
}

// Overwriting the accumulator that XDL instructions read during their last pass.
int HazardTracker::matrix_overwrite_states(const Matrix& first) const {
  return first.use->matrix == MatrixKind::xdl ? first.use->passes - 1 : 0;
}

// gfx908: results are AGPRs, which only MFMA and v_accvgpr_* touch.
int HazardTracker::gfx908_states(const Matrix& first, const RegisterUse& use, bool accumulator, bool written) const {
  const int passes = first.use->passes;
  if (first.use->traits & kAccWrite) return written ? 0 : accumulator ? 1 : 3;
  if (use.traits & kAccRead) return passes == 2 ? 4 : passes + 2;
  if (use.traits & kAccWrite) return written ? passes - 1 : 0;
  if (!(use.traits & kMfma) || written) return 0;
  return accumulator ? 2 : 4;
}

void HazardTracker::check_matrix(const Wave& wave, const Instruction& in, const RegisterUse& use,
                                 RegisterState* words) {
  // Registers stay marked until somebody meets them after the longest wait.
  const u32 had = first_matrix_;
  while (first_matrix_ != last_matrix_ && states_since(matrix_[first_matrix_ % kMatrices].time) > kLongestWindow) {
    ++first_matrix_;
  }
  if (first_matrix_ != had) rebuild(words);
  if (!(use.traits & (kValu | kVmem | kLds))) return;

  const RegisterRange* reads = use.read_range();
  const RegisterRange* writes = use.write_range();
  // As the compiler does, only the last instruction that wrote (or accumulated) the register counts.
  auto newest = [&](auto matches) -> const Matrix* {
    for (u32 i = last_matrix_; i != first_matrix_; --i) {
      const Matrix& m = matrix_[(i - 1) % kMatrices];
      if (matches(m)) return &m;
    }
    return nullptr;
  };
  auto need = [&](const Matrix& m, int needed, const RegisterRange& range, const char* what) {
    if (states_since(m.time) >= needed) return;
    const char* by = m.use->traits & kDot ? "dot instruction" : m.use->traits & kAccWrite ? "v_accvgpr_write" : "MFMA";
    report(wave, in, register_name(range.first) + " " + what + " the " + by, states_since(m.time), needed);
  };
  for (int r = 0; r < use.read_ranges; ++r) {
    const Matrix* m = newest([&](const Matrix& x) { return x.result.overlaps(reads[r]); });
    if (!m) continue;
    const bool accumulator = r == use.accumulator;
    if (cdna_ == 1) {
      if (!accumulator || !(reads[r] == m->result) || (m->use->traits & kAccWrite)) {
        need(*m, gfx908_states(*m, use, accumulator, false), reads[r], "is read after");
      }
    } else {
      need(*m, matrix_read_states(*m, use, reads[r], accumulator, in.opcode), reads[r], "is read after");
    }
  }
  for (int w = 0; w < use.write_ranges; ++w) {
    if (const Matrix* m = newest([&](const Matrix& x) { return x.result.overlaps(writes[w]); })) {
      const int needed = cdna_ == 1 ? gfx908_states(*m, use, false, true) : matrix_write_states(*m, use, in.opcode);
      need(*m, needed, writes[w], "is overwritten after");
    }
    if (use.traits & kMfma) continue;
    const Matrix* reader = newest([&](const Matrix& x) {
      const bool late = (x.use->traits & kMfma) && (cdna_ == 1 || x.use->matrix == MatrixKind::xdl);
      return late && x.accumulator.overlaps(writes[w]);
    });
    if (!reader) continue;
    const int needed = cdna_ == 1 ? (use.traits & kAccWrite ? std::max(0, reader->use->passes - 3) : 0)
                                  : matrix_overwrite_states(*reader);
    need(*reader, needed, writes[w], "is overwritten, still being accumulated on by");
  }
}

}  // namespace emu
