// V_CMP and V_CMPX of every type and relation. The rows are made from the types and the relations rather than listed.
#include <array>
#include <deque>
#include <string>
#include <type_traits>
#include <vector>

#include "isa/masks.h"
#include "isa/rates.h"

namespace emu {
namespace {

// The manuals number the relations by what they hold for: bit 0 less, 1 equal, 2 greater, 3 unordered.
constexpr std::array<const char*, 16> kFloatRelations = {"f", "lt",  "eq",  "le",  "gt",  "lg",  "ge",  "o",
                                                         "u", "nge", "nlg", "ngt", "nle", "neq", "nlt", "tru"};
constexpr std::array<const char*, 8> kIntRelations = {"f", "lt", "eq", "le", "gt", "ne", "ge", "t"};

template <int relation, class T>
bool holds(T a, T b) {
  bool result = false;
  if constexpr (relation & 1) result |= a < b;
  if constexpr (relation & 2) result |= a == b;
  if constexpr (relation & 4) result |= a > b;
  if constexpr (relation & 8) result |= (a != a) | (b != b);
  return result;
}

// --- sources by type -------------------------------------------------------------------------------------------------
struct Lanes32 {
  Row space;
  const u32* row;
  Lanes32(Wave& w, const Instruction& in, int i, u64& mask) : row(source32(w, in, i, space, mask)) {}
  u32 operator[](int lane) const { return row[lane]; }
};
struct LanesF32 {
  Row space;
  const u32* row;
  LanesF32(Wave& w, const Instruction& in, int i, u64& mask) : row(source_f32(w, in, i, space, mask)) {}
  u32 operator[](int lane) const { return row[lane]; }
};
struct Lanes16 {
  Row space;
  const u32* row;
  Lanes16(Wave& w, const Instruction& in, int i, u64& mask) : row(source16(w, in, i, space, mask)) {}
  u32 operator[](int lane) const { return row[lane]; }
};

struct Lanes64 {  // integers: no signs to apply
  Source64 source;
  Lanes64(Wave& w, const Instruction& in, int i, u64& mask) : source(w, in, i, mask) {}
  u64 operator[](int lane) const { return joined(source, lane); }
};

template <class T>
auto lanes_of() {
  if constexpr (std::is_same_v<T, float>) {
    return std::type_identity<LanesF32>();
  } else if constexpr (std::is_same_v<T, double>) {
    return std::type_identity<Source64>();
  } else if constexpr (sizeof(T) == 8) {
    return std::type_identity<Lanes64>();
  } else if constexpr (sizeof(T) == 4) {
    return std::type_identity<Lanes32>();
  } else {
    return std::type_identity<Lanes16>();
  }
}
template <class T>
using LanesOf = typename decltype(lanes_of<T>())::type;

template <class T>
auto value_of(u64 bits) {
  if constexpr (std::is_same_v<T, float>) {
    return as_f32(static_cast<u32>(bits));
  } else if constexpr (std::is_same_v<T, double>) {
    return as_f64(bits);
  } else if constexpr (std::is_same_v<T, f16>) {
    return f32_of_f16(static_cast<u32>(bits));
  } else {
    return static_cast<T>(bits);
  }
}

template <class T, int relation>
u64 compare_lanes(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  const LanesOf<T> a(w, in, 0, mask), b(w, in, 1, mask);
  // Lanes that are off, by EXEC or by DPP, give 0.
  return lane_bits(w, [&](int l) { return holds<relation>(value_of<T>(a[l]), value_of<T>(b[l])); }) & mask;
}

// --- classes
// -----------------------------------------------------------------------------------------------------------
template <class T>
struct FloatBits;
template <>
struct FloatBits<f16> {
  using Word = u32;
  static constexpr Word sign = 0x8000, infinity = 0x7c00, normal = 0x0400, quiet = 0x0200;
};
template <>
struct FloatBits<float> {
  using Word = u32;
  static constexpr Word sign = 0x80000000, infinity = 0x7f800000, normal = 0x00800000, quiet = 0x00400000;
};
template <>
struct FloatBits<double> {
  using Word = u64;
  static constexpr Word sign = 1ull << 63, infinity = 0x7ffull << 52, normal = 1ull << 52, quiet = 1ull << 51;
};

// Which bit of the class mask a value answers to: signaling NaN, quiet NaN, then from -infinity up to +infinity.
template <class T>
u32 class_of(typename FloatBits<T>::Word bits) {
  using F = FloatBits<T>;
  const auto magnitude = bits & (F::sign - 1);
  if (magnitude > F::infinity) return magnitude & F::quiet ? 1 : 0;
  // 0 zero, 1 denormal, 2 normal, 3 infinity
  const u32 size = (magnitude != 0) + (magnitude >= F::normal) + (magnitude == F::infinity);
  return bits & F::sign ? 5 - size : 6 + size;
}

template <class T>
u64 class_lanes(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  // As bits, not as numbers: a denormal is one whatever the mode.
  using Bits = std::conditional_t<sizeof(T) == 8, Source64, std::conditional_t<sizeof(T) == 2, Lanes16, Lanes32>>;
  using Classes = std::conditional_t<sizeof(T) == 2, Lanes16, Lanes32>;
  const Bits value(w, in, 0, mask);
  const Classes classes(w, in, 1, mask);
  return lane_bits(w, [&](int l) { return classes[l] >> class_of<T>(value[l]) & 1; }) & mask;
}

// --- handlers
// ----------------------------------------------------------------------------------------------------------
using LanesFunction = u64 (*)(Wave&, const Instruction&);

template <LanesFunction F>
void compare(Wave& w, const Instruction& in) {
  set_lane_mask(w, in.operand[0], F(w, in));
}
template <LanesFunction F>
void compare_and_set_exec(Wave& w, const Instruction& in) {
  const u64 bits = F(w, in);
  set_lane_mask(w, in.operand[0], bits);
  w.set_exec(bits);
}

template <class T>
std::string bind_type(Instruction& in, const Target& target) {
  if constexpr (sizeof(T) == 8) {
    in.cycles = std::is_same_v<T, double> ? cycles_of_f64(target) : cycles_of_64bit(target);
  }
  if constexpr (std::is_same_v<T, i64>) {  // a 32-bit literal is sign-extended
    for (int i = in.dest_count; i < in.operand_count; ++i) {
      Operand& o = in.operand[i];
      if (o.is_constant() && o.constant >> 32 == 0) o.constant = static_cast<u64>(i64{static_cast<i32>(o.constant)});
    }
  }
  return {};
}
// Since gfx10 V_CMPX writes EXEC alone, and EXEC is not printed: make it the destination.
template <class T>
std::string bind_exec(Instruction& in, const Target& target) {
  for (int i = in.operand_count; i > 0; --i) in.operand[i] = in.operand[i - 1];
  in.operand[0] = Operand();
  in.operand[0].kind = OperandKind::sgpr;
  in.operand[0].reg = kExec;
  in.operand[0].width = static_cast<u8>(target.wave_size / 32);
  ++in.operand_count;
  in.dest_count = 1;
  // With no destination printed, the second source's op_sel was taken for the destination's.
  if (in.op_sel & 8) in.op_sel = static_cast<u8>((in.op_sel & 1) | 2);
  return bind_type<T>(in, target);
}

constexpr u32 kGfx9 = 1u << static_cast<int>(Family::gfx9);
constexpr u32 kLater = 1u << static_cast<int>(Family::gfx11) | 1u << static_cast<int>(Family::gfx12);

struct TypeRow {
  const char* suffix;
  const char *signature, *exec_signature;
  u32 modifiers;
};

class Table {
 public:
  Table() {
    add_type<i16>({"_i16", "m=ww", "=ww", kVopInt | kTakesOpSel});
    add_type<u16>({"_u16", "m=ww", "=ww", kVopInt | kTakesOpSel});
    add_type<i32>({"_i32", "m=uu", "=uu", kVopInt});
    add_type<u32>({"_u32", "m=uu", "=uu", kVopInt});
    add_type<i64>({"_i64", "m=qq", "=qq", kVopInt});
    add_type<u64>({"_u64", "m=qq", "=qq", kVopInt});
    add_type<f16>({"_f16", "m=hh", "=hh", kVopInt | kTakesSign | kTakesOpSel});
    add_type<float>({"_f32", "m=ff", "=ff", kVopInt | kTakesSign});
    add_type<double>({"_f64", "m=dd", "=dd", kVopInt | kTakesSign});
    add<f16, class_lanes<f16>>("class", {"_f16", "m=hw", "=hw", kVopInt | kTakesSign | kTakesOpSel});
    add<float, class_lanes<float>>("class", {"_f32", "m=fu", "=fu", kVopInt | kTakesSign});
    add<double, class_lanes<double>>("class", {"_f64", "m=du", "=du", kVopInt | kTakesSign});
  }
  std::span<const Opcode> rows() const { return rows_; }

