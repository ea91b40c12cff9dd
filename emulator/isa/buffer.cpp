// Buffer loads and stores through descriptors, to registers or straight to LDS; cache control.
#include <algorithm>

#include "isa/memory.h"

namespace emu {

// --- descriptors ---------------------------------------------------------------------------------------------------
// Address = base + soffset + (linear: index * stride + offset). Fields and range checks differ by family: "Buffer
// Addressing" and "Range Checking" of the CDNA3, RDNA3 and RDNA4 ISA documents. Where those are silent or disagree
// with the hardware (soffset counts in byte checks, dwords are checked one by one, ADD_TID without index is not
// checked), this follows what ROCm's emulator records as measured on gfx950, gfx11 and gfx12.
void BufferAccess::read_gfx9(u32 word1, u32 word3, bool idxen) {
  const bool swizzle = word1 >> 31, add_tid = word3 >> 23 & 1;
  index_stride_ = 8u << (word3 >> 21 & 3);
  swizzled_ = swizzle && add_tid;
  check_ = add_tid && !idxen ? RangeCheck::none : idxen && stride_ ? RangeCheck::index : RangeCheck::bytes;
  if (add_tid && (swizzle || !idxen)) {
    stride_ |= (word3 >> 15 & 15) << 14;  // DATA_FORMAT has no other use then
    for_lanes(wave_, [&](int l) { index_.lane[l] += static_cast<u32>(l); });
  }
}

void BufferAccess::read_rdna(u32 word1, u32 word3, bool idxen) {
  const u32 swizzle = word1 >> 30, out_of_bounds = word3 >> 28 & 3;
  const bool add_tid = word3 >> 23 & 1;
  index_stride_ = 8u << (word3 >> 21 & 3);
  element_ = swizzle == 3 ? 16 : 4;
  swizzled_ = swizzle != 0 && (idxen || add_tid);
  if (add_tid && !idxen) {
    for_lanes(wave_, [&](int l) { index_.lane[l] = checked_index_.lane[l] = static_cast<u32>(l); });
  }
  switch (out_of_bounds) {
    case 0:
      check_ = RangeCheck::index_and_stride;
      break;
    case 1:
      check_ = RangeCheck::index;
      break;
    case 2:
      check_ = RangeCheck::not_empty;
      break;
    default:
      check_ = swizzled_ && stride_ ? RangeCheck::index_and_stride : RangeCheck::bytes;
  }
}

BufferAccess::BufferAccess(const Wave& wave, const Instruction& in, const Operand& vaddr, const Operand& rsrc,
                           const Operand& soffset)
    : wave_(wave) {
  const u32* word = &wave.sgpr[rsrc.reg];
  base_ = load64(word) & 0xffffffffffffull;
  stride_ = word[1] >> 16 & 0x3fff;
  records_ = word[2];
  soffset_ = scalar32(wave, soffset);
  static constexpr u32 kZeros[kLanes] = {};
  const u32* index = in.idxen ? wave.vgpr[vaddr.reg] : kZeros;
  const u32* offset = in.offen ? wave.vgpr[vaddr.reg + in.idxen] : kZeros;
  const u32 immediate = static_cast<u32>(in.offset);
  for_lanes(wave, [&](int l) {
    index_.lane[l] = checked_index_.lane[l] = index[l];
    offset_.lane[l] = offset[l] + immediate;
  });
  if (wave.target->is_rdna()) {
    read_rdna(word[1], word[3], in.idxen);
  } else {
    read_gfx9(word[1], word[3], in.idxen);
  }
}

// `begin` and `end` count from the lane's record, without soffset.
bool BufferAccess::inside(u32 index, u64 begin, u64 end) const {
  switch (check_) {
    case RangeCheck::none:
      return true;
    case RangeCheck::index:
      return index < records_;
    case RangeCheck::index_and_stride:
      return index < records_ && end <= stride_;
    case RangeCheck::not_empty:
      return records_ != 0;
    case RangeCheck::bytes:
      break;
  }
  return begin + soffset_ < records_ && end + soffset_ <= records_;
}

bool BufferAccess::is_plain(u64 active, u32 bytes) const {
  if (swizzled_) return false;
  u32 last_index = 0, last_offset = 0;
  if (active == wave_.full_mask) {
    for_lanes(wave_, [&](int l) {
      last_index = std::max(last_index, checked_index_.lane[l]);
      last_offset = std::max(last_offset, offset_.lane[l]);
    });
  } else {
    for_each_lane(active, [&](int l) {
      last_index = std::max(last_index, checked_index_.lane[l]);
      last_offset = std::max(last_offset, offset_.lane[l]);
    });
  }
  return inside(last_index, last_offset, static_cast<u64>(last_offset) + bytes);
}

void BufferAccess::addresses(AddressRow& out) const {
  const u64 base = base_ + soffset_, stride = stride_;
  for_lanes(wave_, [&](int l) { out.lane[l] = base + index_.lane[l] * stride + offset_.lane[l]; });
}

u64 BufferAccess::part(u64 active, u32 skip, u32 bytes, AddressRow& out) const {
  u64 lanes = 0;
  for_each_lane(active, [&](int l) {
    const u64 begin = static_cast<u64>(offset_.lane[l]) + skip;
    if (!inside(checked_index_.lane[l], begin, begin + bytes)) return;
    lanes |= 1ull << l;
    const u64 index = index_.lane[l];
    u64 place = index * stride_ + begin;
    if (swizzled_) {
      place = (index / index_stride_ * stride_ + begin / element_ * element_) * index_stride_ +
              index % index_stride_ * element_ + begin % element_;
    }
    out.lane[l] = base_ + soffset_ + place;
  });
  return lanes;
}

namespace {

template <class Data>
void buffer_load(Wave& w, const Instruction& in) {
  const BufferAccess access(w, in, in.operand[1], in.operand[2], in.operand[3]);
  const u64 active = w.exec();
  AddressRow address;
  auto at = [&](int l) { return memory_at(address.lane[l]); };
  if (access.is_plain(active, Data::kBytes)) {
    access.addresses(address);
    const u64 allowed = begin_global(w, in, address.lane, active, Data::kBytes, AccessKind::read);
    Data::load(w, in.operand[0], 0, active, allowed, at);
    return;
  }
  using Part = typename Data::Part;
  for (int d = 0; d < Data::kDwords; ++d) {
    const u64 lanes = access.part(active, 4 * static_cast<u32>(d), Part::kBytes, address);
    const u64 allowed = lanes ? begin_global(w, in, address.lane, lanes, Part::kBytes, AccessKind::read) : 0;
    Part::load(w, in.operand[0], d, active, allowed, at);
  }
}

template <class Data>
void buffer_store(Wave& w, const Instruction& in) {
  const BufferAccess access(w, in, in.operand[1], in.operand[2], in.operand[3]);
  const u64 active = w.exec();
  AddressRow address;
  auto at = [&](int l) { return memory_at(address.lane[l]); };
  if (access.is_plain(active, Data::kBytes)) {
    access.addresses(address);
    const u64 allowed = begin_global(w, in, address.lane, active, Data::kBytes, AccessKind::write);
    Data::store(w, in.operand[0], 0, allowed, at);
    return;
  }
  using Part = typename Data::Part;
  for (int d = 0; d < Data::kDwords; ++d) {
    const u64 lanes = access.part(active, 4 * static_cast<u32>(d), Part::kBytes, address);
    const u64 allowed = lanes ? begin_global(w, in, address.lane, lanes, Part::kBytes, AccessKind::write) : 0;
    Part::store(w, in.operand[0], d, allowed, at);
  }
}

// `buffer_load_dword vaddr, rsrc, soffset ... lds`. Dwords out of range arrive in LDS as 0.
template <class Data>
void buffer_load_to_lds(Wave& w, const Instruction& in) {
  const BufferAccess access(w, in, in.operand[0], in.operand[1], in.operand[2]);
  const u64 active = w.exec();
  AddressRow address;
  if (access.is_plain(active, Data::kBytes)) {
    access.addresses(address);
    const u64 allowed = begin_global(w, in, address.lane, active, Data::kBytes, AccessKind::read);
    write_to_lds<Data>(w, in, active, allowed, [&](int l) { return memory_at(address.lane[l]); });
    return;
  }
  using Part = typename Data::Part;
  u8 data[kLanes][16] = {};
  for (u32 d = 0; d < Data::kDwords; ++d) {
    const u64 lanes = access.part(active, 4 * d, Part::kBytes, address);
    const u64 allowed = lanes ? begin_global(w, in, address.lane, lanes, Part::kBytes, AccessKind::read) : 0;
    for_each_lane(allowed, [&](int l) { std::memcpy(data[l] + 4 * d, memory_at(address.lane[l]), Part::kBytes); });
  }
  write_to_lds<Data>(w, in, active, active, [&](int l) { return data[l]; });
}
template <class Data>
std::string bind_load(Instruction& in, const Target&) {
  if (in.to_lds) {
    in.dest_count = 0;
    in.execute = buffer_load_to_lds<Data>;
  }
  return in.operand_count == 4 - in.to_lds ? "" : "unexpected number of operands";
}

void nop(Wave&, const Instruction&) {}

// --- the table -----------------------------------------------------------------------------------------------------
constexpr u32 kModifiers = kTakesOffset | kTakesBuffer | kTakesCache;
template <class Data>
constexpr Opcode load_row(const char* name) {
  return {name, buffer_load<Data>, Class::vmem_load, "x=uuu", kModifiers};
}
// These have a form that writes LDS.
template <class Data>
constexpr Opcode any_load_row(const char* name) {
  return {name, buffer_load<Data>, Class::vmem_load, "x=uuu", kModifiers | kTakesLds, 0, 4, bind_load<Data>};
}
template <class Data>
constexpr Opcode store_row(const char* name) {
  return {name, buffer_store<Data>, Class::vmem_store, "=xuuu", kModifiers};
}
constexpr Opcode nop_row(const char* name) { return {name, nop, Class::other, "=", kTakesCache}; }

const Opcode kOpcodes[] = {
    any_load_row<Dwords<1>>("buffer_load_dword"),
    load_row<Dwords<2>>("buffer_load_dwordx2"),
    any_load_row<Dwords<3>>("buffer_load_dwordx3"),
    any_load_row<Dwords<4>>("buffer_load_dwordx4"),
    any_load_row<Small<u8>>("buffer_load_ubyte"),
    any_load_row<Small<i8>>("buffer_load_sbyte"),
    any_load_row<Small<u16>>("buffer_load_ushort"),
    any_load_row<Small<i16>>("buffer_load_sshort"),
    load_row<Small<u8, Half::low>>("buffer_load_ubyte_d16"),
    load_row<Small<u8, Half::high>>("buffer_load_ubyte_d16_hi"),
    load_row<Small<i8, Half::low>>("buffer_load_sbyte_d16"),
    load_row<Small<i8, Half::high>>("buffer_load_sbyte_d16_hi"),
    load_row<Small<u16, Half::low>>("buffer_load_short_d16"),
    load_row<Small<u16, Half::high>>("buffer_load_short_d16_hi"),
    store_row<Small<u8>>("buffer_store_byte"),
    store_row<Small<u8, Half::high>>("buffer_store_byte_d16_hi"),
    store_row<Small<u16>>("buffer_store_short"),
    store_row<Small<u16, Half::high>>("buffer_store_short_d16_hi"),
    store_row<Dwords<1>>("buffer_store_dword"),
    store_row<Dwords<2>>("buffer_store_dwordx2"),
    store_row<Dwords<3>>("buffer_store_dwordx3"),
    store_row<Dwords<4>>("buffer_store_dwordx4"),

    any_load_row<Dwords<1>>("buffer_load_b32"),
    load_row<Dwords<2>>("buffer_load_b64"),
    load_row<Dwords<3>>("buffer_load_b96"),
    load_row<Dwords<4>>("buffer_load_b128"),
    any_load_row<Small<u8>>("buffer_load_u8"),
    any_load_row<Small<i8>>("buffer_load_i8"),
    any_load_row<Small<u16>>("buffer_load_u16"),
    any_load_row<Small<i16>>("buffer_load_i16"),
    load_row<Small<u8, Half::low>>("buffer_load_d16_u8"),
    load_row<Small<u8, Half::high>>("buffer_load_d16_hi_u8"),
    load_row<Small<i8, Half::low>>("buffer_load_d16_i8"),
    load_row<Small<i8, Half::high>>("buffer_load_d16_hi_i8"),
    load_row<Small<u16, Half::low>>("buffer_load_d16_b16"),
    load_row<Small<u16, Half::high>>("buffer_load_d16_hi_b16"),
    store_row<Small<u8>>("buffer_store_b8"),
    store_row<Small<u8, Half::high>>("buffer_store_d16_hi_b8"),
    store_row<Small<u16>>("buffer_store_b16"),
    store_row<Small<u16, Half::high>>("buffer_store_d16_hi_b16"),
    store_row<Dwords<1>>("buffer_store_b32"),
    store_row<Dwords<2>>("buffer_store_b64"),
    store_row<Dwords<3>>("buffer_store_b96"),
    store_row<Dwords<4>>("buffer_store_b128"),

    // Caches are not modelled.
    nop_row("buffer_inv"),
    nop_row("buffer_invl2"),
    nop_row("buffer_wbl2"),
    nop_row("buffer_wbinvl1"),
    nop_row("buffer_wbinvl1_vol"),
    nop_row("buffer_gl0_inv"),
    nop_row("buffer_gl1_inv"),
    nop_row("global_inv"),
    nop_row("global_wb"),
    nop_row("global_wbinv"),
};

}  // namespace

std::span<const Opcode> buffer_opcodes() { return kOpcodes; }

}  // namespace emu
