// Every matrix instruction against matrix_layouts.txt: small integers are put in the registers where the table says
// they belong, and the result must be exactly the product of the matrices where the table says it is.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "check/checker.h"
#include "core/opcode.h"
#include "isa/matrix.h"
#include "matrix_table.h"
#include "operands.h"

namespace {
using namespace emu_test;

// --- registers -------------------------------------------------------------------------------------------------------
void put(Wave& w, int reg, Place place, int size, u64 value) {
  for (int n = 0; n < size; ++n) {
    u32& word = w.vgpr[reg + (place.bit + n) / 32][place.lane];
    const u32 mask = 1u << ((place.bit + n) % 32);
    word = value >> n & 1 ? word | mask : word & ~mask;
  }
}
u64 get(const Wave& w, int reg, Place place, int size) {
  u64 value = 0;
  for (int n = 0; n < size; ++n) {
    value |= static_cast<u64>(w.vgpr[reg + (place.bit + n) / 32][place.lane] >> ((place.bit + n) % 32) & 1) << n;
  }
  return value;
}

// Where every element of one matrix is: places[(block * rows + row) * columns + column].
std::vector<Place> places(const Form& form, const std::string& layout, int size, char row, int rows, char column,
                          int columns, int step = 1) {
  const Layout& where = table().layouts.at(layout);
  std::vector<Place> result;
  Variables v{};
  v['M'] = form.m, v['K'] = form.k, v['B'] = form.blocks, v['S'] = size;
  const size_t row_letter = static_cast<size_t>(row), column_letter = static_cast<size_t>(column);
  for (v['b'] = 0; v['b'] < form.blocks; ++v['b']) {
    for (int& r = v[row_letter] = 0; r < rows; ++r) {
      for (int& c = v[column_letter] = 0; c < columns; c += step) {
        result.push_back({where.lane.value(v), where.bit.value(v)});
      }
    }
  }
  return result;
}
int registers_of(const std::vector<Place>& all, int size) {
  int last = 0;
  for (const Place& place : all) last = std::max(last, place.bit + size - 1);
  return last / 32 + 1;
}

// --- one execution ---------------------------------------------------------------------------------------------------
constexpr int kD = 4, kA = 64, kB = 96, kC = 128, kIndex = 200, kScale = 202;
enum class Accumulator { same, apart, agpr_and_constant, overlapping, count };

struct Case {
  const Form* form = nullptr;
  const Opcode* opcode = nullptr;
  size_t a_format = 0, b_format = 0;
  int cbsz = 0, abid = 0, blgp = 0, index_key = 0, neg_lo = 0, neg_hi = 0, op_sel = 0, op_sel_hi = 0xff;
  bool clamp = false;
  Accumulator accumulator = Accumulator::same;
};

int lane_after_blgp(int lane, int blgp) {
  switch (blgp) {
    case 0:
      return lane;
    case 1:
      return lane % 32;
    case 2:
      return lane % 32 + 32;
    case 3:
      return (lane + 16) % 64;
    default:
      return lane % 16 + 16 * (blgp - 4);
  }
}

std::string describe(const Case& c) {
  std::ostringstream text;
  text << c.form->name << " on " << c.form->target << "/" << c.form->lanes << " formats " << c.a_format << ","
       << c.b_format << " cbsz:" << c.cbsz << " abid:" << c.abid << " blgp:" << c.blgp << " index_key:" << c.index_key
       << " neg_lo:" << c.neg_lo << " neg_hi:" << c.neg_hi << " op_sel:" << c.op_sel << " op_sel_hi:" << c.op_sel_hi
       << " clamp:" << c.clamp << " accumulator " << static_cast<int>(c.accumulator);
  return text.str();
}

const Opcode* find_row(const std::string& name, Family family) {
  for (const std::span<const Opcode> rows : {mfma_opcodes(), wmma_opcodes()}) {
    for (const Opcode& row : rows) {
      if (row.name == name && (row.families >> static_cast<int>(family) & 1)) return &row;
    }
  }
  return nullptr;
}

Instruction instruction(const Case& c) {
  Instruction in;
  in.opcode = c.opcode;
  in.execute = c.opcode->execute;
  in.cls = c.opcode->cls;
  in.dest_count = 1;
  in.cbsz = static_cast<u8>(c.form->a.size() > 1 ? static_cast<int>(c.a_format) : c.cbsz);
  in.blgp = static_cast<u8>(c.form->b.size() > 1 ? static_cast<int>(c.b_format) : c.blgp);
  in.abid = static_cast<u8>(c.abid);
  in.index_key = static_cast<u8>(c.index_key);
  in.neg_lo = static_cast<u8>(c.neg_lo);
  in.neg_hi = static_cast<u8>(c.neg_hi);
  in.op_sel = static_cast<u8>(c.op_sel);
  in.op_sel_hi = static_cast<u8>(c.op_sel_hi);
  in.clamp = c.clamp;
  return in;
}

// The matrices of one case as numbers, and the wave that holds them.
class Execution {
 public:
  Execution(const Case& c, u32 seed) : case_(c), form_(*c.form), random_(seed), wave_(std::make_unique<Wave>()) {
    for (auto& row : wave_->vgpr) std::fill(std::begin(row), std::end(row), 0xffffffffu);
    wave_->target = find_target(form_.target);
    wave_->lanes = form_.lanes;
    wave_->set_exec(0);  // must not matter
    integers_ = form_.has("iu");
    negated_by_blgp_ = form_.has("neg");
    const bool is_sparse = !form_.index.empty();
    a_type_ = form_.a[c.a_format].type;
    b_type_ = form_.b[c.b_format].type;
    a_places_ =
        places(form_, form_.a[c.a_format].layout, bits_of_type(a_type_), 'x', form_.m, 'k', form_.k, is_sparse ? 2 : 1);
    b_places_ = places(form_, form_.b[c.b_format].layout, bits_of_type(b_type_), 'x', form_.m, 'k', form_.k);
    d_places_ = places(form_, form_.d.layout, bits_of_type(form_.d.type), 'i', form_.m, 'j', form_.m);
    for (Place& place : d_places_) place.bit += form_.has("halves") ? 16 * (c.op_sel >> 2 & 1) : 0;
  }

