// Vector integer instructions that read or write a lane mask, and those with 64-bit results.
#include <vector>

#include "isa/masks.h"
#include "isa/rates.h"
#include "isa/vector_int_op.h"

namespace emu {
namespace {

// --- carries
// -----------------------------------------------------------------------------------------------------------
enum class Sum { add, sub, subrev };

template <Sum sum, bool saturates>
void add_lanes(Wave& w, const Instruction& in, u64 carry) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, sum == Sum::subrev ? 1 : 0, a, mask);
  const u32* y = source32(w, in, sum == Sum::subrev ? 0 : 1, b, mask);
  const u64 carries = lane_bits_from(w, carry, [&](int l, u32 c) {
    if constexpr (sum == Sum::add) {
      const u32 total = x[l] + y[l] + c;
      const bool out = (total < x[l]) | (c & (total == x[l]));
      r.lane[l] = saturates && out ? ~0u : total;
      return out;
    } else {
      const bool out = (x[l] < y[l]) | (c & (x[l] == y[l]));
      r.lane[l] = saturates && out ? 0 : x[l] - y[l] - c;
      return out;
    }
  });
  write32(w, in, r, mask);
  set_lane_mask(w, in.operand[1], carries & mask);
}
template <Sum sum, bool saturates>
void add_carry_out(Wave& w, const Instruction& in) {
  add_lanes<sum, saturates>(w, in, 0);
}
template <Sum sum, bool saturates>
void add_carry_in_out(Wave& w, const Instruction& in) {
  add_lanes<sum, saturates>(w, in, lane_mask(w, in.source(2)));
}

template <Sum sum>
Opcode carry_out(const char* name) {
  return {name,
          add_carry_out<sum, false>,
          Class::vector,
          "um=uu",
          kVopInt | kTakesClamp,
          0,
          4,
          bind_saturation<add_carry_out<sum, true>>};
}
template <Sum sum>
Opcode carry_in_out(const char* name) {
  return {name,
          add_carry_in_out<sum, false>,
          Class::vector,
          "um=uum",
          kVopInt | kTakesClamp,
          0,
          4,
          bind_saturation<add_carry_in_out<sum, true>>};
}

// --- choosing by a mask
// ------------------------------------------------------------------------------------------------
void cndmask(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  for_lanes_and_bits(w, lane_mask(w, in.source(2)), [&](int l, u32 chosen) {
    const u32 first = x[l], second = y[l];  // both are read: no branch
    r.lane[l] = chosen ? second : first;
  });
  write32(w, in, r, mask);
}
// In the halves of a VOPD instruction the mask is VCC and is not printed.
std::string bind_vcc(Instruction& in, const Target& target) {
  if (in.operand_count != 3) return {};
  Operand& vcc = in.operand[in.operand_count++];
  vcc = Operand();
  vcc.kind = OperandKind::sgpr;
  vcc.reg = kVcc;
  vcc.width = static_cast<u8>(target.wave_size / 32);
  return {};
}

// --- 64 bits
// -----------------------------------------------------------------------------------------------------------
struct Result64 {
  Row low, high;
  void set(int lane, u64 value) {
    low.lane[lane] = static_cast<u32>(value);
    high.lane[lane] = static_cast<u32>(value >> 32);
  }
  void write(Wave& w, const Instruction& in, u64 mask) const {
    write_row(w, in.operand[0].reg, low.lane, mask);
    write_row(w, static_cast<u16>(in.operand[0].reg + 1), high.lane, mask);
  }
};

void move64(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  const Source64 a(w, in, 0, mask);
  Result64 result;
  for_lanes(w, [&](int l) { result.set(l, joined(a, l)); });
  result.write(w, in, mask);
}
template <auto F>
void shift64(Wave& w, const Instruction& in) {
  Row space;
  u64 mask = w.exec();
  const u32* n = source32(w, in, 0, space, mask);
  const Source64 a(w, in, 1, mask);
  Result64 result;
  for_lanes(w, [&](int l) { result.set(l, F(joined(a, l), n[l] & 63)); });
  result.write(w, in, mask);
}
constexpr auto shift_left = [](u64 a, u32 n) { return a << n; };
constexpr auto shift_right = [](u64 a, u32 n) { return a >> n; };
constexpr auto shift_right_signed = [](u64 a, u32 n) { return static_cast<u64>(static_cast<i64>(a) >> n); };

