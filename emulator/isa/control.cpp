// Control flow, barriers, waits and the registers of the hardware itself. What waits mean is the checkers' business:
// here memory is always ready.
#include "core/errors.h"
#include "core/memory_map.h"
#include "core/program.h"
#include "core/report.h"
#include "isa/lanes.h"

namespace emu {
namespace {

void jump(Wave& w, u32 index) { w.pc = index; }

// To an address held in registers (calls, returns).
void jump_to_address(Wave& w, u64 address) {
  const Program& program = *w.group->program;
  const u64 base = reinterpret_cast<u64>(program.image);
  const auto found = program.index_of.find(address - base);
  if (found == program.index_of.end()) throw ExecutionError("jump to an address that holds no instruction");
  jump(w, found->second);
}

u64 address_after(const Wave& w, const Instruction& in) {
  return reinterpret_cast<u64>(w.group->program->image) + in.address + in.size;
}

template <auto Taken>
void branch(Wave& w, const Instruction& in) {
  if (!Taken(w)) return;
  if (in.target < 0) throw ExecutionError("branch to an address that holds no instruction");
  jump(w, static_cast<u32>(in.target));
}

void call(Wave& w, const Instruction& in) {
  set_scalar64(w, in.operand[0], address_after(w, in));
  if (in.target < 0) throw ExecutionError("call of an address that holds no instruction");
  jump(w, static_cast<u32>(in.target));
}
void get_pc(Wave& w, const Instruction& in) { set_scalar64(w, in.operand[0], address_after(w, in)); }
void set_pc(Wave& w, const Instruction& in) { jump_to_address(w, scalar64(w, in.operand[0])); }
void swap_pc(Wave& w, const Instruction& in) {
  const u64 to = scalar64(w, in.operand[1]);
  set_scalar64(w, in.operand[0], address_after(w, in));
  jump_to_address(w, to);
}

void nothing(Wave&, const Instruction&) {}
void end_program(Wave& w, const Instruction&) { w.state = WaveState::done; }
void barrier(Wave& w, const Instruction&) {
  ++w.barriers_signalled;
  w.state = WaveState::at_barrier;
}
// gfx12: barrier -1 is the workgroup's; others (named, trap) are not modelled.
void barrier_signal(Wave& w, const Instruction& in) {
  if (static_cast<i32>(scalar32(w, in.operand[0])) != -1) throw ExecutionError("only barrier -1 is modelled");
  ++w.barriers_signalled;
}
void barrier_signal_is_first(Wave& w, const Instruction& in) {
  barrier_signal(w, in);
  w.scc = true;
  for (int i = 0; i < w.group->wave_count; ++i) {
    const Wave* other = w.group->waves[i];
    if (other != &w && other->barriers_signalled >= w.barriers_signalled) w.scc = false;
  }
}
void barrier_wait(Wave& w, const Instruction& in) {
  if (static_cast<i16>(in.simm16) != -1) throw ExecutionError("only barrier -1 is modelled");
  w.state = WaveState::at_barrier;
}

void trap(Wave& w, const Instruction& in) {
  w.group->log->add(Check::trap, w, in, "trap " + std::to_string(in.simm16 & 0xff));
  w.state = WaveState::done;
}
void halt(Wave& w, const Instruction& in) {
  if (in.simm16 & 1) throw ExecutionError("the kernel halts itself (s_sethalt)");
}

// --- hardware registers (LLVM "AMDGPU hwreg" syntax: id in bits 5:0, first bit in 10:6, size - 1 in 15:11) -----------
enum HardwareRegister : u32 {
  kMode = 1,
  kStatus = 2,
  kTrapStatus = 3,
  kHardwareId = 4,
  kLdsAlloc = 6,
  kIbStatus = 7,
  kMemBases = 15,
  kFlatScratchLow = 20,
  kFlatScratchHigh = 21,
  kHardwareId1 = 23,
  kHardwareId2 = 24,
  kShaderCycles = 29
};

u32 read_hardware(const Wave& w, u32 id) {
  const bool gfx9 = w.target->family == Family::gfx9;
  switch (id) {
    case kMode:
      return w.mode;
    case kStatus:
      return 0;
    case kTrapStatus:
      return 0;
    case kHardwareId:
    case kHardwareId1:
    case kHardwareId2:
      return static_cast<u32>(w.id & 0xf);
    case kLdsAlloc:
      return static_cast<u32>(w.group->lds.size() / 512) << 12;
    case kIbStatus:
      return 0;
    // Bits 63:48 of the two apertures (gfx9 before architected registers for them).
    case kMemBases:
      return static_cast<u32>(kSharedAperture >> 48) << 16 | static_cast<u32>(kPrivateAperture >> 48);
    case kFlatScratchLow:
      return gfx9 ? 0 : w.sgpr[kFlatScratch];  // gfx942: XCC_ID
    case kFlatScratchHigh:
      return w.sgpr[kFlatScratch + 1];
    case kShaderCycles:
      return static_cast<u32>(w.executed);
    default:
      throw ExecutionError("hardware register " + std::to_string(id) + " is not modelled");
  }
}

void write_hardware(Wave& w, u32 id, u32 mask, u32 bits) {
  if (id == kMode) {
    set_mode(w, (w.mode & ~mask) | bits);
  } else if (id == kFlatScratchLow && w.target->is_rdna()) {
    w.sgpr[kFlatScratch] = (w.sgpr[kFlatScratch] & ~mask) | bits;
  } else if (id == kFlatScratchHigh && w.target->is_rdna()) {
    w.sgpr[kFlatScratch + 1] = (w.sgpr[kFlatScratch + 1] & ~mask) | bits;
  } else if (id != kTrapStatus && id != kIbStatus) {
    throw ExecutionError("writing hardware register " + std::to_string(id) + " is not modelled");
  }
}

struct Field {
  u32 id, shift, mask;
  explicit Field(const Instruction& in) {
    const u32 code = in.word[0] & 0xffff;
    id = code & 63;
    shift = code >> 6 & 31;
    const u32 bits = (code >> 11 & 31) + 1;
    mask = bits == 32 ? ~0u : (1u << bits) - 1;
  }
};

void get_register(Wave& w, const Instruction& in) {
  const Field f(in);
  set_scalar32(w, in.operand[0], read_hardware(w, f.id) >> f.shift & f.mask);
}
void set_register(Wave& w, const Instruction& in) {
  const Field f(in);
  const u32 value = scalar32(w, in.operand[1]);
  write_hardware(w, f.id, f.mask << f.shift, (value & f.mask) << f.shift);
}
void round_mode(Wave& w, const Instruction& in) { set_mode(w, (w.mode & ~0xfu) | (in.simm16 & 0xf)); }
void denorm_mode(Wave& w, const Instruction& in) {
  set_mode(w, (w.mode & ~0xf0u) | static_cast<u32>(in.simm16 & 0xf) << 4);
}

// s_sendmsg_rtn: GET_REALTIME and the like.
void message_with_result(Wave& w, const Instruction& in) {
  const u64 value = w.executed;
  in.operand[0].width == 2 ? set_scalar64(w, in.operand[0], value)
                           : set_scalar32(w, in.operand[0], static_cast<u32>(value));
}

// Relative moves: M0 counts registers.
void move_relative_source(Wave& w, const Instruction& in) {
  set_scalar32(w, in.operand[0], w.sgpr[(in.operand[1].reg + w.sgpr[kM0]) % kVcc]);
}
void move_relative_dest(Wave& w, const Instruction& in) {
  w.sgpr[(in.operand[0].reg + w.sgpr[kM0]) % kVcc] = scalar32(w, in.operand[1]);
}
void vector_relative_source(Wave& w, const Instruction& in) {
  write_row(w, in.operand[0].reg, w.vgpr[(in.operand[1].reg + w.sgpr[kM0]) % kFirstAgpr], w.exec());
}
void vector_relative_dest(Wave& w, const Instruction& in) {
  Row space;
  write_row(w, (in.operand[0].reg + w.sgpr[kM0]) % kFirstAgpr, plain_row(w, in.operand[1], space), w.exec());
}

// gfx9 register indexing (CDNA3 ISA "VGPR indexing"): index in M0[7:0], which operands it applies to in M0[15:12].
void set_index(Wave& w, u32 index) { w.sgpr[kM0] = (w.sgpr[kM0] & ~0xffu) | (index & 0xff); }
void set_index_mode(Wave& w, u32 mode) { w.sgpr[kM0] = (w.sgpr[kM0] & ~0xf000u) | (mode & 0xf) << 12; }
void index_on(Wave& w, const Instruction& in) {
  set_index(w, scalar32(w, in.operand[0]));
  set_index_mode(w, static_cast<u32>(in.operand[1].constant));
  w.indexing = true;
}
void index_off(Wave& w, const Instruction&) { w.indexing = false; }
void index_value(Wave& w, const Instruction& in) { set_index(w, scalar32(w, in.operand[0])); }
void index_mode(Wave& w, const Instruction& in) { set_index_mode(w, static_cast<u32>(in.simm16)); }

constexpr Opcode other(const char* name) { return {name, nothing, Class::other, "", 0}; }
constexpr Opcode wait(const char* name) { return {name, nothing, Class::wait, "", 0}; }
template <auto Taken>
constexpr Opcode jump_if(const char* name, u32 flags = 0) {
  return {name, branch<Taken>, Class::branch, "", 0, flags};
}

const Opcode kRows[] = {
    jump_if<[](const Wave&) { return true; }>("s_branch"),
    jump_if<[](const Wave& w) { return !w.scc; }>("s_cbranch_scc0", kReadsScc),
    jump_if<[](const Wave& w) { return w.scc; }>("s_cbranch_scc1", kReadsScc),
    jump_if<[](const Wave& w) { return w.vcc() == 0; }>("s_cbranch_vccz", kReadsVcc),
    jump_if<[](const Wave& w) { return w.vcc() != 0; }>("s_cbranch_vccnz", kReadsVcc),
    jump_if<[](const Wave& w) { return w.exec() == 0; }>("s_cbranch_execz"),
    jump_if<[](const Wave& w) { return w.exec() != 0; }>("s_cbranch_execnz"),
    {"s_call_b64", call, Class::branch, "q=u"},
    {"s_getpc_b64", get_pc, Class::scalar, "q="},
    {"s_get_pc_i64", get_pc, Class::scalar, "q="},
    {"s_setpc_b64", set_pc, Class::scalar, "=q"},
    {"s_set_pc_i64", set_pc, Class::scalar, "=q"},
    {"s_swappc_b64", swap_pc, Class::scalar, "q=q"},
    {"s_swap_pc_i64", swap_pc, Class::scalar, "q=q"},
    {"s_endpgm", end_program, Class::end, ""},
    {"s_endpgm_saved", end_program, Class::end, ""},
    {"s_barrier", barrier, Class::barrier, ""},
    {"s_barrier_signal", barrier_signal, Class::barrier, "=u"},
    {"s_barrier_signal_isfirst", barrier_signal_is_first, Class::barrier, "=u", 0, kWritesScc},
    {"s_barrier_wait", barrier_wait, Class::barrier, ""},
    {"s_trap", trap, Class::other, ""},
    {"s_sethalt", halt, Class::other, ""},
    {"s_getreg_b32", get_register, Class::scalar, "u=u"},
    {"s_setreg_b32", set_register, Class::scalar, "=uu"},
    {"s_setreg_imm32_b32", set_register, Class::scalar, "=uu"},
    {"s_round_mode", round_mode, Class::other, ""},
    {"s_denorm_mode", denorm_mode, Class::other, ""},
    {"s_sendmsg_rtn_b32", message_with_result, Class::scalar_load, "u=u"},
    {"s_sendmsg_rtn_b64", message_with_result, Class::scalar_load, "q=u"},
    {"s_set_gpr_idx_on", index_on, Class::scalar, "=uu"},
    {"s_set_gpr_idx_off", index_off, Class::scalar, ""},
    {"s_set_gpr_idx_idx", index_value, Class::scalar, "=u"},
    {"s_set_gpr_idx_mode", index_mode, Class::scalar, ""},
    {"s_movrels_b32", move_relative_source, Class::scalar, "u=u"},
    {"s_movreld_b32", move_relative_dest, Class::scalar, "u=u"},
    {"v_movrels_b32", vector_relative_source, Class::vector, "u=u"},
    {"v_movreld_b32", vector_relative_dest, Class::vector, "u=u"},
    wait("s_waitcnt"),
    wait("s_waitcnt_vscnt"),
    wait("s_waitcnt_vmcnt"),
    wait("s_waitcnt_expcnt"),
    wait("s_waitcnt_lgkmcnt"),
    wait("s_wait_loadcnt"),
    wait("s_wait_storecnt"),
    wait("s_wait_samplecnt"),
    wait("s_wait_bvhcnt"),
    wait("s_wait_dscnt"),
    wait("s_wait_kmcnt"),
    wait("s_wait_expcnt"),
    wait("s_wait_loadcnt_dscnt"),
    wait("s_wait_storecnt_dscnt"),
    wait("s_wait_idle"),
    other("s_nop"),
    other("s_sleep"),
    other("s_setprio"),
    other("s_clause"),
    other("s_delay_alu"),
    other("s_waitcnt_depctr"),
    other("s_wait_alu"),
    other("s_wait_event"),
    other("s_sendmsg"),
    other("s_code_end"),
    other("s_set_inst_prefetch_distance"),
    other("s_icache_inv"),
    other("s_setkill"),
    other("s_version"),
    other("s_incperflevel"),
    other("s_decperflevel"),
    other("s_ttracedata"),
    other("s_ttracedata_imm"),
    other("s_wakeup"),
    other("s_inst_prefetch"),
    other("s_sleep_var"),
};

}  // namespace

// MODE: round f32 1:0, f64/f16 3:2, denormals f32 5:4, f64/f16 7:6 (RDNA3 ISA "Mode register").
void set_mode(Wave& w, u32 mode) {
  if (mode & 0xf) throw ExecutionError("only rounding to nearest even is modelled");
  w.mode = mode;
  w.flush_f32 = (mode >> 4 & 3) == 0;
  w.flush_f16_f64 = (mode >> 6 & 3) == 0;
}

std::span<const Opcode> control_opcodes() { return kRows; }

}  // namespace emu
