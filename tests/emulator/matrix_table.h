// matrix_layouts.txt as data, and the number types its matrices are made of.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/target.h"
#include "tests/paths.h"

namespace emu_test {
using namespace emu;
using Number = long double;  // exact for every sum of the tests

// --- the table -------------------------------------------------------------------------------------------------------
using Variables = std::array<int, 128>;  // by letter

// Integer expressions: + - * / % and parentheses over one-letter variables.
class Expression {
 public:
  explicit Expression(std::string text) : text_(std::move(text)) {}
  int value(const Variables& variables) const {
    size_t at = 0;
    const int result = sum(at, variables);
    if (at != text_.size()) throw std::runtime_error("cannot read '" + text_ + "'");
    return result;
  }

 private:
  void skip(size_t& at) const {
    while (at < text_.size() && text_[at] == ' ') ++at;
  }
  int sum(size_t& at, const Variables& v) const {
    int result = product(at, v);
    for (skip(at); at < text_.size() && (text_[at] == '+' || text_[at] == '-'); skip(at)) {
      const bool minus = text_[at++] == '-';
      const int term = product(at, v);
      result += minus ? -term : term;
    }
    return result;
  }
  int product(size_t& at, const Variables& v) const {
    int result = factor(at, v);
    const auto multiplies = [&] { return text_[at] == '*' || text_[at] == '/' || text_[at] == '%'; };
    for (skip(at); at < text_.size() && multiplies(); skip(at)) {
      const char operation = text_[at++];
      const int other = factor(at, v);
      result = operation == '*' ? result * other : operation == '/' ? result / other : result % other;
    }
    return result;
  }
  int factor(size_t& at, const Variables& v) const {
    skip(at);
    if (at == text_.size()) throw std::runtime_error("'" + text_ + "' ends too early");
    if (text_[at] == '(') {
      const int result = sum(++at, v);
      if (at >= text_.size() || text_[at++] != ')') throw std::runtime_error("no ) in '" + text_ + "'");
      return result;
    }
    if (std::isdigit(static_cast<unsigned char>(text_[at]))) {
      int result = 0;
      while (at < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at]))) {
        result = result * 10 + (text_[at++] - '0');
      }
      return result;
    }
    return v.at(static_cast<size_t>(text_[at++]));
  }
  std::string text_;
};

struct Layout {
  Expression lane{"0"}, bit{"0"};
};
struct Place {
  int lane, bit;
};
struct TypedLayout {
  std::string type, layout;
};
struct Form {
  std::string name, target;
  int lanes = 64;
  int m = 0, k = 0, blocks = 0;
  std::vector<TypedLayout> a, b;  // by format
  TypedLayout d;
  std::vector<int> clocks;
  std::set<std::string> notes;
  std::string index;  // layout of the indices of sparse forms
  int sets = 0;
  bool has(const char* note) const { return notes.count(note) > 0; }
};
struct Table {
  std::map<std::string, Layout> layouts;
  std::vector<Form> forms;
};

inline std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}
inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(trimmed(part));
  return parts;
}
inline std::vector<TypedLayout> typed_layouts(const std::string& text) {
  std::vector<TypedLayout> result;
  for (const std::string& part : split(text, ',')) {
    result.push_back({part.substr(0, part.find(':')), part.substr(part.find(':') + 1)});
  }
  return result;
}

inline Form parse_form(const std::vector<std::string>& field, const std::string& target) {
  Form form;
  form.name = field[0];
  form.target = target.substr(0, target.find('/'));
  form.lanes = target.find('/') == std::string::npos ? find_target(form.target)->wave_size
                                                     : std::stoi(target.substr(target.find('/') + 1));
  std::istringstream(field[2]) >> form.m >> form.k >> form.blocks;
  form.a = typed_layouts(field[3]);
  form.b = typed_layouts(field[4]);
  form.d = typed_layouts(field[5]).at(0);
  for (const std::string& number : split(field[6], ' ')) form.clocks.push_back(std::stoi(number));
  if (field.size() > 7) {
    for (const std::string& note : split(field[7], ' ')) {
      if (note.starts_with("index=")) {
        form.index = note.substr(6);
      } else if (note.starts_with("sets=")) {
        form.sets = std::stoi(note.substr(5));
      } else {
        form.notes.insert(note);
      }
    }
  }
  return form;
}