  // Empty: the result is right.
  std::string run() {
    Instruction in = instruction(case_);
    fill_inputs();
    if (!form_.index.empty()) fill_indices();
    if (form_.has("scale")) fill_scales();
    set_operands(in);
    fill_accumulator(in);
    compute_expected();
    if (std::string wrong = case_.opcode->bind(in, *wave_->target); !wrong.empty()) return "refused: " + wrong;
    const bool slow = form_.clocks.size() > 1 && (bits_of_type(a_type_) == 8 || bits_of_type(b_type_) == 8);
    if (in.cycles != form_.clocks[slow ? 1 : 0]) return "issue cycles are " + std::to_string(in.cycles);
    const auto before = std::make_unique<Wave>(*wave_);
    in.execute(*wave_, in);
    return compare(*before);
  }

 private:
  bool is_signed(int which) const { return !integers_ || (case_.neg_lo >> which & 1); }
  void fill_inputs() {
    for (int which = 0; which < 2; ++which) {
      const std::string& type = which ? b_type_ : a_type_;
      for (const Place& place : which ? b_places_ : a_places_) {
        const u64 code = encode(type, random_value(type, form_.d.type, is_signed(which), random_));
        for (int lane = place.lane; lane < (form_.has("replicated") ? form_.lanes : place.lane + 1); lane += 16) {
          put(*wave_, which ? kB : kA, {lane, place.bit}, bits_of_type(type), code);
        }
      }
    }
  }
  // Two different positions of each four, in ascending order.
  void fill_indices() {
    const std::vector<Place> where = places(form_, form_.index, 4, 'x', form_.m, 'k', form_.k, 4);
    const int set = case_.cbsz ? 0 : std::max(case_.abid, case_.index_key);
    for (Place place : where) {
      const int first = static_cast<int>(random_() % 3), second = first + 1 + static_cast<int>(random_() % (3 - first));
      place.bit += set * (32 / form_.sets);
      put(*wave_, kIndex, place, 4, static_cast<u64>(first | second << 2));
      positions_.push_back(first);
      positions_.push_back(second);
    }
  }
  // One scale for each row or column and 32 k: in lane x + M * (k / 32), byte op_sel + 2 * op_sel_hi.
  void fill_scales() {
    for (int which = 0; which < 2; ++which) {
      const int byte = (case_.op_sel >> which & 1) + 2 * (case_.op_sel_hi >> which & 1);
      for (int lane = 0; lane < 64; ++lane) {
        const int exponent = 125 + static_cast<int>(random_() % 5);
        put(*wave_, kScale + which, {lane, 8 * byte}, 8, static_cast<u64>(exponent));
        scales_[which].push_back(std::ldexp(Number{1}, exponent - 127));
      }
    }
  }
  void set_operands(Instruction& in) {
    d_width_ = registers_of(d_places_, bits_of_type(form_.d.type));
    const bool agpr = case_.accumulator == Accumulator::agpr_and_constant && wave_->target->cdna;
    d_ = kD + (agpr ? kFirstAgpr : 0);
    if (case_.accumulator == Accumulator::overlapping) d_ = kC + 1 + (form_.d.type == "f64");
    in.operand[0] = vgprs(d_, d_width_);
    in.operand[1] = vgprs(kA, registers_of(a_places_, bits_of_type(a_type_)));
    in.operand[2] = vgprs(kB, registers_of(b_places_, bits_of_type(b_type_)));
    in.operand_count = 4;
    if (!form_.index.empty()) {
      in.operand[3] = vgprs(kIndex, 1);
      c_ = d_;
      return;
    }
    c_ = case_.accumulator == Accumulator::same ? d_ : kC;
    in.operand[3] = vgprs(c_, d_width_);
    if (form_.has("scale")) {
      in.operand[4] = vgprs(kScale, 1);
      in.operand[5] = vgprs(kScale + 1, 1);
      in.operand_count = 6;
    }
  }
  void fill_accumulator(Instruction& in) {
    const std::string& type = form_.d.type;
    const bool constant = case_.accumulator == Accumulator::agpr_and_constant && form_.index.empty();
    if (constant) {
      in.operand[3] = Operand{};
      in.operand[3].kind = OperandKind::constant;
      in.operand[3].constant = encode(type, 2);
    }
    for (const Place& place : d_places_) {
      int value = constant ? 2 : static_cast<int>(random_() % 41) - 20;
      if (case_.clamp && !constant) value = random_() % 2 ? 0x7fffffff - 1000 : -0x7fffffff + 1000;
      if (!constant) put(*wave_, c_, place, bits_of_type(type), encode(type, value));
      start_.push_back(value);
    }
  }
  // What the instruction takes as A[row][k] and B[k][column] of each block: in the order of the places.
  std::vector<Number> elements_of_a() const {
    std::vector<Number> result;
    const size_t block_size = a_places_.size() / static_cast<size_t>(form_.blocks);
    const bool broadcast = form_.has("cbsz");
    for (size_t n = 0; n < a_places_.size(); ++n) {
      const size_t block = n / block_size;
      const size_t source = broadcast ? (block >> case_.cbsz << case_.cbsz) + static_cast<size_t>(case_.abid) : block;
      const Place& place = a_places_[source * block_size + n % block_size];
      const u64 code = get(*wave_, kA, place, bits_of_type(a_type_));
      result.push_back(signed_number(0, decode(a_type_, code, is_signed(0)), place));
    }
    return result;
  }
  std::vector<Number> elements_of_b() const {
    std::vector<Number> result;
    const bool permuted = form_.has("blgp");
    for (Place place : b_places_) {
      if (permuted) place.lane = lane_after_blgp(place.lane, case_.blgp);
      const u64 code = get(*wave_, kB, place, bits_of_type(b_type_));
      result.push_back(signed_number(1, decode(b_type_, code, is_signed(1)), place));
    }
    return result;
  }
  Number signed_number(int which, Number value, Place place) const {
    if (integers_) return value;
    if (negated_by_blgp_) return case_.blgp >> which & 1 ? -value : value;
    return (place.bit % 32 < 16 ? case_.neg_lo : case_.neg_hi) >> which & 1 ? -value : value;
  }
  void compute_expected() {
    const size_t m = static_cast<size_t>(form_.m), depth = static_cast<size_t>(form_.k);
    const std::vector<Number> a = elements_of_a(), b = elements_of_b();
    const bool scaled = form_.has("scale");
    for (size_t n = 0; n < d_places_.size(); ++n) {
      const size_t block = n / (m * m), i = n / m % m, j = n % m;
      Number sum = start_[n];
      if (negated_by_blgp_ && (case_.blgp & 4)) sum = -sum;
      if (!integers_ && (case_.neg_hi & 4)) sum = std::abs(sum);
      if (!integers_ && (case_.neg_lo & 4)) sum = -sum;
      const Number* column = &b[(block * m + j) * depth];
      if (form_.index.empty()) {
        const Number* row = &a[(block * m + i) * depth];
        for (size_t k = 0; k < depth; ++k) {
          const Number scale = scaled ? scales_[0][k / 32 * m + i] * scales_[1][k / 32 * m + j] : Number{1};
          sum += scale * row[k] * column[k];
        }
      } else {
        for (size_t e = 0; e < depth / 2; ++e) {
          const int position = positions_[i * (depth / 2) + e];
          sum += a[i * (depth / 2) + e] * column[e / 2 * 4 + static_cast<size_t>(position)];
        }
      }
      if (form_.d.type == "i32") {
        const Number low = -2147483648.0L, high = 2147483647.0L;
        if (case_.clamp) sum = std::clamp(sum, low, high);
      }
      expected_.push_back(sum);
    }
  }
  std::string compare(const Wave& before) const {
    std::vector<bool> written(kVectorRegisters * kLanes * 2);  // by register, lane and half
    const auto at = [](int reg, int lane, int half) { return static_cast<size_t>((reg * kLanes + lane) * 2 + half); };
    const int size = bits_of_type(form_.d.type);
    for (size_t n = 0; n < d_places_.size(); ++n) {
      const Number found = decode(form_.d.type, get(*wave_, d_, d_places_[n], size));
      if (found != expected_[n]) {
        std::ostringstream text;
        text << "element " << n << " of D is " << found << ", not " << expected_[n];
        return text.str();
      }
      for (int bit = 0; bit < size; bit += 16) {
        const int position = d_places_[n].bit + bit;
        written[at(d_ + position / 32, d_places_[n].lane, position % 32 / 16)] = true;
      }
    }
    for (int reg = 0; reg < kVectorRegisters; ++reg) {
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int half = 0; half < 2; ++half) {
          const u32 changed = (wave_->vgpr[reg][lane] ^ before.vgpr[reg][lane]) >> (16 * half) & 0xffff;
          if (changed && !written[at(reg, lane, half)]) return "register " + std::to_string(reg) + " was changed";
        }
      }
    }
    return "";
  }

  const Case& case_;
  const Form& form_;
  std::mt19937 random_;
  std::unique_ptr<Wave> wave_;
  std::string a_type_, b_type_;
  std::vector<Place> a_places_, b_places_, d_places_;
  std::vector<int> start_, positions_;
  std::vector<Number> scales_[2], expected_;
  int d_ = 0, c_ = 0, d_width_ = 0;
  bool integers_ = false, negated_by_blgp_ = false;
};

