// LDS atomics. A workgroup runs on one thread, so plain reads and writes are atomic; lanes go in order.
#include "isa/atomics.h"
#include "isa/memory.h"

namespace emu {
namespace {

using namespace atomics;

// Calls next(old, lane) for each lane to get what to store; old values go to the destination if there is one.
template <class T, class Next>
void update(Wave& w, const Instruction& in, const Row& address, int dword, Next next) {
  const u64 active = w.exec();
  const u64 allowed = begin_lds(w, in, address.lane, active, sizeof(T), AccessKind::atomic);
  u8* lds = w.group->lds.data();
  for_each_lane(active, [&](int l) {
    T old = 0;
    if (allowed >> l & 1) {
      u8* at = lds + address.lane[l];
      old = load_as<T>(at);
      store_as(at, next(old, l));
    }
    if (in.dest_count) set_lane_value<T>(w, in.operand[0].reg + static_cast<u32>(dword), l, old);
  });
}

template <class T, class Next>
void update_at_offset(Wave& w, const Instruction& in, Next next) {
  Row address;
  lds_addresses(w, in.source(0), static_cast<u32>(in.offset), address.lane);
  update<T>(w, in, address, 0, next);
}

// The destination may be one of the sources: lane by lane, sources are read before it is written.
template <class T, class Op>
void lds_atomic(Wave& w, const Instruction& in) {
  const FloatMode mode{w.flush_f32};
  update_at_offset<T>(w, in, [&](T old, int l) { return Op::apply(old, lane_value<T>(w, in.source(1).reg, l), mode); });
}

// gfx9: data0 is compared, data1 is stored. gfx11 on: data0 is stored, data1 is compared.
template <class T, bool kCompareFirst>
void compare_store(Wave& w, const Instruction& in) {
  const Operand& compare = in.source(kCompareFirst ? 1 : 2);
  const Operand& data = in.source(kCompareFirst ? 2 : 1);
  update_at_offset<T>(w, in, [&](T old, int l) {
    return old == lane_value<T>(w, compare.reg, l) ? lane_value<T>(w, data.reg, l) : old;
  });
}
// As floats: -0 equals +0, NaN nothing.
template <class F, bool kCompareFirst>
void compare_store_float(Wave& w, const Instruction& in) {
  using T = decltype(bits_of(F{}));
  const Operand& compare = in.source(kCompareFirst ? 1 : 2);
  const Operand& data = in.source(kCompareFirst ? 2 : 1);
  update_at_offset<T>(w, in, [&](T old, int l) {
    const T other = lane_value<T>(w, compare.reg, l);
    return std::bit_cast<F>(old) == std::bit_cast<F>(other) ? lane_value<T>(w, data.reg, l) : old;
  });
}

template <class T>
void mask_or(Wave& w, const Instruction& in) {
  update_at_offset<T>(w, in, [&](T old, int l) {
    return static_cast<T>((old & ~lane_value<T>(w, in.source(1).reg, l)) | lane_value<T>(w, in.source(2).reg, l));
  });
}

void wrap(Wave& w, const Instruction& in) {
  update_at_offset<u32>(w, in, [&](u32 old, int l) {
    const u32 data = lane_value<u32>(w, in.source(1).reg, l);
    return old >= data ? old - data : old + lane_value<u32>(w, in.source(2).reg, l);
  });
}

// Each dword is replaced if bit 31 of its data says so; that bit is not stored.
void conditional_exchange(Wave& w, const Instruction& in) {
  update_at_offset<u64>(w, in, [&](u64 old, int l) {
    const u64 data = lane_value<u64>(w, in.source(1).reg, l);
    u64 next = old;
    if (data >> 31 & 1) next = (next & ~0xffffffffull) | (data & 0x7fffffff);
    if (data >> 63) next = (next & 0xffffffff) | (data & 0x7fffffff00000000ull);
    return next;
  });
}

// Two exchanges; offsets as for the loads with two addresses. Registers are read before either result is written.
template <class T, int kStride>
void exchange2(Wave& w, const Instruction& in) {
  Row first, second;
  lds_addresses(w, in.source(0), static_cast<u32>(in.offset) * sizeof(T) * kStride, first.lane);
  lds_addresses(w, in.source(0), static_cast<u32>(in.offset1) * sizeof(T) * kStride, second.lane);
  T data[2][kLanes];
  for_each_lane(w.exec(), [&](int l) {
    for (int i = 0; i < 2; ++i) data[i][l] = lane_value<T>(w, in.source(1 + i).reg, l);
  });
  update<T>(w, in, first, 0, [&](T, int l) { return data[0][l]; });
  update<T>(w, in, second, sizeof(T) / 4, [&](T, int l) { return data[1][l]; });
}

constexpr Opcode row(const char* name, Handler handler) {
  return {name, handler, Class::lds_atomic, "=uxx", kTakesOffset};
}
constexpr Opcode returning_row(const char* name, Handler handler) {
  return {name, handler, Class::lds_atomic, "x=uxx", kTakesOffset};
}
// ds_NAME_TYPE and ds_NAME_rtn_TYPE
#define ATOMIC(name, type, ...) \
  row("ds_" name "_" type, __VA_ARGS__), returning_row("ds_" name "_rtn_" type, __VA_ARGS__)
#define ATOMIC_32_AND_64(name, type, Op) \
  ATOMIC(name, type "32", lds_atomic<u32, Op<u32>>), ATOMIC(name, type "64", lds_atomic<u64, Op<u64>>)

const Opcode kOpcodes[] = {
    ATOMIC_32_AND_64("add", "u", Add),
    ATOMIC_32_AND_64("sub", "u", Sub),
    ATOMIC_32_AND_64("rsub", "u", ReverseSub),
    ATOMIC_32_AND_64("inc", "u", Increment),
    ATOMIC_32_AND_64("dec", "u", Decrement),
    ATOMIC_32_AND_64("min", "u", Min),
    ATOMIC_32_AND_64("max", "u", Max),
    ATOMIC("min", "i32", lds_atomic<i32, Min<i32>>),
    ATOMIC("min", "i64", lds_atomic<i64, Min<i64>>),
    ATOMIC("max", "i32", lds_atomic<i32, Max<i32>>),
    ATOMIC("max", "i64", lds_atomic<i64, Max<i64>>),
    ATOMIC_32_AND_64("and", "b", And),
    ATOMIC_32_AND_64("or", "b", Or),
    ATOMIC_32_AND_64("xor", "b", Xor),
    ATOMIC("mskor", "b32", mask_or<u32>),
    ATOMIC("mskor", "b64", mask_or<u64>),
    ATOMIC("sub_clamp", "u32", lds_atomic<u32, SubClamp>),
    ATOMIC("cond_sub", "u32", lds_atomic<u32, CondSub>),
    ATOMIC("add", "f32", lds_atomic<u32, AddF32>),
    ATOMIC("add", "f64", lds_atomic<u64, AddF64>),
    ATOMIC("min", "f32", lds_atomic<u32, FloatMinMax<float, false>>),
    ATOMIC("min", "f64", lds_atomic<u64, FloatMinMax<double, false>>),
    ATOMIC("max", "f32", lds_atomic<u32, FloatMinMax<float, true>>),
    ATOMIC("max", "f64", lds_atomic<u64, FloatMinMax<double, true>>),
    ATOMIC("min_num", "f32", lds_atomic<u32, FloatMinMax<float, false>>),
    ATOMIC("min_num", "f64", lds_atomic<u64, FloatMinMax<double, false>>),
    ATOMIC("max_num", "f32", lds_atomic<u32, FloatMinMax<float, true>>),
    ATOMIC("max_num", "f64", lds_atomic<u64, FloatMinMax<double, true>>),
    ATOMIC("pk_add", "f16", lds_atomic<u32, PackedAddF16>),
    ATOMIC("pk_add", "bf16", lds_atomic<u32, PackedAddBf16>),
    ATOMIC("cmpst", "b32", compare_store<u32, true>),
    ATOMIC("cmpst", "b64", compare_store<u64, true>),
    ATOMIC("cmpst", "f32", compare_store_float<float, true>),
    ATOMIC("cmpst", "f64", compare_store_float<double, true>),
    ATOMIC("cmpstore", "b32", compare_store<u32, false>),
    ATOMIC("cmpstore", "b64", compare_store<u64, false>),
    ATOMIC("cmpstore", "f32", compare_store_float<float, false>),
    ATOMIC("cmpstore", "f64", compare_store_float<double, false>),
    returning_row("ds_wrap_rtn_b32", wrap),
    returning_row("ds_condxchg32_rtn_b64", conditional_exchange),
    returning_row("ds_wrxchg_rtn_b32", lds_atomic<u32, Swap<u32>>),
    returning_row("ds_wrxchg_rtn_b64", lds_atomic<u64, Swap<u64>>),
    returning_row("ds_wrxchg2_rtn_b32", exchange2<u32, 1>),
    returning_row("ds_wrxchg2_rtn_b64", exchange2<u64, 1>),
    returning_row("ds_wrxchg2st64_rtn_b32", exchange2<u32, 64>),
    returning_row("ds_wrxchg2st64_rtn_b64", exchange2<u64, 64>),
    returning_row("ds_storexchg_rtn_b32", lds_atomic<u32, Swap<u32>>),
    returning_row("ds_storexchg_rtn_b64", lds_atomic<u64, Swap<u64>>),
    returning_row("ds_storexchg_2addr_rtn_b32", exchange2<u32, 1>),
    returning_row("ds_storexchg_2addr_rtn_b64", exchange2<u64, 1>),
    returning_row("ds_storexchg_2addr_stride64_rtn_b32", exchange2<u32, 64>),
    returning_row("ds_storexchg_2addr_stride64_rtn_b64", exchange2<u64, 64>),
};

}  // namespace

std::span<const Opcode> lds_atomic_opcodes() { return kOpcodes; }

}  // namespace emu