void lshl_add_u64(Wave& w, const Instruction& in) {
  Row space;
  u64 mask = w.exec();
  const Source64 a(w, in, 0, mask), c(w, in, 2, mask);
  const u32* n = source32(w, in, 1, space, mask);
  Result64 result;
  for_lanes(w, [&](int l) { result.set(l, (joined(a, l) << (n[l] & 7)) + joined(c, l)); });
  result.write(w, in, mask);
}

// The carry is bit 64 of the exact sum: for signed operands its sign.
template <bool is_signed>
void mad64(Wave& w, const Instruction& in) {
  Row a, b;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  const Source64 z(w, in, 2, mask);
  Result64 result;
  const u64 carries = lane_bits(w, [&](int l) {
    const u64 addend = joined(z, l);
    if constexpr (is_signed) {
      const u64 product = static_cast<u64>(i64{static_cast<i32>(x[l])} * static_cast<i32>(y[l]));
      const u64 total = product + addend;
      result.set(l, total);
      const u64 overflow = (product ^ total) & (addend ^ total);
      return static_cast<i64>(total ^ overflow) < 0;
    } else {
      const u64 total = u64{x[l]} * y[l] + addend;
      result.set(l, total);
      return total < addend;
    }
  });
  result.write(w, in, mask);
  set_lane_mask(w, in.operand[1], carries & mask);
}

std::string bind_64bit(Instruction& in, const Target& target) {
  in.cycles = cycles_of_64bit(target);
  return {};
}
std::string bind_multiply(Instruction& in, const Target& target) {
  in.cycles = cycles_of_int_multiply(target);
  return {};
}
template <auto F>
Opcode shift(const char* name) {
  return {name, shift64<F>, Class::vector, "q=uq", kTakesDpp, 0, 4, bind_64bit};
}
Opcode mad(const char* name, Handler handler) {
  return {name, handler, Class::vector, "qm=uuq", kTakesDpp, kUndefinedHighOk, 16, bind_multiply};
}

}  // namespace

std::span<const Opcode> vector_carry_opcodes() {
  static const std::vector<Opcode> rows = {
      carry_out<Sum::add>("v_add_co_u32"),
      carry_out<Sum::sub>("v_sub_co_u32"),
      carry_out<Sum::subrev>("v_subrev_co_u32"),
      // gfx9 and later spellings
      carry_in_out<Sum::add>("v_addc_co_u32"),
      carry_in_out<Sum::add>("v_add_co_ci_u32"),
      carry_in_out<Sum::sub>("v_subb_co_u32"),
      carry_in_out<Sum::sub>("v_sub_co_ci_u32"),
      carry_in_out<Sum::subrev>("v_subbrev_co_u32"),
      carry_in_out<Sum::subrev>("v_subrev_co_ci_u32"),
      {"v_cndmask_b32", cndmask, Class::vector, "u=uum", kVopInt | kTakesSign, 0, 4, bind_vcc},

      {"v_mov_b64", move64, Class::vector, "q=q", kTakesDpp, 0, 4, bind_64bit},
      shift<shift_left>("v_lshlrev_b64"),
      shift<shift_right>("v_lshrrev_b64"),
      shift<shift_right_signed>("v_ashrrev_i64"),
      {"v_lshl_add_u64", lshl_add_u64, Class::vector, "q=quq", 0, 0, 4, bind_64bit},
      mad("v_mad_u64_u32", mad64<false>),
      mad("v_mad_i64_i32", mad64<true>),
      mad("v_mad_co_u64_u32", mad64<false>),
      mad("v_mad_co_i64_i32", mad64<true>),
  };
  return rows;
}

}  // namespace emu