// The cases worth executing for one form.
std::vector<Case> cases_of(const Form& form) {
  Case plain;
  plain.form = &form;
  plain.opcode = find_row(form.name, find_target(form.target)->family);
  std::vector<Case> cases;
  for (int a = 0; a < static_cast<int>(Accumulator::count); ++a) {
    if (!form.index.empty() && a == static_cast<int>(Accumulator::overlapping)) continue;
    cases.push_back(plain);
    cases.back().accumulator = static_cast<Accumulator>(a);
  }
  const auto add = [&](const std::function<void(Case&)>& change) {
    Case c = plain;
    c.accumulator = static_cast<Accumulator>(cases.size() % (form.index.empty() ? 4 : 3));
    change(c);
    cases.push_back(c);
  };
  if (form.has("cbsz")) {
    for (int cbsz = 1; 1 << cbsz <= form.blocks; ++cbsz) {
      for (int abid = 0; abid < 1 << cbsz; ++abid) {
        add([&](Case& c) { c.cbsz = cbsz, c.abid = abid, c.blgp = form.has("blgp") ? abid % 8 : 0; });
      }
    }
  }
  if (form.has("blgp") || form.has("neg")) {
    for (int blgp = 1; blgp < 8; ++blgp) add([&](Case& c) { c.blgp = blgp; });
  }
  for (size_t a = 0; a < form.a.size(); ++a) {
    for (size_t b = 0; b < form.b.size(); ++b) {
      add([&](Case& c) {
        c.a_format = a, c.b_format = b;
        if (form.has("scale")) c.op_sel = static_cast<int>(a + b) % 4, c.op_sel_hi = static_cast<int>(a * 2 + b) % 4;
      });
    }
  }
  for (int set = 0; set < form.sets; ++set) {
    const bool cdna = find_target(form.target)->cdna;
    add([&](Case& c) { (cdna ? c.abid : c.index_key) = set; });
    if (cdna) add([&](Case& c) { c.abid = set, c.cbsz = 1; });
  }
  const int inputs = form.has("neg_abc") || form.has("neg_ab") ? 3 : 0;
  const int signs = inputs | (form.has("neg_abc") || form.has("neg_c") ? 4 : 0);
  for (int neg = 1; neg < 8 && signs; ++neg) {
    if (neg & ~signs) continue;
    add([&](Case& c) { c.neg_lo = neg; });
    add([&](Case& c) { c.neg_hi = neg; });
    add([&](Case& c) { c.neg_lo = neg, c.neg_hi = ~neg & signs; });
  }
  if (form.has("halves")) {
    for (int n = 0; n < 3; ++n) add([&](Case& c) { c.op_sel = 4, c.neg_lo = n; });
  }
  for (int n = 0; n < 8 && form.has("iu"); ++n) add([&](Case& c) { c.neg_lo = n % 4, c.clamp = n >= 4; });
  return cases;
}

