// The table of instructions: one row per mnemonic (encodings such as _e64 or _dpp share the row).
#pragma once

#include <span>
#include <string>

#include "core/instruction.h"
#include "core/target.h"

namespace emu {

// Modifiers an opcode understands. One that is printed but not listed is an error when the code is loaded.
enum Modifier : u32 {
  kTakesSign = 1 << 0,  // -x, |x| on sources
  kTakesClamp = 1 << 1,
  kTakesOmod = 1 << 2,
  kTakesOpSel = 1 << 3,   // op_sel choosing halves of 16-bit operands
  kTakesPacked = 1 << 4,  // op_sel, op_sel_hi, neg_lo, neg_hi of packed instructions
  kTakesDpp = 1 << 5,
  kTakesSdwa = 1 << 6,
  kTakesOffset = 1 << 7,   // offset, offset0, offset1
  kTakesBuffer = 1 << 8,   // offen, idxen
  kTakesLds = 1 << 9,      // lds: straight to LDS
  kTakesMatrix = 1 << 10,  // cbsz, abid, blgp, index_key, neg_lo, neg_hi
  kTakesBitop = 1 << 11,
  kTakesCache = 1 << 12,    // glc, slc, sc0, sc1, nt, dlc, th, scope
  kTakesByteSel = 1 << 13,  // byte_sel of fp8 conversions
};
constexpr u32 kVop32 = kTakesSign | kTakesClamp | kTakesOmod | kTakesDpp | kTakesSdwa;  // float VALU
constexpr u32 kVopInt = kTakesDpp | kTakesSdwa;                                         // integer VALU
constexpr u32 kVop16 = kVop32 | kTakesOpSel;

enum OpcodeFlag : u32 {
  kReadsDest = 1 << 0,    // fmac and the like
  kIgnoresExec = 1 << 1,  // MFMA, v_readlane, ...
  kWritesScc = 1 << 2,
  kReadsScc = 1 << 3,
  kReadsVcc = 1 << 4,         // without naming it
  kWritesSource0 = 1 << 5,    // v_swap
  kUndefinedHighOk = 1 << 6,  // compilers leave the high half of the last source undefined on purpose
};

// Signature: types of destinations, '=', types of sources. The type decides what bits a constant has:
//   u 32-bit integer or plain bits   f f32   h f16   w 16-bit integer   b bf16   d f64   q 64-bit integer or bits
//   H two f16   W two 16-bit integers   B two bf16   F two f32   m lane mask   x registers of any width
// "m=ff" is a compare, "f=fff" an fma, "=..." a store.
struct Opcode {
  const char* name;
  Handler execute;
  Class cls;
  const char* signature;
  u32 modifiers = 0;
  u32 flags = 0;
  u16 cycles = 4;  // of one SIMD of a wave64 machine (4 = full rate); the counters translate for RDNA
  // Chooses the handler or checks the instruction once its operands are known; returns what is wrong, or "".
  std::string (*bind)(Instruction&, const Target&) = nullptr;
  // Rows of one name may differ by target; 0 = all.
  u32 families = 0;  // bits 1 << Family
};

// The source files of isa/ each give their rows; isa/table.cpp joins them.
std::span<const Opcode> scalar_opcodes();
std::span<const Opcode> control_opcodes();  // branches, waits, barriers, messages, registers of the hardware
std::span<const Opcode> vector_int_opcodes();
std::span<const Opcode> vector_float_opcodes();
std::span<const Opcode> vector_f64_opcodes();
std::span<const Opcode> vector_16_opcodes();  // 16-bit and true16
std::span<const Opcode> packed_opcodes();     // packed, mix and dot
std::span<const Opcode> convert_opcodes();
std::span<const Opcode> compare_opcodes();
std::span<const Opcode> cross_lane_opcodes();
std::span<const Opcode> mfma_opcodes();
std::span<const Opcode> wmma_opcodes();
std::span<const Opcode> lds_opcodes();
std::span<const Opcode> lds_atomic_opcodes();
std::span<const Opcode> global_opcodes();  // global, flat, scratch
std::span<const Opcode> buffer_opcodes();
std::span<const Opcode> vmem_atomic_opcodes();
std::span<const Opcode> scalar_load_opcodes();

// By mnemonic without encoding suffix; nullptr if there is none for this family.
const Opcode* find_opcode(const std::string& name, Family family);

}  // namespace emu
