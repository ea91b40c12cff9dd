// LDS: loads, stores, transposing loads, and the lane shuffles that go through the LDS crossbar.
#include <array>

#include "isa/memory.h"

namespace emu {
namespace {

template <class Data>
void lds_load_from(Wave& w, const Instruction& in, const Row& address) {
  const u64 active = w.exec();
  const u64 allowed = begin_lds(w, in, address.lane, active, Data::kBytes, AccessKind::read);
  const u8* lds = w.group->lds.data();
  Data::load(w, in.operand[0], 0, active, allowed, [&](int l) { return lds + address.lane[l]; });
}
template <class Data>
void lds_load(Wave& w, const Instruction& in) {
  Row address;
  lds_addresses(w, in.operand[1], static_cast<u32>(in.offset), address.lane);
  lds_load_from<Data>(w, in, address);
}

template <class Data>
void lds_store_to(Wave& w, const Instruction& in, const Row& address, const Operand& data) {
  const u64 allowed = begin_lds(w, in, address.lane, w.exec(), Data::kBytes, AccessKind::write);
  u8* lds = w.group->lds.data();
  Data::store(w, data, 0, allowed, [&](int l) { return lds + address.lane[l]; });
}
template <class Data>
void lds_store(Wave& w, const Instruction& in) {
  Row address;
  lds_addresses(w, in.operand[0], static_cast<u32>(in.offset), address.lane);
  lds_store_to<Data>(w, in, address, in.operand[1]);
}

// Two addresses, offsets in units of the element (or of 64 of them).
template <int N, int kStride>
void lds_load2(Wave& w, const Instruction& in) {
  Row first, second;
  lds_addresses(w, in.operand[1], static_cast<u32>(in.offset) * 4 * N * kStride, first.lane);
  lds_addresses(w, in.operand[1], static_cast<u32>(in.offset1) * 4 * N * kStride, second.lane);
  const u64 active = w.exec();
  const u64 allowed_first = begin_lds(w, in, first.lane, active, 4 * N, AccessKind::read);
  const u64 allowed_second = begin_lds(w, in, second.lane, active, 4 * N, AccessKind::read);
  const u8* lds = w.group->lds.data();
  Dwords<N>::load(w, in.operand[0], 0, active, allowed_first, [&](int l) { return lds + first.lane[l]; });
  Dwords<N>::load(w, in.operand[0], N, active, allowed_second, [&](int l) { return lds + second.lane[l]; });
}
template <int N, int kStride>
void lds_store2(Wave& w, const Instruction& in) {
  Row address;
  lds_addresses(w, in.operand[0], static_cast<u32>(in.offset) * 4 * N * kStride, address.lane);
  lds_store_to<Dwords<N>>(w, in, address, in.operand[1]);
  lds_addresses(w, in.operand[0], static_cast<u32>(in.offset1) * 4 * N * kStride, address.lane);
  lds_store_to<Dwords<N>>(w, in, address, in.operand[2]);
}

// Address: M0 + offset + 4 * lane.
void addtid_addresses(const Wave& w, const Instruction& in, Row& address) {
  const u32 base = lds_base_in_m0(w) + static_cast<u32>(in.offset);
  for_lanes(w, [&](int l) { address.lane[l] = base + 4 * static_cast<u32>(l); });
}
void lds_load_addtid(Wave& w, const Instruction& in) {
  Row address;
  addtid_addresses(w, in, address);
  lds_load_from<Dwords<1>>(w, in, address);
}
void lds_store_addtid(Wave& w, const Instruction& in) {
  Row address;
  addtid_addresses(w, in, address);
  lds_store_to<Dwords<1>>(w, in, address, in.operand[0]);
}

// --- transposing loads of gfx950 -----------------------------------------------------------------------------------
// Every lane reads N dwords = E elements of kBits. Groups of 16 lanes hold a matrix of E rows and 16 columns between
// them, 16 / E consecutive lanes to a row, and lane i of the group receives column i:
//   result(i)[j] = read(j * 16 / E + i / E)[i % E]
// CDNA4 ISA 11.4, "MFMA Transpose Load from LDS", says what it is for but not which lane gets what. The mapping is
// that of the lane layout test of ROCm's emulator (ds_read_b64_tr_b16), of the addresses HipKittens gives
// ds_read_b64_tr_b16 and _b8, and of Triton's layouts for _b4 (shuffle groups of 16 lanes); _b6 follows the same rule.
template <int N, int kBits>
void lds_load_transposed(Wave& w, const Instruction& in) {
  constexpr int kElements = 32 * N / kBits;
  constexpr int kLanesPerRow = 16 / kElements;
  constexpr u32 kAlignment = N == 2 ? 8 : 16;  // rocRoller pads rows of 6-bit elements to 128 bits for this
  Row address;
  lds_addresses(w, in.operand[1], static_cast<u32>(in.offset), address.lane);
  const u64 active = w.exec();
  const u64 allowed = begin_lds_aligned(w, in, address.lane, active, 4 * N, kAlignment);
  const u8* lds = w.group->lds.data();
  if constexpr (kBits == 16) {
    // Element e of lane i of 16 is number 16 e + i of the 64 that those lanes read one after the other.
    u16 read[kLanes * kElements] = {};
    for_each_lane(allowed, [&](int l) { std::memcpy(read + l * kElements, lds + address.lane[l], 4 * N); });
    Row result[N];
    for (int l = 0; l < kLanes; ++l) {
      const u16* group = read + l / 16 * 64 + l % 16;
      for (int d = 0; d < N; ++d) result[d].lane[l] = group[32 * d] | static_cast<u32>(group[32 * d + 16]) << 16;
    }
    for (int d = 0; d < N; ++d) write_row(w, in.operand[0].reg + d, result[d].lane, active);
    return;
  }
  u8 element[kLanes][kElements] = {};
  for_each_lane(allowed, [&](int l) {
    const u8* from = lds + address.lane[l];
    for (int e = 0; e < kElements; ++e) {
      const int bit = e * kBits;
      const u32 pair = from[bit / 8] | (bit % 8 + kBits > 8 ? from[bit / 8 + 1] << 8 : 0);
      element[l][e] = static_cast<u8>(pair >> bit % 8 & ((1u << kBits) - 1));
    }
  });
  for_each_lane(active, [&](int l) {
    const int i = l % 16;
    u32 result[N + 1] = {};
    for (int e = 0; e < kElements; ++e) {
      const u64 bits = static_cast<u64>(element[l - i + e * kLanesPerRow + i / kElements][i % kElements])
                       << e * kBits % 32;
      result[e * kBits / 32] |= static_cast<u32>(bits);
      result[e * kBits / 32 + 1] |= static_cast<u32>(bits >> 32);
    }
    for (int d = 0; d < N; ++d) w.vgpr[in.operand[0].reg + d][l] = result[d];
  });
}

// --- append and consume --------------------------------------------------------------------------------------------
// One counter for the wave at M0 + offset goes up or down by the number of active lanes; all of them get its old value.
template <bool kAppend>
void lds_count(Wave& w, const Instruction& in) {
  const u64 active = w.exec();
  if (active == 0) return;
  Row address;
  for (u32& lane : address.lane) lane = lds_base_in_m0(w) + static_cast<u32>(in.offset);
  const u64 one = active & (0 - active);
  const bool allowed = begin_lds(w, in, address.lane, one, 4, AccessKind::atomic) != 0;
  u32 old = 0;
  if (allowed) {
    u8* counter = w.group->lds.data() + address.lane[0];
    old = load_as<u32>(counter);
    const u32 lanes = static_cast<u32>(std::popcount(active));
    store_as(counter, kAppend ? old + lanes : old - lanes);
  }
  u32* row = w.vgpr[in.operand[0].reg];
  for_each_lane(active, [&](int l) { row[l] = old; });
}

// --- lane shuffles -------------------------------------------------------------------------------------------------
// No LDS memory is touched. Lanes that are not active deliver 0, but for the _fi form.
template <bool kFetchInactive>
void bpermute(Wave& w, const Instruction& in) {
  Row result;
  const u32* address = w.vgpr[in.operand[1].reg];
  const u32* data = w.vgpr[in.operand[2].reg];
  const u64 active = w.exec();
  const u64 readable = kFetchInactive ? ~0ull : active;
  const u32 offset = static_cast<u32>(in.offset), last = static_cast<u32>(w.lanes) - 1;
  for_lanes(w, [&](int l) {
    const u32 from = (address[l] + offset) >> 2 & last;
    result.lane[l] = readable >> from & 1 ? data[from] : 0;
  });
  write_row(w, in.operand[0].reg, result.lane, active);
}

void permute(Wave& w, const Instruction& in) {
  Row result{};
  const u32* address = w.vgpr[in.operand[1].reg];
  const u32* data = w.vgpr[in.operand[2].reg];
  const u32 offset = static_cast<u32>(in.offset), last = static_cast<u32>(w.lanes) - 1;
  for_each_lane(w.exec(), [&](int l) { result.lane[(address[l] + offset) >> 2 & last] = data[l]; });
  write_row(w, in.operand[0].reg, result.lane, w.exec());
}

// Which lane each lane of a group of 32 reads (DS_SWIZZLE_B32 in any of the ISA documents).
std::array<u8, 32> swizzle_sources(u32 offset) {
  std::array<u8, 32> from{};
  for (u32 l = 0; l < 32; ++l) {
    const u32 low = offset & 31, middle = offset >> 5 & 31, high = offset >> 10 & 31;
    if (offset >= 0xe000) {  // FFT: reversed bits
      u32 reversed = 0;
      for (int b = 0; b < 5; ++b) reversed |= (l >> b & 1) << (4 - b);
      from[l] = static_cast<u8>(reversed >> std::popcount(low) | (l & low));
    } else if (offset >= 0xc000) {  // rotate by `middle`, backwards if bit 10 is set; bits of the mask stay
      const u32 rotated = high & 1 ? l - middle : l + middle;
      from[l] = static_cast<u8>((l & low) | (rotated & ~low & 31));
    } else if (offset & 0x8000) {  // quad permute
      from[l] = static_cast<u8>((l & 28) | (offset >> 2 * (l & 3) & 3));
    } else {
      from[l] = static_cast<u8>(((l & low) | middle) ^ high);
    }
  }
  return from;
}
void swizzle(Wave& w, const Instruction& in) {
  const std::array<u8, 32> from = swizzle_sources(in.word[0] & 0xffff);
  Row result;
  const u32* data = w.vgpr[in.operand[1].reg];
  const u64 active = w.exec();
  for_lanes(w, [&](int l) {
    const int source = (l & 32) | from[static_cast<size_t>(l & 31)];
    result.lane[l] = active >> source & 1 ? data[source] : 0;
  });
  write_row(w, in.operand[0].reg, result.lane, active);
}

void nop(Wave&, const Instruction&) {}

// --- the table -----------------------------------------------------------------------------------------------------
constexpr Opcode load_row(const char* name, Handler handler) {
  return {name, handler, Class::lds_read, "x=u", kTakesOffset};
}
constexpr Opcode store_row(const char* name, Handler handler) {
  return {name, handler, Class::lds_write, "=uxx", kTakesOffset};
}
constexpr Opcode shuffle_row(const char* name, Handler handler) {
  return {name, handler, Class::lds_read, "x=ux", kTakesOffset};
}

const Opcode kOpcodes[] = {
    load_row("ds_read_b32", lds_load<Dwords<1>>),
    load_row("ds_read_b64", lds_load<Dwords<2>>),
    load_row("ds_read_b96", lds_load<Dwords<3>>),
    load_row("ds_read_b128", lds_load<Dwords<4>>),
    load_row("ds_read_u8", lds_load<Small<u8>>),
    load_row("ds_read_i8", lds_load<Small<i8>>),
    load_row("ds_read_u16", lds_load<Small<u16>>),
    load_row("ds_read_i16", lds_load<Small<i16>>),
    load_row("ds_read_u8_d16", lds_load<Small<u8, Half::low>>),
    load_row("ds_read_u8_d16_hi", lds_load<Small<u8, Half::high>>),
    load_row("ds_read_i8_d16", lds_load<Small<i8, Half::low>>),
    load_row("ds_read_i8_d16_hi", lds_load<Small<i8, Half::high>>),
    load_row("ds_read_u16_d16", lds_load<Small<u16, Half::low>>),
    load_row("ds_read_u16_d16_hi", lds_load<Small<u16, Half::high>>),
    load_row("ds_read2_b32", lds_load2<1, 1>),
    load_row("ds_read2_b64", lds_load2<2, 1>),
    load_row("ds_read2st64_b32", lds_load2<1, 64>),
    load_row("ds_read2st64_b64", lds_load2<2, 64>),
    load_row("ds_read_b64_tr_b16", lds_load_transposed<2, 16>),
    load_row("ds_read_b64_tr_b8", lds_load_transposed<2, 8>),
    load_row("ds_read_b64_tr_b4", lds_load_transposed<2, 4>),
    load_row("ds_read_b96_tr_b6", lds_load_transposed<3, 6>),
    {"ds_read_addtid_b32", lds_load_addtid, Class::lds_read, "x=", kTakesOffset},
    store_row("ds_write_b8", lds_store<Small<u8>>),
    store_row("ds_write_b8_d16_hi", lds_store<Small<u8, Half::high>>),
    store_row("ds_write_b16", lds_store<Small<u16>>),
    store_row("ds_write_b16_d16_hi", lds_store<Small<u16, Half::high>>),
    store_row("ds_write_b32", lds_store<Dwords<1>>),
    store_row("ds_write_b64", lds_store<Dwords<2>>),
    store_row("ds_write_b96", lds_store<Dwords<3>>),
    store_row("ds_write_b128", lds_store<Dwords<4>>),
    store_row("ds_write2_b32", lds_store2<1, 1>),
    store_row("ds_write2_b64", lds_store2<2, 1>),
    store_row("ds_write2st64_b32", lds_store2<1, 64>),
    store_row("ds_write2st64_b64", lds_store2<2, 64>),
    {"ds_write_addtid_b32", lds_store_addtid, Class::lds_write, "=x", kTakesOffset},

    load_row("ds_load_b32", lds_load<Dwords<1>>),
    load_row("ds_load_b64", lds_load<Dwords<2>>),
    load_row("ds_load_b96", lds_load<Dwords<3>>),
    load_row("ds_load_b128", lds_load<Dwords<4>>),
    load_row("ds_load_u8", lds_load<Small<u8>>),
    load_row("ds_load_i8", lds_load<Small<i8>>),
    load_row("ds_load_u16", lds_load<Small<u16>>),
    load_row("ds_load_i16", lds_load<Small<i16>>),
    load_row("ds_load_u8_d16", lds_load<Small<u8, Half::low>>),
    load_row("ds_load_u8_d16_hi", lds_load<Small<u8, Half::high>>),
    load_row("ds_load_i8_d16", lds_load<Small<i8, Half::low>>),
    load_row("ds_load_i8_d16_hi", lds_load<Small<i8, Half::high>>),
    load_row("ds_load_u16_d16", lds_load<Small<u16, Half::low>>),
    load_row("ds_load_u16_d16_hi", lds_load<Small<u16, Half::high>>),
    load_row("ds_load_2addr_b32", lds_load2<1, 1>),
    load_row("ds_load_2addr_b64", lds_load2<2, 1>),
    load_row("ds_load_2addr_stride64_b32", lds_load2<1, 64>),
    load_row("ds_load_2addr_stride64_b64", lds_load2<2, 64>),
    {"ds_load_addtid_b32", lds_load_addtid, Class::lds_read, "x=", kTakesOffset},
    store_row("ds_store_b8", lds_store<Small<u8>>),
    store_row("ds_store_b8_d16_hi", lds_store<Small<u8, Half::high>>),
    store_row("ds_store_b16", lds_store<Small<u16>>),
    store_row("ds_store_b16_d16_hi", lds_store<Small<u16, Half::high>>),
    store_row("ds_store_b32", lds_store<Dwords<1>>),
    store_row("ds_store_b64", lds_store<Dwords<2>>),
    store_row("ds_store_b96", lds_store<Dwords<3>>),
    store_row("ds_store_b128", lds_store<Dwords<4>>),
    store_row("ds_store_2addr_b32", lds_store2<1, 1>),
    store_row("ds_store_2addr_b64", lds_store2<2, 1>),
    store_row("ds_store_2addr_stride64_b32", lds_store2<1, 64>),
    store_row("ds_store_2addr_stride64_b64", lds_store2<2, 64>),
    {"ds_store_addtid_b32", lds_store_addtid, Class::lds_write, "=x", kTakesOffset},

    {"ds_append", lds_count<true>, Class::lds_atomic, "x=", kTakesOffset},
    {"ds_consume", lds_count<false>, Class::lds_atomic, "x=", kTakesOffset},
    shuffle_row("ds_bpermute_b32", bpermute<false>),
    shuffle_row("ds_bpermute_fi_b32", bpermute<true>),
    shuffle_row("ds_permute_b32", permute),
    {"ds_swizzle_b32", swizzle, Class::lds_read, "x=x", kTakesOffset},
    {"ds_nop", nop, Class::other, "="},
};

}  // namespace

std::span<const Opcode> lds_opcodes() { return kOpcodes; }

}  // namespace emu
