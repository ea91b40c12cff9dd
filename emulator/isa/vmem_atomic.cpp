// Atomics on memory: global, flat and buffer. Workgroups run on several threads, so they are atomic on the host too.
#include "isa/atomics.h"
#include "isa/memory.h"

namespace emu {
namespace {

using namespace atomics;

// gfx942, gfx950 and gfx12 keep denormals; the others' memory units flush them (LLVM: feature
// memory-atomic-fadd-f32-denormal-support).
FloatMode float_mode(const Wave& w) { return {!(w.target->cdna >= 3 || w.target->family == Family::gfx12)}; }

template <class T, class Next>
T update_memory(u8* at, Next next) {
  T* memory = reinterpret_cast<T*>(at);  // aligned: the gate has seen to it
  T old = __atomic_load_n(memory, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(memory, &old, next(old), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return old;
}

// An operation on the registers of data: one value, or for compare-and-swap the new value and the one expected.
template <class Type, class Op>
struct OneValue {
  using T = Type;
  static T apply(const Wave& w, T old, u32 data, int l, FloatMode mode) {
    return Op::apply(old, lane_value<T>(w, data, l), mode);
  }
};
template <class Type>
struct CompareSwap {
  using T = Type;
  static T apply(const Wave& w, T old, u32 data, int l, FloatMode) {
    return old == lane_value<T>(w, data + sizeof(T) / 4, l) ? lane_value<T>(w, data, l) : old;
  }
};
struct CompareSwapF32 {
  using T = u32;
  static T apply(const Wave& w, T old, u32 data, int l, FloatMode) {
    return as_f32(old) == as_f32(w.vgpr[data + 1][l]) ? w.vgpr[data][l] : old;
  }
};

// Lanes in order. Sources of a lane are read before its result is written: they may be the same registers.
template <class Op, class At>
void update_lanes(Wave& w, const Instruction& in, u32 data, u64 active, u64 allowed, At at) {
  using T = typename Op::T;
  const FloatMode mode = float_mode(w);
  for_each_lane(active, [&](int l) {
    T old = 0;
    if (allowed >> l & 1) old = update_memory<T>(at(l), [&](T value) { return Op::apply(w, value, data, l, mode); });
    if (in.returns) set_lane_value<T>(w, in.operand[0].reg, l, old);
  });
}

template <class Op>
void global_atomic_at(Wave& w, const Instruction& in, const AddressRow& address) {
  const u64 active = w.exec();
  const u64 allowed = begin_global(w, in, address.lane, active, sizeof(typename Op::T), AccessKind::atomic);
  update_lanes<Op>(w, in, in.source(1).reg, active, allowed, [&](int l) { return memory_at(address.lane[l]); });
}
// [destination,] address, data[, scalar base]
template <class Op>
void global_atomic(Wave& w, const Instruction& in) {
  AddressRow address;
  global_addresses(w, in.source(0), in.source(2), in.offset, address);
  global_atomic_at<Op>(w, in, address);
}
template <class Op>
void flat_atomic(Wave& w, const Instruction& in) {
  AddressRow address;
  global_addresses(w, in.source(0), in.source(2), in.offset, address);
  const u64 active = w.exec();
  if (!in_apertures(w, address, active)) return global_atomic_at<Op>(w, in, address);
  FlatAccess access(w, in, address, active, sizeof(typename Op::T), AccessKind::atomic);
  update_lanes<Op>(w, in, in.source(1).reg, active, access.allowed(), [&](int l) { return access(l); });
  access.write_back();
}
// data, address, descriptor, offset; the old value replaces the data.
template <class Op>
void buffer_atomic(Wave& w, const Instruction& in) {
  const BufferAccess buffer(w, in, in.operand[1], in.operand[2], in.operand[3]);
  const u64 active = w.exec();
  AddressRow address;
  const u64 lanes = buffer.part(active, 0, sizeof(typename Op::T), address);
  const u64 allowed = lanes ? begin_global(w, in, address.lane, lanes, sizeof(typename Op::T), AccessKind::atomic) : 0;
  update_lanes<Op>(w, in, in.operand[0].reg, active, allowed, [&](int l) { return memory_at(address.lane[l]); });
}

// Whether there is a result is a bit of the cache policy.
template <int kOperands>
std::string bind_returns(Instruction& in, const Target&) {
  in.dest_count = in.returns;
  return in.operand_count == kOperands + in.returns ? "" : "operands and return bit do not agree";
}
std::string bind_buffer(Instruction& in, const Target&) {
  in.dest_count = in.returns;
  return in.operand_count == 4 ? "" : "unexpected number of operands";
}

constexpr u32 kModifiers = kTakesOffset | kTakesCache;
#define ATOMIC(name, ...)                                                                                              \
  {"global_atomic_" name, global_atomic<__VA_ARGS__>, Class::vmem_atomic, "=uxu", kModifiers, 0, 4, bind_returns<3>},  \
      {"flat_atomic_" name, flat_atomic<__VA_ARGS__>, Class::vmem_atomic, "=ux", kModifiers, 0, 4, bind_returns<2>}, { \
    "buffer_atomic_" name, buffer_atomic<__VA_ARGS__>, Class::vmem_atomic, "=xuuu", kModifiers | kTakesBuffer,         \
        kReadsDest, 4, bind_buffer                                                                                     \
  }
// gfx9's names and those of gfx11 and gfx12, 32 and 64 bits.
#define UNSIGNED(name, letter, Op)                                                  \
  ATOMIC(name, OneValue<u32, Op<u32>>), ATOMIC(name "_x2", OneValue<u64, Op<u64>>), \
      ATOMIC(name "_" letter "32", OneValue<u32, Op<u32>>), ATOMIC(name "_" letter "64", OneValue<u64, Op<u64>>)
#define MIN_MAX(gfx9_name, name, letter, T32, T64, Op)                                        \
  ATOMIC(gfx9_name, OneValue<T32, Op<T32>>), ATOMIC(gfx9_name "_x2", OneValue<T64, Op<T64>>), \
      ATOMIC(name "_" letter "32", OneValue<T32, Op<T32>>), ATOMIC(name "_" letter "64", OneValue<T64, Op<T64>>)

using MinF32 = OneValue<u32, FloatMinMax<float, false>>;
using MaxF32 = OneValue<u32, FloatMinMax<float, true>>;
using MinF64 = OneValue<u64, FloatMinMax<double, false>>;
using MaxF64 = OneValue<u64, FloatMinMax<double, true>>;

const Opcode kOpcodes[] = {
    UNSIGNED("add", "u", Add),
    UNSIGNED("sub", "u", Sub),
    UNSIGNED("inc", "u", Increment),
    UNSIGNED("dec", "u", Decrement),
    UNSIGNED("and", "b", And),
    UNSIGNED("or", "b", Or),
    UNSIGNED("xor", "b", Xor),
    UNSIGNED("swap", "b", Swap),
    MIN_MAX("smin", "min", "i", i32, i64, Min),
    MIN_MAX("umin", "min", "u", u32, u64, Min),
    MIN_MAX("smax", "max", "i", i32, i64, Max),
    MIN_MAX("umax", "max", "u", u32, u64, Max),
    ATOMIC("cmpswap", CompareSwap<u32>),
    ATOMIC("cmpswap_x2", CompareSwap<u64>),
    ATOMIC("cmpswap_b32", CompareSwap<u32>),
    ATOMIC("cmpswap_b64", CompareSwap<u64>),
    ATOMIC("cmpswap_f32", CompareSwapF32),
    ATOMIC("csub_u32", OneValue<u32, SubClamp>),
    ATOMIC("sub_clamp_u32", OneValue<u32, SubClamp>),
    ATOMIC("cond_sub_u32", OneValue<u32, CondSub>),
    ATOMIC("add_f32", OneValue<u32, AddF32>),
    ATOMIC("add_f64", OneValue<u64, AddF64>),
    ATOMIC("pk_add_f16", OneValue<u32, PackedAddF16>),
    ATOMIC("pk_add_bf16", OneValue<u32, PackedAddBf16>),
    ATOMIC("min_f32", MinF32),
    ATOMIC("max_f32", MaxF32),
    ATOMIC("min_num_f32", MinF32),
    ATOMIC("max_num_f32", MaxF32),
    ATOMIC("min_f64", MinF64),
    ATOMIC("max_f64", MaxF64),
};

}  // namespace

std::span<const Opcode> vmem_atomic_opcodes() { return kOpcodes; }

}  // namespace emu
