// Scalar loads, clocks and prefetches.
#include "isa/memory.h"

namespace emu {
namespace {

// Byte offset: a signed immediate, or an SGPR taken as unsigned plus an immediate (`s4 offset:0x10`).
i64 scalar_offset(const Wave& w, const Instruction& in) {
  const Operand& o = in.operand[2];
  const i64 first = o.is_constant() ? static_cast<i32>(o.constant) : static_cast<i64>(scalar32(w, o));
  return first + in.offset;
}

template <int N>
void set_scalars(Wave& w, const Operand& o, const u32 (&data)[N]) {
  if (o.reg != kNull) std::memcpy(&w.sgpr[o.reg], data, sizeof data);
}

template <int N>
void scalar_load(Wave& w, const Instruction& in) {
  const u64 address = (scalar64(w, in.operand[1]) + static_cast<u64>(scalar_offset(w, in))) & ~3ull;
  u32 data[N] = {};
  if (begin_scalar(w, in, address, 4 * N)) std::memcpy(data, memory_at(address), sizeof data);
  set_scalars(w, in.operand[0], data);
}
template <class T>
void scalar_load_small(Wave& w, const Instruction& in) {
  const u64 address =
      (scalar64(w, in.operand[1]) + static_cast<u64>(scalar_offset(w, in))) & ~static_cast<u64>(sizeof(T) - 1);
  const T value = begin_scalar(w, in, address, sizeof(T)) ? load_as<T>(memory_at(address)) : T{0};
  set_scalar32(w, in.operand[0], static_cast<u32>(static_cast<i32>(value)));
}

// A buffer in scalar registers: base, and the bytes that may be read (ISA documents, "Scalar Memory Addressing").
struct ScalarBuffer {
  u64 base, bytes;
  ScalarBuffer(const Wave& w, const Operand& rsrc) {
    const u32* words = &w.sgpr[rsrc.reg];
    const u32 stride = words[1] >> 16 & 0x3fff;
    base = load64(words) & 0xffffffffffffull;
    bytes = static_cast<u64>(words[2]) * (stride ? stride : 1);
  }
};
// Dwords past the end read 0, one by one.
template <int N>
void scalar_buffer_load(Wave& w, const Instruction& in) {
  const ScalarBuffer buffer(w, in.operand[1]);
  const u64 offset = static_cast<u64>(scalar_offset(w, in)) & ~3ull;
  const u64 left = offset < buffer.bytes ? (buffer.bytes - offset) / 4 : 0;
  const size_t count = left < N ? static_cast<size_t>(left) : N;
  u32 data[N] = {};
  const u64 address = buffer.base + offset;
  if (count && begin_scalar(w, in, address, static_cast<u32>(4 * count))) {
    std::memcpy(data, memory_at(address), 4 * count);
  }
  set_scalars(w, in.operand[0], data);
}
template <class T>
void scalar_buffer_load_small(Wave& w, const Instruction& in) {
  const ScalarBuffer buffer(w, in.operand[1]);
  const u64 offset = static_cast<u64>(scalar_offset(w, in)) & ~static_cast<u64>(sizeof(T) - 1);
  const u64 address = buffer.base + offset;
  T value = 0;
  if (offset + sizeof(T) <= buffer.bytes && begin_scalar(w, in, address, sizeof(T))) {
    value = load_as<T>(memory_at(address));
  }
  set_scalar32(w, in.operand[0], static_cast<u32>(static_cast<i32>(value)));
}

// Time is counted in instructions of the wave, so that runs repeat exactly; it goes on while a kernel polls it.
void core_clock(Wave& w, const Instruction& in) { set_scalar64(w, in.operand[0], w.executed * 4); }
void real_time(Wave& w, const Instruction& in) { set_scalar64(w, in.operand[0], w.executed / 4); }  // slower: 100 MHz

void nop(Wave&, const Instruction&) {}

constexpr Opcode row(const char* name, Handler handler) {
  return {name, handler, Class::scalar_load, "x=uu", kTakesOffset | kTakesCache};
}
constexpr Opcode clock_row(const char* name, Handler handler) { return {name, handler, Class::scalar_load, "x="}; }
constexpr Opcode nop_row(const char* name) { return {name, nop, Class::other, "=uuuu", kTakesOffset | kTakesCache}; }

const Opcode kOpcodes[] = {
    row("s_load_dword", scalar_load<1>),
    row("s_load_dwordx2", scalar_load<2>),
    row("s_load_dwordx4", scalar_load<4>),
    row("s_load_dwordx8", scalar_load<8>),
    row("s_load_dwordx16", scalar_load<16>),
    row("s_load_b32", scalar_load<1>),
    row("s_load_b64", scalar_load<2>),
    row("s_load_b96", scalar_load<3>),
    row("s_load_b128", scalar_load<4>),
    row("s_load_b256", scalar_load<8>),
    row("s_load_b512", scalar_load<16>),
    row("s_load_u8", scalar_load_small<u8>),
    row("s_load_i8", scalar_load_small<i8>),
    row("s_load_u16", scalar_load_small<u16>),
    row("s_load_i16", scalar_load_small<i16>),
    row("s_buffer_load_dword", scalar_buffer_load<1>),
    row("s_buffer_load_dwordx2", scalar_buffer_load<2>),
    row("s_buffer_load_dwordx4", scalar_buffer_load<4>),
    row("s_buffer_load_dwordx8", scalar_buffer_load<8>),
    row("s_buffer_load_dwordx16", scalar_buffer_load<16>),
    row("s_buffer_load_b32", scalar_buffer_load<1>),
    row("s_buffer_load_b64", scalar_buffer_load<2>),
    row("s_buffer_load_b96", scalar_buffer_load<3>),
    row("s_buffer_load_b128", scalar_buffer_load<4>),
    row("s_buffer_load_b256", scalar_buffer_load<8>),
    row("s_buffer_load_b512", scalar_buffer_load<16>),
    row("s_buffer_load_u8", scalar_buffer_load_small<u8>),
    row("s_buffer_load_i8", scalar_buffer_load_small<i8>),
    row("s_buffer_load_u16", scalar_buffer_load_small<u16>),
    row("s_buffer_load_i16", scalar_buffer_load_small<i16>),
    clock_row("s_memtime", core_clock),
    clock_row("s_memrealtime", real_time),
    // Caches are not modelled.
    nop_row("s_dcache_inv"),
    nop_row("s_dcache_inv_vol"),
    nop_row("s_dcache_wb"),
    nop_row("s_dcache_wb_vol"),
    nop_row("s_gl1_inv"),
    nop_row("s_prefetch_inst"),
    nop_row("s_prefetch_inst_pc_rel"),
    nop_row("s_prefetch_data"),
    nop_row("s_prefetch_data_pc_rel"),
    nop_row("s_buffer_prefetch_data"),
};

}  // namespace

std::span<const Opcode> scalar_load_opcodes() { return kOpcodes; }

}  // namespace emu
