#include "tool/arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "tool/tool.h"

namespace emu::tool {

const char* const kArgumentHelp =
    "An ARG is one of\n"
    "  i8: u8: i16: u16: i32: u32: i64: u64: N     an integer, decimal or 0x hexadecimal\n"
    "  f16: bf16: f32: f64: X                      a number\n"
    "  hex:BYTES                                   a struct by value, two digits a byte\n"
    "  buf:SIZE[:PATTERN][:out=FILE]               device memory of SIZE bytes (16K, 2M), its address is passed.\n"
    "     PATTERN: zero, ones (0x01 bytes), poison (0xff bytes, the default), iota32 (0, 1, 2, ... as i32),\n"
    "     randn32, randn16, randnbf16 (N(0,1), the same in every run), file=F (the rest is poison).\n"
    "     out=FILE: the contents after the run are written there\n";

namespace {

struct Type {
  const char* name;
  u32 bytes;
  enum Kind { integer, floating } kind;
  bool is_signed;
};

constexpr Type kTypes[] = {
    {"i8", 1, Type::integer, true},    {"u8", 1, Type::integer, false},  {"i16", 2, Type::integer, true},
    {"u16", 2, Type::integer, false},  {"i32", 4, Type::integer, true},  {"u32", 4, Type::integer, false},
    {"i64", 8, Type::integer, true},   {"u64", 8, Type::integer, false}, {"f16", 2, Type::floating, true},
    {"bf16", 2, Type::floating, true}, {"f32", 4, Type::floating, true}, {"f64", 8, Type::floating, true},
};

const Type* find_type(const std::string& name) {
  for (const Type& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

std::vector<u8> bytes_of(u64 bits, u32 count) {
  std::vector<u8> bytes(count);
  std::memcpy(bytes.data(), &bits, count);
  return bytes;
}

u64 float_bits(const std::string& type, double value) {
  if (type == "f16") return f16_of_f32(static_cast<float>(value));
  if (type == "bf16") return bf16_of_f32(static_cast<float>(value));
  if (type == "f32") return bits_of(static_cast<float>(value));
  return bits_of(value);
}

double float_value(const std::string& type, u64 bits) {
  if (type == "f16") return f32_of_f16(static_cast<u32>(bits));
  if (type == "bf16") return f32_of_bf16(static_cast<u32>(bits));
  if (type == "f32") return as_f32(static_cast<u32>(bits));
  return as_f64(bits);
}

u64 integer_bits(const Type& type, const std::string& text, const std::string& word) {
  const bool negative = text.starts_with("-");
  const u64 magnitude = parse_unsigned(negative ? text.substr(1) : text, word);
  const u32 width = type.bytes * 8;
  const u64 top = type.is_signed ? (1ull << (width - 1)) - (negative ? 0 : 1) : ~0ull >> (64 - width);
  if ((negative && !type.is_signed) || magnitude > top) {
    throw UsageError(word + ": the number does not fit in " + type.name);
  }
  return negative ? 0 - magnitude : magnitude;
}

std::vector<u8> scalar(const Type& type, const std::string& text, const std::string& word) {
  if (type.kind == Type::integer) return bytes_of(integer_bits(type, text, word), type.bytes);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') throw UsageError(word + ": '" + text + "' is not a number");
  return bytes_of(float_bits(type.name, value), type.bytes);
}

std::vector<u8> hex_bytes(const std::string& digits, const std::string& word) {
  std::vector<u8> bytes(digits.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char* at = digits.data() + 2 * i;
    const auto [end, error] = std::from_chars(at, at + 2, bytes[i], 16);
    if (error != std::errc() || end != at + 2) throw UsageError(word + ": two hexadecimal digits a byte are expected");
  }
  if (digits.size() % 2 != 0) throw UsageError(word + ": an odd number of digits");
  return bytes;
}

size_t parse_size(std::string text, const std::string& word) {
  u64 unit = 1;
  if (text.ends_with("K")) unit = 1 << 10;
  if (text.ends_with("M")) unit = 1 << 20;
  if (unit > 1) text.pop_back();
  const u64 size = parse_unsigned(text, word);
  if (size == 0 || size > (1ull << 40) / unit) throw UsageError(word + ": SIZE must be from 1 byte to 1 TiB");
  return size * unit;
}

template <class Element, class Make>
void fill_elements(Buffer& buffer, Make&& make) {
  for (size_t i = 0; i < buffer.bytes / sizeof(Element); ++i) {
    const Element value = static_cast<Element>(make(i));
    std::memcpy(buffer.data + i * sizeof(Element), &value, sizeof value);
  }
}

void fill(Buffer& buffer, const std::string& pattern, size_t argument) {
  std::mt19937_64 random(0x9e3779b97f4a7c15ull + argument);
  std::normal_distribution<float> normal;
  if (pattern == "zero") {
    std::memset(buffer.data, 0, buffer.bytes);
  } else if (pattern == "ones") {
    std::memset(buffer.data, 1, buffer.bytes);
  } else if (pattern == "poison") {
    std::memset(buffer.data, 0xff, buffer.bytes);
  } else if (pattern == "iota32") {
    fill_elements<u32>(buffer, [](size_t i) { return i; });
  } else if (pattern == "randn32") {
    fill_elements<u32>(buffer, [&](size_t) { return bits_of(normal(random)); });
  } else if (pattern == "randn16") {
    fill_elements<u16>(buffer, [&](size_t) { return f16_of_f32(normal(random)); });
  } else if (pattern == "randnbf16") {
    fill_elements<u16>(buffer, [&](size_t) { return bf16_of_f32(normal(random)); });
  } else if (pattern.starts_with("file=")) {
    const std::string path = pattern.substr(5);
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error(path + ": cannot be read");
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (bytes.size() > buffer.bytes) {
      throw UsageError(buffer.word + ": the file has " + std::to_string(bytes.size()) + " bytes");
    }
    std::copy(bytes.begin(), bytes.end(), buffer.data);
  } else {
    throw UsageError(buffer.word + ": '" + pattern +
                     "' is not a pattern: zero, ones, poison, iota32, randn32, randn16, randnbf16, file=F");
  }
}

// Between colons; file names may not hold one.
std::vector<std::string> parts_of(const std::string& word) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= word.size();) {
    const size_t end = std::min(word.find(':', begin), word.size());
    parts.push_back(word.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Buffer make_buffer(const std::string& word, const std::vector<std::string>& parts, size_t argument,
                   hip::MemoryPool& memory) {
  if (parts.size() < 2) throw UsageError(word + ": buf:SIZE is expected");
  Buffer buffer;
  buffer.word = word;
  buffer.bytes = parse_size(parts[1], word);
  std::string pattern;
  for (size_t i = 2; i < parts.size(); ++i) {
    const bool out = parts[i].starts_with("out=");
    std::string& place = out ? buffer.out_file : pattern;
    if (!place.empty()) throw UsageError(word + ": '" + parts[i] + "' comes second");
    place = out ? parts[i].substr(4) : parts[i];
  }
  buffer.data = static_cast<u8*>(memory.allocate(buffer.bytes, hip::Home::device, 0, 0));
  if (buffer.data == nullptr) throw std::runtime_error(word + ": there is not that much memory");
  fill(buffer, pattern.empty() ? "poison" : pattern, argument);
  return buffer;
}

}  // namespace

Arguments parse_arguments(const std::vector<std::string>& words, hip::MemoryPool& memory) {
  Arguments arguments;
  for (const std::string& word : words) {
    const std::vector<std::string> parts = parts_of(word);
    const Type* type = find_type(parts[0]);
    Value value{word, {}};
    if (parts[0] == "buf") {
      arguments.buffers.push_back(make_buffer(word, parts, arguments.values.size(), memory));
      value.bytes = bytes_of(reinterpret_cast<u64>(arguments.buffers.back().data), 8);
    } else if (type != nullptr && parts.size() == 2) {
      value.bytes = scalar(*type, parts[1], word);
    } else if (parts[0] == "hex" && parts.size() == 2) {
      value.bytes = hex_bytes(parts[1], word);
    } else {
      throw UsageError("'" + word + "' is not an argument of a kernel\n" + kArgumentHelp);
    }
    arguments.values.push_back(std::move(value));
  }
  return arguments;
}

std::vector<u8> pack(const std::vector<Value>& values, const Kernel& kernel) {
  std::vector<const Argument*> wanted;
  for (const Argument& argument : kernel.arguments) {
    if (!argument.hidden()) wanted.push_back(&argument);
  }
  std::vector<u8> packed;
  const auto put = [&](size_t offset, const std::vector<u8>& bytes) {
    packed.resize(std::max(packed.size(), offset + bytes.size()));
    std::copy(bytes.begin(), bytes.end(), packed.begin() + static_cast<std::ptrdiff_t>(offset));
  };
  if (wanted.empty()) {
    for (const Value& value : values) {
      const size_t alignment = std::min<size_t>(value.bytes.size(), 8);
      put(alignment == 0 ? packed.size() : (packed.size() + alignment - 1) / alignment * alignment, value.bytes);
    }
    return packed;
  }
  if (values.size() != wanted.size()) {
    throw UsageError(kernel.name + " takes " + std::to_string(wanted.size()) + " arguments, got " +
                     std::to_string(values.size()) + "; 'info' lists them");
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].bytes.size() != wanted[i]->size) {
      throw UsageError(values[i].word + ": argument " + std::to_string(i) + " of " + kernel.name +
                       (wanted[i]->name.empty() ? "" : " (" + wanted[i]->name + ")") + " has " +
                       std::to_string(wanted[i]->size) + " bytes");
    }
    put(wanted[i]->offset, values[i].bytes);
  }
  return packed;
}

std::string print_elements(const Buffer& buffer, size_t count, const std::string& type_name) {
  const Type* type = find_type(type_name);
  if (type == nullptr) throw UsageError("--print takes a count and a type (i8 .. u64, f16, bf16, f32, f64)");
  std::string text;
  for (size_t i = 0; i < std::min(count, buffer.bytes / type->bytes); ++i) {
    u64 bits = 0;
    std::memcpy(&bits, buffer.data + i * type->bytes, type->bytes);
    char number[40];
    if (type->kind == Type::floating) {
      std::snprintf(number, sizeof number, "%.9g", float_value(type->name, bits));
    } else if (type->is_signed) {
      const u32 unused = 64 - type->bytes * 8;
      std::snprintf(number, sizeof number, "%lld", static_cast<long long>(static_cast<i64>(bits << unused) >> unused));
    } else {
      std::snprintf(number, sizeof number, "%llu", static_cast<unsigned long long>(bits));
    }
    text += (text.empty() ? "" : " ") + std::string(number);
  }
  return text;
}

}  // namespace emu::tool