 private:
  template <class T, int relation = 0>
  void add_type(const TypeRow& type) {
    constexpr bool integer = std::is_integral_v<T>;
    constexpr int count = integer ? kIntRelations.size() : kFloatRelations.size();
    add<T, compare_lanes<T, relation>>(integer ? kIntRelations[relation % 8] : kFloatRelations[relation], type);
    // gfx11 calls the relation that always holds "t" for floats too.
    if constexpr (relation == 15) add<T, compare_lanes<T, relation>>("t", type);
    if constexpr (relation + 1 < count) add_type<T, relation + 1>(type);
  }
  template <class T, LanesFunction F>
  void add(const char* relation, const TypeRow& type) {
    append(relation, type, compare<F>, compare_and_set_exec<F>, bind_type<T>, bind_exec<T>);
  }
  using Bind = std::string (*)(Instruction&, const Target&);
  void append(const std::string& relation, const TypeRow& type, Handler one, Handler both, Bind printed, Bind implied) {
    const char* name = keep("v_cmp_" + relation + type.suffix);
    const char* exec_name = keep("v_cmpx_" + relation + type.suffix);
    rows_.push_back({name, one, Class::vector, type.signature, type.modifiers, 0, 4, printed});
    rows_.push_back({exec_name, both, Class::vector, type.signature, type.modifiers, 0, 4, printed, kGfx9});
    rows_.push_back({exec_name, one, Class::vector, type.exec_signature, type.modifiers, 0, 4, implied, kLater});
  }
  const char* keep(std::string name) { return names_.emplace_back(std::move(name)).c_str(); }

  std::deque<std::string> names_;
  std::vector<Opcode> rows_;
};

}  // namespace

std::span<const Opcode> compare_opcodes() {
  static const Table table;
  return table.rows();
}

}  // namespace emu
