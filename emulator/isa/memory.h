// What the memory instructions share: moving bytes between registers and the addresses of the lanes.
#pragma once

#include "core/access.h"
#include "core/opcode.h"
#include "isa/lanes.h"

namespace emu {

struct alignas(64) AddressRow {
  u64 lane[kLanes];
};

template <class F>
inline void for_each_lane(u64 lanes, F f) {
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

template <class T>
inline T load_as(const u8* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
inline void store_as(u8* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// 32 or 64 bits of one lane.
template <class T>
inline T lane_value(const Wave& w, u32 reg, int l) {
  if constexpr (sizeof(T) == 8) return static_cast<T>(w.vgpr[reg][l] | static_cast<u64>(w.vgpr[reg + 1][l]) << 32);
  return static_cast<T>(w.vgpr[reg][l]);
}
template <class T>
inline void set_lane_value(Wave& w, u32 reg, int l, T value) {
  w.vgpr[reg][l] = static_cast<u32>(value);
  if constexpr (sizeof(T) == 8) w.vgpr[reg + 1][l] = static_cast<u32>(static_cast<u64>(value) >> 32);
}

// --- rows <-> memory, every lane active ----------------------------------------------------------------------------
using Lanes4 [[gnu::vector_size(16)]] = u32;
using Lanes8 [[gnu::vector_size(32)]] = u32;

// Four rows of eight lanes <-> four vectors that hold lanes i and i + 4: a 4x4 transpose in each half, its own inverse.
inline void transpose(Lanes8 (&v)[4]) {
  const Lanes8 a = __builtin_shufflevector(v[0], v[1], 0, 8, 1, 9, 4, 12, 5, 13);
  const Lanes8 b = __builtin_shufflevector(v[0], v[1], 2, 10, 3, 11, 6, 14, 7, 15);
  const Lanes8 c = __builtin_shufflevector(v[2], v[3], 0, 8, 1, 9, 4, 12, 5, 13);
  const Lanes8 d = __builtin_shufflevector(v[2], v[3], 2, 10, 3, 11, 6, 14, 7, 15);
  v[0] = __builtin_shufflevector(a, c, 0, 1, 8, 9, 4, 5, 12, 13);
  v[1] = __builtin_shufflevector(a, c, 2, 3, 10, 11, 6, 7, 14, 15);
  v[2] = __builtin_shufflevector(b, d, 0, 1, 8, 9, 4, 5, 12, 13);
  v[3] = __builtin_shufflevector(b, d, 2, 3, 10, 11, 6, 7, 14, 15);
}
// 12 bytes must not be read as 16: they may be the last of their allocation.
template <int N>
inline Lanes4 load_vector(const u8* from) {
  Lanes4 v{};
  std::memcpy(&v, from, 4 * N);
  return v;
}
template <int N, class At>
inline void gather_rows(u32 (*rows)[kLanes], int lanes, At at) {
  for (int l = 0; l < lanes; l += 8) {
    if constexpr (N == 1) {
      for (int i = l; i < l + 8; ++i) rows[0][i] = load_as<u32>(at(i));
    } else if constexpr (N == 2) {
      Lanes8 pairs[2];
      for (int half = 0; half < 2; ++half) {
        u64 lane[4];
        for (int i = 0; i < 4; ++i) lane[i] = load_as<u64>(at(l + 4 * half + i));
        std::memcpy(&pairs[half], lane, sizeof lane);
      }
      const Lanes8 low = __builtin_shufflevector(pairs[0], pairs[1], 0, 2, 4, 6, 8, 10, 12, 14);
      const Lanes8 high = __builtin_shufflevector(pairs[0], pairs[1], 1, 3, 5, 7, 9, 11, 13, 15);
      std::memcpy(&rows[0][l], &low, 32);
      std::memcpy(&rows[1][l], &high, 32);
    } else {
      Lanes8 v[4];
      for (int i = 0; i < 4; ++i) {
        v[i] =
            __builtin_shufflevector(load_vector<N>(at(l + i)), load_vector<N>(at(l + i + 4)), 0, 1, 2, 3, 4, 5, 6, 7);
      }
      transpose(v);
      for (int d = 0; d < N; ++d) std::memcpy(&rows[d][l], &v[d], 32);
    }
  }
}
// Lanes in order, so that of several lanes with one address the last one stays.
template <int N, class At>
inline void scatter_rows(const u32 (*rows)[kLanes], int lanes, At at) {
  for (int l = 0; l < lanes; l += 8) {
    if constexpr (N == 1) {
      for (int i = l; i < l + 8; ++i) store_as(at(i), rows[0][i]);
    } else if constexpr (N == 2) {
      for (int i = l; i < l + 8; ++i) store_as(at(i), rows[0][i] | static_cast<u64>(rows[1][i]) << 32);
    } else {
      Lanes8 v[4] = {};
      for (int d = 0; d < N; ++d) std::memcpy(&v[d], &rows[d][l], 32);
      transpose(v);
      for (int i = 0; i < 4; ++i) std::memcpy(at(l + i), &v[i], 4 * N);
      for (int i = 0; i < 4; ++i) std::memcpy(at(l + i + 4), reinterpret_cast<const char*>(&v[i]) + 16, 4 * N);
    }
  }
}

// --- shapes of data ------------------------------------------------------------------------------------------------
// Each knows how to move the data of one access. `active` lanes that are not in `allowed` load 0. `at(lane)` is where
// the lane's bytes are.
template <int N>
struct Dwords {
  static constexpr u32 kBytes = 4 * N;
  static constexpr int kDwords = N;  // that a buffer's range check looks at one by one
  using Part = Dwords<1>;

  static void copy(u8* to, const u8* from) { std::memcpy(to, from, kBytes); }
  template <class At>
  static void load(Wave& w, const Operand& o, int dword, u64 active, u64 allowed, At at) {
    u32(*rows)[kLanes] = &w.vgpr[o.reg + dword];
    if (allowed == w.full_mask) {
      gather_rows<N>(rows, w.lanes, at);
      return;
    }
    for_each_lane(allowed, [&](int l) {
      u32 data[N];
      std::memcpy(data, at(l), sizeof data);
      for (int d = 0; d < N; ++d) rows[d][l] = data[d];
    });
    for_each_lane(active & ~allowed, [&](int l) {
      for (int d = 0; d < N; ++d) rows[d][l] = 0;
    });
  }
  template <class At>
  static void store(const Wave& w, const Operand& o, int dword, u64 allowed, At at) {
    const u32(*rows)[kLanes] = &w.vgpr[o.reg + dword];
    if (allowed == w.full_mask) {
      scatter_rows<N>(rows, w.lanes, at);
      return;
    }
    for_each_lane(allowed, [&](int l) {
      u32 data[N];
      for (int d = 0; d < N; ++d) data[d] = rows[d][l];
      std::memcpy(at(l), data, sizeof data);
    });
  }
};

// 8 or 16 bits: into a whole register, extended as T says, or into one half of it (d16).
template <class T, Half H = Half::whole>
struct Small {
  static constexpr u32 kBytes = sizeof(T);
  static constexpr int kDwords = 1;
  using Part = Small;

  static u32 extended(T value) {
    if constexpr (H == Half::whole) return static_cast<u32>(static_cast<i32>(value));
    return static_cast<u16>(static_cast<i16>(value));
  }
  static void copy(u8* to, const u8* from) { store_as(to, extended(load_as<T>(from))); }
  template <class At>
  static void load(Wave& w, const Operand& o, int, u64 active, u64 allowed, At at) {
    u32* row = w.vgpr[o.reg];
    const bool high = H == Half::high || o.half == Half::high;
    // Register files with ECC write whole registers, so that d16 loads clear the other half there; all CDNA parts
    // have it (LLVM: GCNSubtarget::d16PreservesUnusedBits).
    const bool keeps = (H != Half::whole || o.half != Half::whole) && w.target->is_rdna();
    const u32 kept = !keeps ? 0 : high ? 0xffffu : 0xffff0000u;
    for_each_lane(active, [&](int l) {
      const u32 value = allowed >> l & 1 ? extended(load_as<T>(at(l))) : 0;
      row[l] = (row[l] & kept) | (high ? value << 16 : value);
    });
  }
  template <class At>
  static void store(const Wave& w, const Operand& o, int, u64 allowed, At at) {
    const u32* row = w.vgpr[o.reg];
    const int shift = H == Half::high || o.half == Half::high ? 16 : 0;
    for_each_lane(allowed, [&](int l) { store_as(at(l), static_cast<T>(row[l] >> shift)); });
  }
};

// --- addresses -----------------------------------------------------------------------------------------------------
inline void lds_addresses(const Wave& w, const Operand& base, u32 offset, u32* out) {
  const u32* row = w.vgpr[base.reg];
  for_lanes(w, [&](int l) { out[l] = row[l] + offset; });
}
// Where instructions that take their LDS base from M0 start. M0[15:0] unless LDS is larger than that reaches.
inline u32 lds_base_in_m0(const Wave& w) { return w.sgpr[kM0] & (w.target->lds_bytes > 65536 ? 0x3ffffu : 0xffffu); }

// `vaddr, off` is 64 bits in a register pair; `vaddr, saddr` a scalar base and 32 bits, unsigned.
inline void global_addresses(const Wave& w, const Operand& vaddr, const Operand& saddr, i64 offset, AddressRow& out) {
  const u32* low = w.vgpr[vaddr.reg];
  if (saddr.is_sgpr()) {
    const u64 base = scalar64(w, saddr) + static_cast<u64>(offset);
    for_lanes(w, [&](int l) { out.lane[l] = base + low[l]; });
  } else {
    const u32* high = w.vgpr[vaddr.reg + 1];
    for_lanes(w, [&](int l) { out.lane[l] = (low[l] | static_cast<u64>(high[l]) << 32) + static_cast<u64>(offset); });
  }
}

// What a load straight to LDS writes: lane l's dwords at M0 + offset + l * size, inactive lanes left out. Bytes and
// halves are extended to a dword; lanes that may not read write 0 (CDNA3 ISA 9.1.9, "Memory Buffer Load to LDS").
template <class Data, class At>
inline void write_to_lds(Wave& w, const Instruction& in, u64 active, u64 allowed, At at) {
  constexpr u32 kSize = Data::kBytes < 4 ? 4 : Data::kBytes;
  Row to;
  const u32 base = lds_base_in_m0(w) + static_cast<u32>(in.offset);
  for_lanes(w, [&](int l) { to.lane[l] = base + kSize * static_cast<u32>(l); });
  const u64 writable = begin_lds_from_memory(w, in, to.lane, active, kSize);
  u8* lds = w.group->lds.data();
  if ((writable & allowed) == w.full_mask) {
    for (int l = 0; l < w.lanes; ++l) Data::copy(lds + to.lane[l], at(l));
    return;
  }
  for_each_lane(writable, [&](int l) {
    u8* lane = lds + to.lane[l];
    if (allowed >> l & 1) {
      Data::copy(lane, at(l));
    } else {
      std::memset(lane, 0, kSize);
    }
  });
}

// Lanes whose bytes may be in memory, LDS or scratch. Scratch is not contiguous, so its lanes work on a copy.
class FlatAccess {
 public:
  static constexpr u32 kMostBytes = 16;
  // For flat instructions.
  FlatAccess(Wave& wave, const Instruction& in, const AddressRow& address, u64 active, u32 bytes, AccessKind kind);
  // For scratch instructions.
  FlatAccess(Wave& wave, const Instruction& in, const u32* offset, u64 active, u32 bytes, AccessKind kind);
  u64 allowed() const { return allowed_; }
  u8* operator()(int lane) { return pointer_[lane]; }
  // After the lanes of scratch have been written through the pointers.
  void write_back();

 private:
  void add_scratch(const Instruction& in, const u32* offset, u64 active, AccessKind kind);
  Wave& wave_;
  u32 bytes_;
  u64 allowed_ = 0, scratch_lanes_ = 0;
  u32 scratch_offset_[kLanes];
  u8* pointer_[kLanes];
  alignas(16) u8 copy_[kLanes][kMostBytes];
};
// Any lane whose address is in the window of LDS or of scratch?
bool in_apertures(const Wave& wave, const AddressRow& address, u64 active);

// --- buffers -------------------------------------------------------------------------------------------------------
// The addresses of one buffer instruction: descriptor, range check and swizzle.
class BufferAccess {
 public:
  BufferAccess(const Wave& wave, const Instruction& in, const Operand& vaddr, const Operand& rsrc,
               const Operand& soffset);
  // Not swizzled and every active lane wholly in range, the usual case: addresses() then serves them all.
  bool is_plain(u64 active, u32 bytes) const;
  void addresses(AddressRow& out) const;
  // Addresses and in-range lanes of `bytes` bytes that start `skip` bytes into each lane's access.
  u64 part(u64 active, u32 skip, u32 bytes, AddressRow& out) const;

 private:
  enum class RangeCheck : u8 { none, index, index_and_stride, not_empty, bytes };
  void read_gfx9(u32 word1, u32 word3, bool idxen);
  void read_rdna(u32 word1, u32 word3, bool idxen);
  bool inside(u32 index, u64 begin, u64 end) const;

  const Wave& wave_;
  u64 base_;
  u32 records_, stride_, soffset_;
  u32 index_stride_ = 1, element_ = 4;  // of the swizzle
  bool swizzled_ = false;
  RangeCheck check_ = RangeCheck::bytes;
  Row offset_;         // VGPR + immediate
  Row index_;          // as the address takes it
  Row checked_index_;  // as the range check takes it
};

}  // namespace emu