TEST(MatrixLayouts, EveryInstructionIsInTheTable) {
  std::set<std::pair<std::string, Family>> listed;
  for (const Form& form : table().forms) listed.insert({form.name, find_target(form.target)->family});
  int rows = 0;
  for (const std::span<const Opcode> opcodes : {mfma_opcodes(), wmma_opcodes()}) {
    for (const Opcode& row : opcodes) {
      for (const Family family : {Family::gfx9, Family::gfx11, Family::gfx12}) {
        if (!(row.families >> static_cast<int>(family) & 1)) continue;
        EXPECT_TRUE(listed.count({row.name, family})) << row.name << " has no layout";
        ++rows;
      }
    }
  }
  EXPECT_EQ(listed.size(), static_cast<size_t>(rows));
  for (const auto& [name, family] : listed) EXPECT_TRUE(find_row(name, family)) << name << " is not implemented";
}

// The table itself: dense inputs and results leave no bit of their registers out and use none twice.
TEST(MatrixLayouts, LayoutsFillTheirRegisters) {
  for (const Form& form : table().forms) {
    const bool is_sparse = !form.index.empty();
    const auto check = [&](const TypedLayout& typed, char row, char column, int columns, int step, int lanes,
                           int stride) {
      const int size = bits_of_type(typed.type);
      const std::vector<Place> all = places(form, typed.layout, size, row, form.m, column, columns, step);
      std::set<std::pair<int, int>> used;
      for (const Place& place : all) EXPECT_TRUE(used.insert({place.lane, place.bit}).second) << form.name;
      EXPECT_EQ(all.size() * static_cast<size_t>(stride), static_cast<size_t>(registers_of(all, stride) * 32 * lanes))
          << form.name << " on " << form.target << ": " << typed.layout;
    };
    const int input_lanes = form.has("replicated") ? 16 : form.lanes;
    for (const TypedLayout& a : form.a)
      check(a, 'x', 'k', form.k, is_sparse ? 2 : 1, input_lanes, bits_of_type(a.type));
    for (const TypedLayout& b : form.b) check(b, 'x', 'k', form.k, 1, input_lanes, bits_of_type(b.type));
    check(form.d, 'i', 'j', form.m, 1, form.lanes, form.has("halves") ? 32 : bits_of_type(form.d.type));
  }
}