inline const Table& table() {
  static const Table all = [] {
    Table result;
    std::ifstream file(flashwave::paths::kMatrixLayouts);
    if (!file) throw std::runtime_error(std::string("cannot open ") + flashwave::paths::kMatrixLayouts);
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("layout ")) {
        const size_t equals = line.find('='), semicolon = line.find(';');
        result.layouts[trimmed(line.substr(7, equals - 7))] = {
            Expression(trimmed(line.substr(equals + 1, semicolon - equals - 1))),
            Expression(trimmed(line.substr(semicolon + 1)))};
      } else if (line.starts_with("form ")) {
        const std::vector<std::string> field = split(line.substr(5), '|');
        for (const std::string& target : split(field.at(1), ' ')) result.forms.push_back(parse_form(field, target));
      }
    }
    return result;
  }();
  return all;
}

// --- types -----------------------------------------------------------------------------------------------------------
struct SmallFloat {
  int exponent, fraction, bias;
};
inline const std::map<std::string, SmallFloat> kSmallFloats = {
    {"f16", {5, 10, 15}},     {"bf16", {8, 7, 127}}, {"fp8", {4, 3, 7}}, {"bf8", {5, 2, 15}}, {"fp8_fnuz", {4, 3, 8}},
    {"bf8_fnuz", {5, 2, 16}}, {"fp6", {2, 3, 1}},    {"bf6", {3, 2, 3}}, {"fp4", {2, 1, 1}}};

inline int bits_of_type(const std::string& type) {
  if (const auto found = kSmallFloats.find(type); found != kSmallFloats.end()) {
    return 1 + found->second.exponent + found->second.fraction;
  }
  return type == "f64" ? 64 : type == "i8" || type == "iu8" ? 8 : type == "iu4" ? 4 : 32;
}
// Finite numbers only. `is_signed`: of iu8 and iu4.
inline Number decode(const std::string& type, u64 code, bool is_signed = true) {
  if (const auto found = kSmallFloats.find(type); found != kSmallFloats.end()) {
    const SmallFloat& f = found->second;
    const int exponent = static_cast<int>(code >> f.fraction & ((1u << f.exponent) - 1));
    const int fraction = static_cast<int>(code & ((1u << f.fraction) - 1));
    const Number size = std::ldexp(static_cast<Number>(exponent ? fraction + (1 << f.fraction) : fraction),
                                   std::max(exponent, 1) - f.bias - f.fraction);
    return code >> (f.exponent + f.fraction) & 1 ? -size : size;
  }
  if (type == "f64") return as_f64(code);
  if (type == "f32" || type == "xf32") return as_f32(static_cast<u32>(code));
  const int bits = bits_of_type(type);
  if (is_signed && code >> (bits - 1) & 1) return static_cast<Number>(code) - std::ldexp(Number{1}, bits);
  return static_cast<Number>(code);
}
inline u64 encode(const std::string& type, int value) {
  if (type == "f64") return bits_of(static_cast<double>(value));
  if (type == "f32" || type == "xf32") return bits_of(static_cast<float>(value));
  const int bits = bits_of_type(type);
  if (!kSmallFloats.count(type)) return static_cast<u64>(value) & ((1ull << bits) - 1);
  static std::map<std::pair<std::string, int>, u64> known;
  const auto [entry, is_new] = known.try_emplace({type, value}, 0);
  if (is_new) {
    const u64 half = 1ull << (bits - 1);  // codes of numbers that are not negative
    while (entry->second < half && decode(type, entry->second) != std::abs(value)) ++entry->second;
    if (entry->second == half) throw std::logic_error(type + " has no " + std::to_string(value));
    if (value < 0) entry->second |= half;
  }
  return entry->second;
}
// A number every type of this width has, small enough that sums are exact in the result's type.
inline int random_value(const std::string& type, const std::string& result, bool is_signed, std::mt19937& random) {
  if (type == "iu4") return static_cast<int>(random() % 16) - (is_signed ? 8 : 0);
  if (type == "iu8" || type == "i8") return static_cast<int>(random() % 256) - (is_signed ? 128 : 0);
  const int limit = result == "bf16" ? 1 : result == "f16" || bits_of_type(type) < 16 ? 3 : 7;
  return static_cast<int>(random() % static_cast<u32>(2 * limit + 1)) - limit;
}

}  // namespace emu_test
