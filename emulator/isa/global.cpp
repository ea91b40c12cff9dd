// Global, flat and scratch loads and stores, loads straight to LDS, and transposing loads.
#include "core/memory_map.h"
#include "isa/memory.h"

namespace emu {

// --- flat and scratch addresses ------------------------------------------------------------------------------------
bool in_apertures(const Wave& wave, const AddressRow& address, u64 active) {
  constexpr u32 kShared = kSharedAperture >> 32, kPrivate = kPrivateAperture >> 32;
  u32 any = 0;
  for_lanes(wave, [&](int l) {
    const u32 high = static_cast<u32>(address.lane[l] >> 32);
    any |= (high == kShared || high == kPrivate) && (active >> l & 1);
  });
  return any != 0;
}

FlatAccess::FlatAccess(Wave& wave, const Instruction& in, const AddressRow& address, u64 active, u32 bytes,
                       AccessKind kind)
    : wave_(wave), bytes_(bytes) {
  u64 shared = 0, scratch = 0;
  Row low;
  for_each_lane(active, [&](int l) {
    const u64 window = address.lane[l] >> 32 << 32;
    low.lane[l] = static_cast<u32>(address.lane[l]);
    if (window == kSharedAperture) shared |= 1ull << l;
    if (window == kPrivateAperture) scratch |= 1ull << l;
  });
  if (const u64 memory = active & ~shared & ~scratch) {
    const u64 allowed = begin_global(wave, in, address.lane, memory, bytes, kind);
    for_each_lane(allowed, [&](int l) { pointer_[l] = memory_at(address.lane[l]); });
    allowed_ |= allowed;
  }
  if (shared) {
    const u64 allowed = begin_lds(wave, in, low.lane, shared, bytes, kind);
    for_each_lane(allowed, [&](int l) { pointer_[l] = wave.group->lds.data() + low.lane[l]; });
    allowed_ |= allowed;
  }
  if (scratch) add_scratch(in, low.lane, scratch, kind);
}

FlatAccess::FlatAccess(Wave& wave, const Instruction& in, const u32* offset, u64 active, u32 bytes, AccessKind kind)
    : wave_(wave), bytes_(bytes) {
  add_scratch(in, offset, active, kind);
}

void FlatAccess::add_scratch(const Instruction& in, const u32* offset, u64 active, AccessKind kind) {
  scratch_lanes_ = begin_scratch(wave_, in, offset, active, bytes_, kind);
  for_each_lane(scratch_lanes_, [&](int l) {
    scratch_offset_[l] = offset[l];
    pointer_[l] = copy_[l];
    for (u32 b = 0; b < bytes_; ++b) copy_[l][b] = *scratch_byte(wave_, static_cast<u32>(l), offset[l] + b);
  });
  allowed_ |= scratch_lanes_;
}

void FlatAccess::write_back() {
  for_each_lane(scratch_lanes_, [&](int l) {
    for (u32 b = 0; b < bytes_; ++b) *scratch_byte(wave_, static_cast<u32>(l), scratch_offset_[l] + b) = copy_[l][b];
  });
}

namespace {

// --- global --------------------------------------------------------------------------------------------------------
template <class Data>
void global_load_at(Wave& w, const Instruction& in, const AddressRow& address) {
  const u64 active = w.exec();
  const u64 allowed = begin_global(w, in, address.lane, active, Data::kBytes, AccessKind::read);
  Data::load(w, in.operand[0], 0, active, allowed, [&](int l) { return memory_at(address.lane[l]); });
}
template <class Data>
void global_load(Wave& w, const Instruction& in) {
  AddressRow address;
  global_addresses(w, in.operand[1], in.operand[2], in.offset, address);
  global_load_at<Data>(w, in, address);
}
template <class Data>
void global_store_at(Wave& w, const Instruction& in, const AddressRow& address, const Operand& data) {
  const u64 allowed = begin_global(w, in, address.lane, w.exec(), Data::kBytes, AccessKind::write);
  Data::store(w, data, 0, allowed, [&](int l) { return memory_at(address.lane[l]); });
}
template <class Data>
void global_store(Wave& w, const Instruction& in) {
  AddressRow address;
  global_addresses(w, in.operand[0], in.operand[2], in.offset, address);
  global_store_at<Data>(w, in, address, in.operand[1]);
}

// Address: scalar base + offset + 4 * lane.
void addtid_addresses(const Wave& w, const Operand& saddr, i64 offset, AddressRow& address) {
  const u64 base = (saddr.is_sgpr() ? scalar64(w, saddr) : 0) + static_cast<u64>(offset);
  for_lanes(w, [&](int l) { address.lane[l] = base + 4 * static_cast<u64>(l); });
}
void global_load_addtid(Wave& w, const Instruction& in) {
  AddressRow address;
  addtid_addresses(w, in.operand[1], in.offset, address);
  global_load_at<Dwords<1>>(w, in, address);
}
void global_store_addtid(Wave& w, const Instruction& in) {
  AddressRow address;
  addtid_addresses(w, in.operand[1], in.offset, address);
  global_store_at<Dwords<1>>(w, in, address, in.operand[0]);
}

// --- flat ----------------------------------------------------------------------------------------------------------
template <class Data>
void flat_load(Wave& w, const Instruction& in) {
  AddressRow address;
  global_addresses(w, in.operand[1], in.operand[2], in.offset, address);
  const u64 active = w.exec();
  if (!in_apertures(w, address, active)) return global_load_at<Data>(w, in, address);
  FlatAccess access(w, in, address, active, Data::kBytes, AccessKind::read);
  Data::load(w, in.operand[0], 0, active, access.allowed(), [&](int l) { return access(l); });
}
template <class Data>
void flat_store(Wave& w, const Instruction& in) {
  AddressRow address;
  global_addresses(w, in.operand[0], in.operand[2], in.offset, address);
  const u64 active = w.exec();
  if (!in_apertures(w, address, active)) return global_store_at<Data>(w, in, address, in.operand[1]);
  FlatAccess access(w, in, address, active, Data::kBytes, AccessKind::write);
  Data::store(w, in.operand[1], 0, access.allowed(), [&](int l) { return access(l); });
  access.write_back();
}

// --- scratch -------------------------------------------------------------------------------------------------------
// Offset in the lane's private memory: VGPR + SGPR + immediate, the first two optional. Says whether it is the same
// for all lanes.
bool scratch_offsets(const Wave& w, const Operand& vaddr, const Operand& saddr, i32 offset, u32* out) {
  const u32 base = (saddr.is_sgpr() ? scalar32(w, saddr) : 0) + static_cast<u32>(offset);
  if (vaddr.is_vgpr()) {
    const u32* row = w.vgpr[vaddr.reg];
    for_lanes(w, [&](int l) { out[l] = row[l] + base; });
    return false;
  }
  for_lanes(w, [&](int l) { out[l] = base; });
  return true;
}
// Dword `k` of all lanes is one row of scratch memory: spills are row copies.
template <class Data>
bool is_row_copy(const Wave& w, bool uniform, u32 offset, u64 allowed) {
  return uniform && Data::kBytes >= 4 && offset % 4 == 0 && allowed == w.full_mask;
}
template <class Data>
void scratch_load(Wave& w, const Instruction& in) {
  Row offset;
  const bool uniform = scratch_offsets(w, in.operand[1], in.operand[2], in.offset, offset.lane);
  const u64 active = w.exec();
  if (is_row_copy<Data>(w, uniform, offset.lane[0], active)) {
    const u64 allowed = begin_scratch(w, in, offset.lane, active, Data::kBytes, AccessKind::read);
    const size_t row_bytes = 4 * static_cast<size_t>(w.lanes);
    for (int d = 0; d < Data::kDwords; ++d) {
      u32* to = w.vgpr[in.operand[0].reg + d];
      if (allowed) {
        std::memcpy(to, scratch_byte(w, 0, offset.lane[0] + 4 * static_cast<u32>(d)), row_bytes);
      } else {
        std::memset(to, 0, row_bytes);
      }
    }
    return;
  }
  FlatAccess access(w, in, offset.lane, active, Data::kBytes, AccessKind::read);
  Data::load(w, in.operand[0], 0, active, access.allowed(), [&](int l) { return access(l); });
}
template <class Data>
void scratch_store(Wave& w, const Instruction& in) {
  Row offset;
  const bool uniform = scratch_offsets(w, in.operand[0], in.operand[2], in.offset, offset.lane);
  const u64 active = w.exec();
  if (is_row_copy<Data>(w, uniform, offset.lane[0], active)) {
    if (!begin_scratch(w, in, offset.lane, active, Data::kBytes, AccessKind::write)) return;
    for (int d = 0; d < Data::kDwords; ++d) {
      std::memcpy(scratch_byte(w, 0, offset.lane[0] + 4 * static_cast<u32>(d)), w.vgpr[in.operand[1].reg + d],
                  4 * static_cast<size_t>(w.lanes));
    }
    return;
  }
  FlatAccess access(w, in, offset.lane, active, Data::kBytes, AccessKind::write);
  Data::store(w, in.operand[1], 0, access.allowed(), [&](int l) { return access(l); });
  access.write_back();
}

// --- straight to LDS -----------------------------------------------------------------------------------------------
template <class Data>
void global_load_to_lds(Wave& w, const Instruction& in) {
  AddressRow address;
  global_addresses(w, in.operand[0], in.operand[1], in.offset, address);
  const u64 active = w.exec();
  const u64 allowed = begin_global(w, in, address.lane, active, Data::kBytes, AccessKind::read);
  write_to_lds<Data>(w, in, active, allowed, [&](int l) { return memory_at(address.lane[l]); });
}
template <class Data>
void scratch_load_to_lds(Wave& w, const Instruction& in) {
  Row offset;
  scratch_offsets(w, in.operand[0], in.operand[1], in.offset, offset.lane);
  const u64 active = w.exec();
  FlatAccess access(w, in, offset.lane, active, Data::kBytes, AccessKind::read);
  write_to_lds<Data>(w, in, active, access.allowed(), [&](int l) { return access(l); });
}
std::string mark_to_lds(Instruction& in, const Target&) {
  in.to_lds = true;
  return "";
}

// --- transposing loads of gfx12 ------------------------------------------------------------------------------------
// Each lane reads 8 elements and receives one element of each of 8 lanes. RDNA4 ISA 11.6.2 gives the purpose, not the
// lanes; these were measured on gfx1201 by others: the 16-bit form by Tessera (8x8 transposes in groups of 8 lanes),
// the 8-bit form by rdna4_fp8_gemm (its contract for global_load_tr_b64), and ROCm's emulator has the same maps.
template <class T>
int transpose_source(int lane, int element) {
  if constexpr (sizeof(T) == 2) return (lane & ~7) + element;
  return (lane & ~15) + 8 * (element / 4) + 4 * (lane / 8 % 2) + element % 4;
}
template <class T>
void global_load_transposed(Wave& w, const Instruction& in) {
  constexpr int kDwords = 8 * sizeof(T) / 4;
  AddressRow address;
  global_addresses(w, in.operand[1], in.operand[2], in.offset, address);
  const u64 active = w.exec();
  const u64 allowed = begin_global(w, in, address.lane, active, 8 * sizeof(T), AccessKind::read);
  T element[kLanes][8] = {};
  for_each_lane(allowed, [&](int l) { std::memcpy(element[l], memory_at(address.lane[l]), sizeof element[l]); });
  for_each_lane(active, [&](int l) {
    T result[8];
    for (int e = 0; e < 8; ++e) result[e] = element[transpose_source<T>(l, e)][l % 8];
    u32 dwords[kDwords];
    std::memcpy(dwords, result, sizeof result);
    for (int d = 0; d < kDwords; ++d) w.vgpr[in.operand[0].reg + d][l] = dwords[d];
  });
}

// --- the table -----------------------------------------------------------------------------------------------------
constexpr u32 kModifiers = kTakesOffset | kTakesCache;
constexpr Opcode load_row(const char* name, Handler handler) {
  return {name, handler, Class::vmem_load, "x=uu", kModifiers};
}
constexpr Opcode store_row(const char* name, Handler handler) {
  return {name, handler, Class::vmem_store, "=uxu", kModifiers};
}
constexpr Opcode to_lds_row(const char* name, Handler handler) {
  return {name, handler, Class::vmem_load, "=uu", kModifiers, 0, 4, mark_to_lds};
}
#define LOADS(name, ...)                                                                                        \
  load_row("global_load_" name, global_load<__VA_ARGS__>), load_row("flat_load_" name, flat_load<__VA_ARGS__>), \
      load_row("scratch_load_" name, scratch_load<__VA_ARGS__>)
#define STORES(name, ...)                                                                                             \
  store_row("global_store_" name, global_store<__VA_ARGS__>), store_row("flat_store_" name, flat_store<__VA_ARGS__>), \
      store_row("scratch_store_" name, scratch_store<__VA_ARGS__>)

const Opcode kOpcodes[] = {
    LOADS("dword", Dwords<1>),
    LOADS("dwordx2", Dwords<2>),
    LOADS("dwordx3", Dwords<3>),
    LOADS("dwordx4", Dwords<4>),
    LOADS("ubyte", Small<u8>),
    LOADS("sbyte", Small<i8>),
    LOADS("ushort", Small<u16>),
    LOADS("sshort", Small<i16>),
    LOADS("ubyte_d16", Small<u8, Half::low>),
    LOADS("ubyte_d16_hi", Small<u8, Half::high>),
    LOADS("sbyte_d16", Small<i8, Half::low>),
    LOADS("sbyte_d16_hi", Small<i8, Half::high>),
    LOADS("short_d16", Small<u16, Half::low>),
    LOADS("short_d16_hi", Small<u16, Half::high>),
    STORES("byte", Small<u8>),
    STORES("byte_d16_hi", Small<u8, Half::high>),
    STORES("short", Small<u16>),
    STORES("short_d16_hi", Small<u16, Half::high>),
    STORES("dword", Dwords<1>),
    STORES("dwordx2", Dwords<2>),
    STORES("dwordx3", Dwords<3>),
    STORES("dwordx4", Dwords<4>),

    LOADS("b32", Dwords<1>),
    LOADS("b64", Dwords<2>),
    LOADS("b96", Dwords<3>),
    LOADS("b128", Dwords<4>),
    LOADS("u8", Small<u8>),
    LOADS("i8", Small<i8>),
    LOADS("u16", Small<u16>),
    LOADS("i16", Small<i16>),
    LOADS("d16_u8", Small<u8, Half::low>),
    LOADS("d16_hi_u8", Small<u8, Half::high>),
    LOADS("d16_i8", Small<i8, Half::low>),
    LOADS("d16_hi_i8", Small<i8, Half::high>),
    LOADS("d16_b16", Small<u16, Half::low>),
    LOADS("d16_hi_b16", Small<u16, Half::high>),
    STORES("b8", Small<u8>),
    STORES("d16_hi_b8", Small<u8, Half::high>),
    STORES("b16", Small<u16>),
    STORES("d16_hi_b16", Small<u16, Half::high>),
    STORES("b32", Dwords<1>),
    STORES("b64", Dwords<2>),
    STORES("b96", Dwords<3>),
    STORES("b128", Dwords<4>),

    load_row("global_load_addtid_b32", global_load_addtid),
    store_row("global_store_addtid_b32", global_store_addtid),
    load_row("global_load_tr_b128", global_load_transposed<u16>),
    load_row("global_load_tr_b64", global_load_transposed<u8>),

    to_lds_row("global_load_lds_ubyte", global_load_to_lds<Small<u8>>),
    to_lds_row("global_load_lds_sbyte", global_load_to_lds<Small<i8>>),
    to_lds_row("global_load_lds_ushort", global_load_to_lds<Small<u16>>),
    to_lds_row("global_load_lds_sshort", global_load_to_lds<Small<i16>>),
    to_lds_row("global_load_lds_dword", global_load_to_lds<Dwords<1>>),
    to_lds_row("global_load_lds_dwordx3", global_load_to_lds<Dwords<3>>),
    to_lds_row("global_load_lds_dwordx4", global_load_to_lds<Dwords<4>>),
    to_lds_row("scratch_load_lds_ubyte", scratch_load_to_lds<Small<u8>>),
    to_lds_row("scratch_load_lds_sbyte", scratch_load_to_lds<Small<i8>>),
    to_lds_row("scratch_load_lds_ushort", scratch_load_to_lds<Small<u16>>),
    to_lds_row("scratch_load_lds_sshort", scratch_load_to_lds<Small<i16>>),
    to_lds_row("scratch_load_lds_dword", scratch_load_to_lds<Dwords<1>>),
};

}  // namespace

std::span<const Opcode> global_opcodes() { return kOpcodes; }

}  // namespace emu
