// Source lines of instructions, from the line table of DWARF 4 and 5 (DWARF 5 standard, section 6.2).
#include <elf.h>

#include <algorithm>
#include <optional>

#include "core/program.h"

namespace emu {
namespace {

struct Bytes {
  const u8 *at = nullptr, *end = nullptr;
  bool ok = true;

  u64 fixed(int size) {
    u64 value = 0;
    if (end - at < size) return ok = false, 0;
    std::memcpy(&value, at, static_cast<size_t>(size));
    at += size;
    return value;
  }
  u64 uleb() {
    u64 value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const u64 byte = fixed(1);
      value |= (byte & 0x7f) << shift;
      if (!(byte & 0x80)) return value;
    }
    return value;
  }
  i64 sleb() {
    u64 value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const u64 byte = fixed(1);
      value |= (byte & 0x7f) << shift;
      if (byte & 0x80) continue;
      if (byte & 0x40 && shift + 7 < 64) value |= ~0ull << (shift + 7);
      return static_cast<i64>(value);
    }
    return static_cast<i64>(value);
  }
  std::string text() {
    std::string s;
    while (ok) {
      const char c = static_cast<char>(fixed(1));
      if (!c) break;
      s += c;
    }
    return s;
  }
  void skip(u64 bytes) {
    if (static_cast<u64>(end - at) < bytes)
      ok = false;
    else
      at += bytes;
  }
};

Bytes section(const std::vector<u8>& file, const std::string& wanted) {
  Elf64_Ehdr header;
  if (file.size() < sizeof header) return {};
  std::memcpy(&header, file.data(), sizeof header);
  auto section_at = [&](u64 i) -> std::optional<Elf64_Shdr> {
    Elf64_Shdr s;
    const u64 offset = header.e_shoff + i * sizeof s;
    if (offset + sizeof s > file.size()) return std::nullopt;
    std::memcpy(&s, file.data() + offset, sizeof s);
    if (s.sh_type != SHT_NOBITS && (s.sh_offset > file.size() || s.sh_size > file.size() - s.sh_offset))
      return std::nullopt;
    return s;
  };
  const auto names = section_at(header.e_shstrndx);
  for (u64 i = 0; names && i < header.e_shnum; ++i) {
    const auto s = section_at(i);
    if (!s || s->sh_name >= names->sh_size) continue;
    const char* name = reinterpret_cast<const char*>(file.data() + names->sh_offset + s->sh_name);
    if (wanted != std::string(name, strnlen(name, names->sh_size - s->sh_name))) continue;
    if (s->sh_flags & SHF_COMPRESSED) return {};
    return {file.data() + s->sh_offset, file.data() + s->sh_offset + s->sh_size};
  }
  return {};
}

std::string text_at(const Bytes& strings, u64 offset) {
  if (offset >= static_cast<u64>(strings.end - strings.at)) return "";
  Bytes b = strings;
  b.skip(offset);
  return b.text();
}

struct LineTable {
  Bytes program;
  std::vector<std::string> directories, files;  // as numbered in the table
  u64 min_length = 1, line_range = 1, opcode_base = 13;
  i64 line_base = 0;
  std::vector<u8> lengths;
};

enum Form : u64 {
  kString = 0x08,
  kUdata = 0x0f,
  kStrp = 0x0e,
  kLineStrp = 0x1f,
  kData16 = 0x1e,
  kData1 = 0x0b,
  kData2 = 0x05,
  kData4 = 0x06,
  kBlock = 0x09
};
constexpr u64 kContentPath = 1, kContentDirectory = 2;

// A list of directories or files of DWARF 5: formats first, then entries.
void read_entries(Bytes& b, const Bytes& line_strings, const Bytes& strings,
                  const std::vector<std::string>* directories, std::vector<std::string>& out) {
  std::vector<std::pair<u64, u64>> formats;
  for (u64 n = b.fixed(1); n > 0 && b.ok; --n) {
    const u64 content = b.uleb();
    formats.emplace_back(content, b.uleb());
  }
  for (u64 n = b.uleb(); n > 0 && b.ok; --n) {
    std::string path;
    u64 directory = 0;
    for (const auto& [content, form] : formats) {
      std::string text;
      u64 number = 0;
      switch (form) {
        case kString:
          text = b.text();
          break;
        case kLineStrp:
          text = text_at(line_strings, b.fixed(4));
          break;
        case kStrp:
          text = text_at(strings, b.fixed(4));
          break;
        case kUdata:
          number = b.uleb();
          break;
        case kData1:
          number = b.fixed(1);
          break;
        case kData2:
          number = b.fixed(2);
          break;
        case kData4:
          number = b.fixed(4);
          break;
        case kData16:
          b.skip(16);
          break;
        case kBlock:
          b.skip(b.uleb());
          break;
        default:
          b.ok = false;
      }
      if (content == kContentPath) path = text;
      if (content == kContentDirectory) directory = number;
    }
    if (directories && directory > 0 && directory < directories->size() && !path.starts_with("/")) {
      path = (*directories)[directory] + "/" + path;
    }
    out.push_back(path);
  }
}