class Products : public testing::TestWithParam<MatrixNumerics> {
 protected:
  void SetUp() override { set_matrix_numerics(GetParam()); }
  void TearDown() override { set_matrix_numerics(MatrixNumerics::chain); }
};

TEST_P(Products, AreExactForSmallIntegers) {
  u32 seed = 1;
  size_t executed = 0;
  for (const Form& form : table().forms) {
    for (const Case& c : cases_of(form)) {
      ASSERT_TRUE(c.opcode) << form.name;
      EXPECT_EQ(Execution(c, ++seed).run(), "") << describe(c);
      ++executed;
    }
  }
  EXPECT_GT(executed, 1500u);
}
INSTANTIATE_TEST_SUITE_P(BothNumerics, Products, testing::Values(MatrixNumerics::chain, MatrixNumerics::hardware));

TEST(MatrixLayouts, ModifiersThatAFormDoesNotHaveAreRefused) {
  for (const Form& form : table().forms) {
    const auto refused = [&](const std::function<void(Case&)>& change) {
      Case c;
      c.form = &form;
      c.opcode = find_row(form.name, find_target(form.target)->family);
      change(c);
      Instruction in = instruction(c);
      const int wide = form.d.type == "f16" || form.d.type == "bf16" ? 4 : 8;
      for (Operand& o : in.operand) o = vgprs(0, wide);
      EXPECT_NE(c.opcode->bind(in, *find_target(form.target)), "") << describe(c);
    };
    const bool formats = form.a.size() > 1, sparse = !form.index.empty();
    if (formats) {
      refused([](Case& c) { c.a_format = 5; });
      refused([](Case& c) { c.b_format = 7; });
      refused([](Case& c) { c.abid = 1; });
      continue;
    }
    if (find_target(form.target)->cdna) {
      if (!form.has("blgp") && !form.has("neg")) refused([](Case& c) { c.blgp = 1; });
      if (!sparse) refused([&](Case& c) { c.cbsz = form.has("cbsz") ? 5 : 1; });
      refused([&](Case& c) { c.abid = sparse ? form.sets : 1; });
      refused([](Case& c) { c.neg_lo = 1; });
    } else {
      refused([](Case& c) { c.op_sel = 1; });
      if (!form.has("halves")) refused([](Case& c) { c.op_sel = 4; });
      refused([](Case& c) { c.op_sel_hi = 3; });
      if (form.has("iu")) refused([](Case& c) { c.neg_hi = 1; });
      if (sparse) refused([&](Case& c) { c.index_key = form.sets; });
      if (sparse) refused([](Case& c) { c.neg_lo = 4; });
    }
  }
}

