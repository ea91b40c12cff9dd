// Vector instructions on bit fields and on the bytes of a register.
#include <vector>

#include "isa/masks.h"
#include "isa/vector_int_op.h"

namespace emu {
namespace {

// --- bits
// --------------------------------------------------------------------------------------------------------------
constexpr auto bfe_u32 = [](u32 a, u32 offset, u32 width) { return (a >> (offset & 31)) & ((1u << (width & 31)) - 1); };
constexpr auto bfe_i32 = [](u32 a, u32 offset, u32 width) {
  width &= 31;
  const u32 above = (32 - width) & 31;
  const u32 field = static_cast<u32>(static_cast<i32>(a) >> (offset & 31));
  return width ? static_cast<u32>(static_cast<i32>(field << above) >> above) : 0;
};
constexpr auto bfi = [](u32 select, u32 a, u32 b) { return (select & a) | (~select & b); };
constexpr auto bfm = [](u32 width, u32 offset) { return ((1u << (width & 31)) - 1) << (offset & 31); };
constexpr auto reverse = [](u32 a) {
  a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
  a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
  a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
  a = (a >> 8 & 0x00ff00ff) | (a & 0x00ff00ff) << 8;
  return a >> 16 | a << 16;
};
constexpr u32 zeros_above(u32 a) {  // 32 for 0
  a |= a >> 1;
  a |= a >> 2;
  a |= a >> 4;
  a |= a >> 8;
  a |= a >> 16;
  return count_ones(~a);
}
constexpr auto leading_zeros = [](u32 a) { return a ? zeros_above(a) : ~0u; };
constexpr auto trailing_zeros = [](u32 a) { return a ? count_ones(~a & (a - 1)) : ~0u; };
constexpr auto leading_signs = [](u32 a) { return leading_zeros(a ^ static_cast<u32>(static_cast<i32>(a) >> 31)); };

// The last source of these is 16 bits wide since gfx11, and op_sel may choose its upper half.
template <auto F>
void align(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  const u32* n = source16(w, in, 2, c, mask);
  for_lanes(w, [&](int l) { r.lane[l] = F(x[l], y[l], n[l]); });
  write32(w, in, r, mask);
}
// {high, low} shifted right by 0..31. Two steps to the left: 32 would be undefined.
constexpr u32 funnel(u32 high, u32 low, u32 n) { return low >> n | (high << (31 - n)) << 1; }
constexpr auto align_bit = [](u32 a, u32 b, u32 n) { return funnel(a, b, n & 31); };
constexpr auto align_byte = [](u32 a, u32 b, u32 n) { return funnel(a, b, 8 * (n & 3)); };

// Any function of three bits: bit 4a + 2b + c of the table.
struct TruthTable {
  u32 t[8];
  explicit TruthTable(u32 table) {
    for (int i = 0; i < 8; ++i) t[i] = table >> i & 1 ? ~0u : 0;
  }
  u32 operator()(u32 a, u32 b, u32 c) const {
    const u32 b0 = bfi(b, bfi(c, t[3], t[2]), bfi(c, t[1], t[0]));
    const u32 b1 = bfi(b, bfi(c, t[7], t[6]), bfi(c, t[5], t[4]));
    return bfi(a, b1, b0);
  }
};
void bitop3_b32(Wave& w, const Instruction& in) {
  const TruthTable f(in.bitop3);
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  const u32* z = source32(w, in, 2, c, mask);
  for_lanes(w, [&](int l) { r.lane[l] = f(x[l], y[l], z[l]); });
  write32(w, in, r, mask);
}
void bitop3_b16(Wave& w, const Instruction& in) {
  const TruthTable f(in.bitop3);
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  const u32* y = source16(w, in, 1, b, mask);
  const u32* z = source16(w, in, 2, c, mask);
  for_lanes(w, [&](int l) { r.lane[l] = f(x[l], y[l], z[l]) & 0xffff; });
  write16(w, in, r, mask);
}

// --- bytes
// -------------------------------------------------------------------------------------------------------------
constexpr u32 byte(u32 a, int i) { return a >> (8 * i) & 255; }

// Selectors 0..7: bytes of {a, b}, b the lower. 8..11: the sign of bytes 1, 3, 5, 7. 12: 0. Above: 255.
constexpr u32 permuted_byte(u32 a, u32 b, u32 selector) {
  const u32 plain = (selector & 4 ? a : b) >> (8 * (selector & 3)) & 255;
  const u32 sign = (selector & 2 ? a : b) >> (selector & 1 ? 31 : 15) & 1 ? 255 : 0;
  return selector < 8 ? plain : selector < 12 ? sign : selector == 12 ? 0 : 255;
}
constexpr auto perm = [](u32 a, u32 b, u32 selectors) {
  return permuted_byte(a, b, byte(selectors, 0)) | permuted_byte(a, b, byte(selectors, 1)) << 8 |
         permuted_byte(a, b, byte(selectors, 2)) << 16 | permuted_byte(a, b, byte(selectors, 3)) << 24;
};
// Packing and unpacking use the same selectors, all of them plain bytes, for every lane.
void permute_bytes(Wave& w, const Instruction& in) {
  const Operand& selector = in.source(2);
  const u32 selectors = selector.is_vgpr() ? ~0u : scalar32(w, selector);
  if (selectors & 0xf8f8f8f8) return int3<perm>(w, in);
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  const u32* word[4];
  u32 shift[4];
  for (int i = 0; i < 4; ++i) {
    word[i] = byte(selectors, i) & 4 ? x : y;
    shift[i] = 8 * (byte(selectors, i) & 3);
  }
  for_lanes(w, [&](int l) {
    r.lane[l] = (word[0][l] >> shift[0] & 255) | (word[1][l] >> shift[1] & 255) << 8 |
                (word[2][l] >> shift[2] & 255) << 16 | (word[3][l] >> shift[3]) << 24;
  });
  write32(w, in, r, mask);
}
// Averages of bytes; bit 0 of each byte of c says whether a half rounds up.
constexpr u32 average(u32 a, u32 b, u32 c, int i) {
  return (byte(a, i) + byte(b, i) + (byte(c, i) & 1)) >> 1 << (8 * i);
}
constexpr auto lerp = [](u32 a, u32 b, u32 c) {
  return average(a, b, c, 0) | average(a, b, c, 1) | average(a, b, c, 2) | average(a, b, c, 3);
};

constexpr u32 distance(u32 a, u32 b) { return a > b ? a - b : b - a; }
constexpr u32 byte_distances(u32 a, u32 b) {
  return distance(byte(a, 0), byte(b, 0)) + distance(byte(a, 1), byte(b, 1)) + distance(byte(a, 2), byte(b, 2)) +
         distance(byte(a, 3), byte(b, 3));
}
// Masked: a byte of the reference that is 0 does not count.
constexpr u32 masked_distance(u32 a, u32 reference) { return reference ? distance(a, reference) : 0; }
constexpr u32 masked_distances(u32 a, u32 b) {
  return masked_distance(byte(a, 0), byte(b, 0)) + masked_distance(byte(a, 1), byte(b, 1)) +
         masked_distance(byte(a, 2), byte(b, 2)) + masked_distance(byte(a, 3), byte(b, 3));
}
constexpr auto sad_u8 = [](u32 a, u32 b, u32 c) { return byte_distances(a, b) + c; };
constexpr auto sad_hi_u8 = [](u32 a, u32 b, u32 c) { return (byte_distances(a, b) << 16) + c; };
constexpr auto sad_u16 = [](u32 a, u32 b, u32 c) {
  return distance(a & 0xffff, b & 0xffff) + distance(a >> 16, b >> 16) + c;
};
constexpr auto sad_u32 = [](u32 a, u32 b, u32 c) { return distance(a, b) + c; };
constexpr auto msad_u8 = [](u32 a, u32 b, u32 c) { return masked_distances(a, b) + c; };

// Four sums, of the four bytes starting at byte 0, 1, 2 and 3 of the first source: packed into 64 bits, or a register
// each.
template <auto F>
void four_sums_u16(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  const Source64 a(w, in, 0, mask), c(w, in, 2, mask);
  Row space;
  const u32* reference = source32(w, in, 1, space, mask);
  u64 result[kLanes];
  for_lanes(w, [&](int l) {
    u64 packed = 0;
    for (int i = 0; i < 4; ++i) {
      const u64 sum = F(static_cast<u32>(joined(a, l) >> (8 * i)), reference[l]) + (joined(c, l) >> (16 * i));
      packed |= (sum & 0xffff) << (16 * i);
    }
    result[l] = packed;
  });
  write64(w, in, result, mask);
}
template <auto F>
void four_sums_u32(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  const Source64 a(w, in, 0, mask);
  Row reference_space, addend_space, result[4];
  const u32* reference = source32(w, in, 1, reference_space, mask);
  for (int i = 0; i < 4; ++i) {
    const u32* addend = plain_row(w, in.source(2), addend_space, i);
    for_lanes(
        w, [&](int l) { result[i].lane[l] = F(static_cast<u32>(joined(a, l) >> (8 * i)), reference[l]) + addend[l]; });
  }
  for (int i = 0; i < 4; ++i) write_row(w, static_cast<u16>(in.operand[0].reg + i), result[i].lane, mask);
}

Opcode row1(const char* name, Handler handler) { return {name, handler, Class::vector, "u=u", kVopInt}; }
Opcode row2(const char* name, Handler handler) { return {name, handler, Class::vector, "u=uu", kVopInt}; }
Opcode row3(const char* name, Handler handler) { return {name, handler, Class::vector, "u=uuu", kVopInt}; }

}  // namespace

std::span<const Opcode> vector_bits_opcodes() {
  static const std::vector<Opcode> rows = {
      row3("v_bfe_u32", int3<bfe_u32>),
      row3("v_bfe_i32", int3<bfe_i32>),
      row3("v_bfi_b32", int3<bfi>),
      row2("v_bfm_b32", int2<bfm>),
      row1("v_bfrev_b32", int1<reverse>),
      row2("v_bcnt_u32_b32", int2<[](u32 a, u32 b) { return count_ones(a) + b; }>),
      row1("v_ffbh_u32", int1<leading_zeros>),
      row1("v_clz_i32_u32", int1<leading_zeros>),
      row1("v_ffbl_b32", int1<trailing_zeros>),
      row1("v_ctz_i32_b32", int1<trailing_zeros>),
      row1("v_ffbh_i32", int1<leading_signs>),
      row1("v_cls_i32", int1<leading_signs>),
      {"v_alignbit_b32", align<align_bit>, Class::vector, "u=uuw", kVopInt | kTakesOpSel},
      {"v_alignbyte_b32", align<align_byte>, Class::vector, "u=uuw", kVopInt | kTakesOpSel},
      {"v_bitop3_b32", bitop3_b32, Class::vector, "u=uuu", kVopInt | kTakesBitop},
      {"v_bitop3_b16", bitop3_b16, Class::vector, "w=www", kVopInt | kTakesBitop | kTakesOpSel},

      row3("v_perm_b32", permute_bytes),
      row3("v_lerp_u8", int3<lerp>),
      row3("v_sad_u8", int3<sad_u8>),
      row3("v_sad_hi_u8", int3<sad_hi_u8>),
      row3("v_sad_u16", int3<sad_u16>),
      row3("v_sad_u32", int3<sad_u32>),
      row3("v_msad_u8", int3<msad_u8>),
      {"v_qsad_pk_u16_u8", four_sums_u16<byte_distances>, Class::vector, "q=quq", 0, 0, 16},
      {"v_mqsad_pk_u16_u8", four_sums_u16<masked_distances>, Class::vector, "q=quq", 0, 0, 16},
      {"v_mqsad_u32_u8", four_sums_u32<masked_distances>, Class::vector, "x=qux", 0, 0, 16},
  };
  return rows;
}

}  // namespace emu
