// One decoded instruction. Decoded once when a code object is loaded, executed many times.
#pragma once

#include <string>

#include "core/bits.h"

namespace emu {

struct Wave;
struct Instruction;
struct Opcode;
using Handler = void (*)(Wave&, const Instruction&);

// Scalar registers live in one array; those without an architectural number in it get one past the others.
enum ScalarRegister : u16 {
  kVcc = 106,
  kTtmp0 = 108,
  kM0 = 124,
  kNull = 125,
  kExec = 126,
  kFlatScratch = 128,
  kXnackMask = 130,
  kSharedBase = 132,
  kSharedLimit = 134,
  kPrivateBase = 136,
  kPrivateLimit = 138,
  kScalarRegisters = 140,
  // Read as sources only; their value is computed when read.
  kSrcScc = 140,
  kSrcVccz = 141,
  kSrcExecz = 142,
};
constexpr u16 kFirstAgpr = 256;  // AGPRs are rows 256..511 of the vector registers
constexpr int kVectorRegisters = 512;
constexpr int kLanes = 64;  // of a row; a wave32 uses the first 32

enum class OperandKind : u8 { none, vgpr, sgpr, constant, off };
enum class Half : u8 { whole, low, high };  // true16: v1.l, v1.h

struct alignas(64) Row {
  u32 lane[kLanes];
};

struct Operand {
  OperandKind kind = OperandKind::none;
  u8 width = 1;  // dwords
  Half half = Half::whole;
  u8 sdwa_select = 6;  // BYTE_0..3, WORD_0..1, DWORD
  bool negate = false, absolute = false, sign_extend = false;
  bool plain = false;       // a row that can be read, or a register's written, as it is: no modifier, no selection
  bool is_literal = false;  // a constant with a dword of its own in the encoding
  bool is_float = false;    // a constant written with a point: its bits depend on the type the opcode wants
  u16 reg = 0;
  // Constants: the bits in the type the opcode wants, and their low dword in every lane.
  u64 constant = 0;
  const Row* broadcast = nullptr;

  bool is_vgpr() const { return kind == OperandKind::vgpr; }
  bool is_sgpr() const { return kind == OperandKind::sgpr; }
  bool is_constant() const { return kind == OperandKind::constant; }
};

// How an instruction is counted and which port it issues on.
enum class Class : u8 {
  scalar,
  vector,
  transcendental,
  matrix,
  lds_read,
  lds_write,
  lds_atomic,
  vmem_load,
  vmem_store,
  vmem_atomic,
  scalar_load,
  branch,
  wait,
  barrier,
  other,  // s_nop, s_sleep, cache control, messages
  end,
  count
};
const char* class_name(Class cls);

constexpr int kMaxOperands = 7;

enum class DppKind : u8 { none, dpp16, dpp8 };

struct Instruction {
  Handler execute = nullptr;
  const Opcode* opcode = nullptr;
  Operand operand[kMaxOperands];
  u8 operand_count = 0;
  u8 dest_count = 0;  // leading operands that are written
  Class cls = Class::scalar;
  u8 size = 4;  // bytes

  // Modifiers. What an opcode does not take is refused when the code is loaded.
  u8 op_sel = 0, op_sel_hi = 0xff, neg_lo = 0, neg_hi = 0;
  u8 omod = 0;  // 1: *2, 2: *4, 3: /2
  bool clamp = false;
  DppKind dpp = DppKind::none;
  bool bound_ctrl = false, fetch_inactive = false;
  u8 row_mask = 15, bank_mask = 15;
  u16 dpp_control = 0;
  u32 dpp8_select = 0;                            // 3 bits a lane
  u8 sdwa_dest_select = 6, sdwa_dest_unused = 0;  // unused: 0 pad, 1 sign-extend, 2 preserve
  u8 cbsz = 0, abid = 0, blgp = 0, index_key = 0;
  u8 byte_sel = 0;
  bool offen = false, idxen = false, to_lds = false, returns = false;
  u32 bitop3 = 0;
  i32 offset = 0, offset1 = 0;
  i32 simm16 = 0;                       // of SOPP and SOPK, sign-extended
  int target = -1;                      // branches: index of the instruction jumped to
  u16 cycles = 4;                       // issue cycles on one SIMD, as the counters take them
  u32 index = 0;                        // in Program::code
  u32 word[2] = {0, 0};                 // raw encoding
  u64 address = 0;                      // in the code object's image
  const Instruction* second = nullptr;  // VOPD: the Y half

  const Operand& source(int i) const { return operand[dest_count + i]; }
};

}  // namespace emu