TEST(MatrixLayouts, LanesThatAreNotReplicatedAreReported) {
  const Form* form = nullptr;
  for (const Form& f : table().forms) {
    if (f.name == "v_wmma_f32_16x16x16_f16" && f.target == "gfx1100" && f.lanes == 32) form = &f;
  }
  ASSERT_TRUE(form);
  Program program;
  program.target = find_target("gfx1100");
  program.text = {"v_wmma_f32_16x16x16_f16 v[4:11], v[64:71], v[96:103], v[4:11]"};
  Kernel kernel;
  LaunchLog log(program, kernel);
  Workgroup group;
  group.program = &program;
  group.kernel = &kernel;
  group.target = program.target;
  group.log = &log;
  WaveChecker checker{CheckOptions{}};
  const auto wave = std::make_unique<Wave>();
  std::fill_n(&wave->vgpr[0][0], kVectorRegisters * kLanes, 0u);
  wave->target = program.target;
  wave->lanes = 32;
  wave->group = &group;
  wave->checker = &checker;
  Case c;
  c.form = form;
  c.opcode = find_row(form->name, Family::gfx11);
  Instruction in = instruction(c);
  in.operand_count = 4;
  in.operand[0] = in.operand[3] = vgprs(kD, 8);
  in.operand[1] = vgprs(kA, 8);
  in.operand[2] = vgprs(kB, 8);
  in.execute(*wave, in);
  EXPECT_TRUE(log.empty());
  wave->vgpr[kB + 3][20] = 1;
  wave->checker = nullptr;
  in.execute(*wave, in);
  EXPECT_TRUE(log.empty()) << "reported although checking is off";
  wave->checker = &checker;
  in.execute(*wave, in);
  ASSERT_EQ(log.reports().size(), 1u);
  EXPECT_EQ(log.reports()[0].check, Check::replication);
  EXPECT_NE(log.reports()[0].message.find("v99"), std::string::npos) << log.reports()[0].message;
}

}  // namespace