void read_version4_names(Bytes& b, LineTable& t) {
  t.directories.emplace_back();
  for (std::string name = b.text(); b.ok && !name.empty(); name = b.text()) t.directories.push_back(name);
  t.files.emplace_back();
  for (std::string name = b.text(); b.ok && !name.empty(); name = b.text()) {
    const u64 directory = b.uleb();
    b.uleb();
    b.uleb();
    if (directory > 0 && directory < t.directories.size() && !name.starts_with("/")) {
      name = t.directories[directory] + "/" + name;
    }
    t.files.push_back(name);
  }
}

std::optional<LineTable> next_table(Bytes& all, const Bytes& line_strings, const Bytes& strings) {
  const u64 length = all.fixed(4);
  if (!all.ok || length == 0xffffffff || length > static_cast<u64>(all.end - all.at)) return std::nullopt;
  Bytes b{all.at, all.at + length};
  all.skip(length);
  LineTable t;
  const u64 version = b.fixed(2);
  if (version < 4 || version > 5) return std::nullopt;
  if (version == 5) b.skip(2);  // address and segment selector sizes
  const u64 header = b.fixed(4);
  t.program = b;
  t.program.skip(header);
  t.min_length = b.fixed(1);
  b.skip(1);  // maximum operations per instruction
  b.skip(1);  // default is_stmt
  t.line_base = static_cast<i8>(b.fixed(1));
  t.line_range = b.fixed(1);
  t.opcode_base = b.fixed(1);
  for (u64 i = 1; i < t.opcode_base; ++i) t.lengths.push_back(static_cast<u8>(b.fixed(1)));
  if (version == 5) {
    read_entries(b, line_strings, strings, nullptr, t.directories);
    read_entries(b, line_strings, strings, &t.directories, t.files);
  } else {
    read_version4_names(b, t);
  }
  return b.ok && t.program.ok && t.line_range ? std::optional(t) : std::nullopt;
}

// Runs the line program until it has passed `wanted`.
SourceLine search(LineTable& t, u64 wanted) {
  Bytes& b = t.program;
  u64 address = 0, file = 1;
  i64 line = 1;
  u64 last_address = ~0ull, last_file = 1;
  i64 last_line = 0;
  SourceLine found;
  auto emit = [&](bool ends_sequence) {
    if (last_address <= wanted && wanted < address && last_line > 0) {
      found = {last_file < t.files.size() ? t.files[last_file] : "", static_cast<u32>(last_line)};
    }
    last_address = ends_sequence ? ~0ull : address;
    last_file = file;
    last_line = line;
  };
  while (b.ok && b.at < b.end && !found.line) {
    const u64 opcode = b.fixed(1);
    if (opcode >= t.opcode_base) {
      const u64 adjusted = opcode - t.opcode_base;
      address += adjusted / t.line_range * t.min_length;
      line += t.line_base + static_cast<i64>(adjusted % t.line_range);
      emit(false);
      continue;
    }
    switch (opcode) {
      case 0: {  // extended
        const u64 length = b.uleb();
        Bytes body{b.at, b.at + std::min<u64>(length, static_cast<u64>(b.end - b.at))};
        b.skip(length);
        const u64 kind = body.fixed(1);
        if (kind == 1) {  // end of sequence
          emit(true);
          address = 0, file = 1, line = 1;
        } else if (kind == 2) {
          address = body.fixed(8);
        }
        break;
      }
      case 1:
        emit(false);
        break;
      case 2:
        address += b.uleb() * t.min_length;
        break;
      case 3:
        line += b.sleb();
        break;
      case 4:
        file = b.uleb();
        break;
      case 8:
        address += (255 - t.opcode_base) / t.line_range * t.min_length;
        break;
      case 9:
        address += b.fixed(2);
        break;
      default:
        for (int i = 0; i < t.lengths[opcode - 1]; ++i) b.uleb();
    }
  }
  return found;
}

}  // namespace

SourceLine Program::line_of(u64 address) const {
  Bytes all = section(file, ".debug_line");
  const Bytes line_strings = section(file, ".debug_line_str"), strings = section(file, ".debug_str");
  while (all.at && all.at < all.end) {
    auto table = next_table(all, line_strings, strings);
    if (!table) break;
    if (SourceLine found = search(*table, address); found.line) return found;
  }
  return {};
}

}  // namespace emu
