// Which registers an instruction reads and writes, and what it means to the checkers. Worked out once per program.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/program.h"

namespace emu {

// Vector rows 0..511 and, after them, the scalar registers, as one numbering. Sets of registers are bits of words.
constexpr int kScalarBase = kVectorRegisters;
constexpr int kRegisterWords = (kScalarBase + kScalarRegisters + 63) / 64;
constexpr int kVectorWords = kVectorRegisters / 64;

struct RegisterWord {
  u64 mask = 0;
  u32 word = 0;
};

enum RegisterHalf : u8 { kLowHalf = 1, kHighHalf = 2, kBothHalves = 3 };

struct RegisterRange {
  u16 first = 0;
  u8 count = 0;
  u8 halves = kBothHalves;  // of RDNA's registers, whose halves are loaded apart
  bool overlaps(const RegisterRange& o) const { return first < o.first + o.count && o.first < first + count; }
  bool operator==(const RegisterRange&) const = default;
};

// How an undefined source affects the instruction. Compilers copy, select and spill undefined registers on purpose;
// only a use that computes, addresses, branches or writes global memory is a mistake.
enum class Undefined : u8 {
  reported,
  ignored,       // spills, stores to LDS: the bytes are not followed
  copied,        // dword i of the result is as defined as dword i of the only source
  selected,      // the result is undefined only if all data sources are (v_cndmask, v_perm, s_cselect)
  packed,        // v_pk_*_f32: each half of the result follows the halves op_sel and op_sel_hi choose
  packed_move,   // v_pk_mov_b32: result dword i follows source i
  high_follows,  // the result's high dword follows those of 64-bit sources, which may be undefined
};

// Which counters an issued instruction raises.
enum CounterBit : u8 {
  kCountsLoad = 1 << 0,    // vmcnt, loadcnt
  kCountsStore = 1 << 1,   // vscnt, storecnt; vmcnt on gfx9
  kCountsLds = 1 << 2,     // lgkmcnt, dscnt
  kCountsScalar = 1 << 3,  // lgkmcnt out of order, kmcnt
};

enum class WaitKind : u8 {
  none,
  waitcnt,  // fields of s_waitcnt, by family
  load,
  store,
  lds,
  scalar,
  load_lds,
  store_lds,
  all,
};

enum UseTrait : u32 {
  kValu = 1 << 0,  // anything the VALU issues, matrix instructions included
  kVmem = 1 << 1,  // buffer, global, flat, scratch
  kLds = 1 << 2,
  kMfma = 1 << 3,  // MFMA or SMFMAC (not v_accvgpr_*)
  kWmma = 1 << 4,  // WMMA or SWMMAC
  kTransTrait = 1 << 5,
  kDot = 1 << 6,
  kDppTrait = 1 << 7,
  kDivFmas = 1 << 8,
  kReadLane = 1 << 9,  // v_readlane, v_readfirstlane
  kWriteLane = 1 << 10,
  kLaneSelect = 1 << 11,  // v_readlane, v_writelane with the lane in an SGPR
  kPermlaneSwap = 1 << 12,
  kPermlane = 1 << 13,  // gfx11: v_permlane16, v_permlanex16, v_permlane64
  kWritesExecByValu = 1 << 14,
  kValuWritesScalar = 1 << 15,  // an SGPR, VCC or EXEC
  kPartialDest = 1 << 16,       // SDWA or op_sel puts the result into part of the register
  kBigStore = 1 << 17,          // VMEM store of more than 64 bits whose data is read late
  kReadsM0Late = 1 << 18,       // direct-to-LDS loads, s_movrel, s_sendmsg
  kSaluWritesM0 = 1 << 19,
  kFmaF64 = 1 << 20,
  kFlat = 1 << 21,
  kJump = 1 << 22,  // to another function: s_setpc, s_swappc, s_call
  kVNop = 1 << 23,
  kAccRead = 1 << 24,  // v_accvgpr_read, v_accvgpr_write: gfx908 has rules of its own
  kAccWrite = 1 << 25,
  kWaitsForValu = 1 << 26,  // s_waitcnt_depctr with va_vdst(0)
  kRelative = 1 << 27,      // v_movrel, s_movrel: the register meant is M0 past the one named
  kMayPause = 1 << 28,      // branches and barriers
  kOnCounters = 1 << 29,    // raises one or waits for one
};

// Instructions that must not be followed too soon by certain others, by how they are found again.
enum HazardGroup : u8 {
  kVectorResult,  // of the VALU
  kTransResult,
  kPartialResult,
  kScalarResult,  // SGPR or VCC written by the VALU
  kExecResult,    // EXEC written by the VALU
  kStoreData,     // of more than 64 bits
  kM0Result,
  kDgemmIssued,
  kLoadResult,
  kHazardGroups
};

enum class MatrixKind : u8 { none, xdl, single, dgemm4, dgemm16 };

struct RegisterUse {
  const RegisterWord* words = nullptr;  // reads, then writes
  const RegisterRange* ranges = nullptr;
  u8 read_words = 0, write_words = 0;
  u8 read_ranges = 0, write_ranges = 0;  // the same sets as ranges, in operand order
  u8 counters = 0;
  WaitKind wait = WaitKind::none;
  Undefined undefined = Undefined::reported;
  // Undefined::ignored: the reads that are data; the others are addresses.
  u8 data_range = 0, data_ranges = 0;
  MatrixKind matrix = MatrixKind::none;
  u8 passes = 0;          // of a matrix instruction
  u8 accumulator = 0xff;  // index among the reads: source C of a matrix or dot instruction
  u8 wait_states = 1;
  u16 begins = 0, sensitive = 0;  // bits 1 << HazardGroup: as the first, as the second instruction of a pair
  u32 traits = 0;

  const RegisterRange* read_range() const { return ranges; }
  const RegisterRange* write_range() const { return ranges + read_ranges; }
};

struct RegisterUseTable {
  std::vector<RegisterUse> use;  // by Instruction::index
  std::vector<RegisterWord> words;
  std::vector<RegisterRange> ranges;
  bool loads_to_lds = false;  // some instruction does

  // Of instructions with indexed registers, one at a time as they are met.
  mutable std::mutex mutex;
  mutable std::map<std::array<u32, 3>, std::unique_ptr<RegisterUseTable>> indexed;
};

// Made on first use; threads may ask at the same time.
const RegisterUseTable& register_use_of(const Program& program);

// Of an instruction whose register numbers count on from M0 by `indexing`. Stays valid as long as the program.
struct Indexing;
const RegisterUse& indexed_use_of(const Program& program, const Instruction& in, const Indexing& indexing);

// How many instructions of each kind a wait instruction lets be outstanding; `code` is its 16-bit immediate.
constexpr u32 kNoWait = ~0u;
struct WaitAmounts {
  u32 load = kNoWait, lds = kNoWait, scalar = kNoWait;
};
WaitAmounts wait_amounts(Family family, WaitKind kind, u32 code);

std::string register_name(int reg);  // in the numbering above: "v5", "a0", "s12", "vcc_lo"

}  // namespace emu
