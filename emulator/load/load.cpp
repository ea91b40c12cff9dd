// Bytes of a code object -> Program.
#include <array>
#include <set>

#include "core/errors.h"
#include "load/disassembler.h"
#include "load/elf.h"
#include "load/parse.h"

namespace emu {
namespace {

// Instructions by their bytes. How long one is, its first word says, or the first two; so the bytes of one are never
// the beginning of another.
class Encodings {
 public:
  // The index of an instruction with the bytes that begin here, and its size; -1 if none is known.
  int find(const u8* bytes, size_t available, size_t& size) const {
    for (size = 4; size <= std::min(available, kMost); size += 4) {
      const auto found = known_.find(key_of(bytes, size));
      if (found != known_.end()) return static_cast<int>(found->second);
    }
    return -1;
  }
  void add(const u8* bytes, size_t size, u32 index) {
    if (size <= kMost) known_.emplace(key_of(bytes, size), index);
  }

 private:
  static constexpr size_t kMost = 12;
  using Key = std::array<u32, 4>;  // the size, the words
  struct Hash {
    size_t operator()(const Key& key) const {
      u64 hash = 0;
      for (const u32 word : key) hash = (hash ^ word) * 0x9E3779B97F4A7C15 >> 7;
      return hash;
    }
  };
  static Key key_of(const u8* bytes, size_t size) {
    Key key = {static_cast<u32>(size)};
    std::memcpy(&key[1], bytes, size);
    return key;
  }
  std::unordered_map<Key, u32, Hash> known_;
};

struct Decoder {
  Program& program;
  std::unordered_map<u32, const Row*> rows;
  std::set<std::string> problems;
  Encodings encodings;

  void give_rows(Instruction& in) {
    for (int i = 0; i < in.operand_count; ++i) {
      Operand& o = in.operand[i];
      const bool moved = in.dpp != DppKind::none && i == in.dest_count;
      o.plain = (o.is_vgpr() || o.is_constant()) && !o.negate && !o.absolute && !moved && o.sdwa_select == 6 &&
                o.half == Half::whole;
      if (i < in.dest_count) o.plain &= o.is_vgpr() && in.sdwa_dest_select == 6 && !in.omod && !in.clamp;
      if (!o.is_constant()) continue;
      const u32 value = static_cast<u32>(o.constant);
      const Row*& row = rows[value];
      if (!row) {
        Row& fresh = program.constant_rows.emplace_back();
        for (u32& lane : fresh.lane) lane = value;
        row = &fresh;
      }
      o.broadcast = row;
    }
  }

  Instruction one(const std::string& text, const Instruction& place) {
    Instruction in = place;
    if (std::string problem = parse_instruction(text, *program.target, in); !problem.empty()) problems.insert(problem);
    give_rows(in);
    return in;
  }

  // What was decoded before is copied: most instructions of kernels that are variants of one another.
  void again(const Instruction& before, u64 address) {
    Instruction in = before;
    in.address = address;
    in.index = static_cast<u32>(program.code.size());
    if (in.second) {
      program.second_halves.push_back(*in.second);
      Instruction& second = program.second_halves.back();
      second.address = in.address;
      second.index = in.index;
      in.second = &second;
    }
    program.index_of[address] = in.index;
    program.text.push_back(std::string(program.text[before.index]));
    program.code.push_back(in);
  }

  void range(const CodeRange& code, Disassembler& disassembler) {
    for (u64 address = code.begin; address < code.end;) {
      size_t known_size = 0;
      if (const int known = encodings.find(program.image + address, code.end - address, known_size); known >= 0) {
        again(program.code[static_cast<size_t>(known)], address);
        address += known_size;
        continue;
      }
      std::string text;
      const size_t size = disassembler.one(program.image + address, code.end - address, text);
      if (size == 0) {
        char where[64];
        snprintf(where, sizeof where, "bytes at %#llx are no instruction", static_cast<unsigned long long>(address));
        problems.insert(where);
        return;
      }
      Instruction place;
      place.address = address;
      place.size = static_cast<u8>(size);
      place.index = static_cast<u32>(program.code.size());
      std::memcpy(place.word, program.image + address, std::min<size_t>(size, 8));
      program.index_of[address] = place.index;
      const size_t pair = text.find(" :: ");
      Instruction in = one(text.substr(0, pair), place);
      if (pair != std::string::npos) {
        program.second_halves.push_back(one(text.substr(pair + 4), place));
        in.second = &program.second_halves.back();
      }
      encodings.add(program.image + address, size, in.index);
      program.code.push_back(in);
      program.text.push_back(text);
      address += size;
    }
  }
};

void link_branches(Program& program) {
  for (Instruction& in : program.code) {
    if (in.cls != Class::branch) continue;
    const u64 to = in.address + 4 + static_cast<u64>(static_cast<i64>(in.simm16) * 4);
    const auto found = program.index_of.find(to);
    if (found != program.index_of.end()) in.target = static_cast<int>(found->second);
  }
}

}  // namespace

std::unique_ptr<Program> load_program(const void* bytes, size_t size) {
  auto program = std::make_unique<Program>();
  const u8* begin = static_cast<const u8*>(bytes);
  program->file.assign(begin, begin + size);
  const std::vector<CodeRange> ranges = read_elf(*program);
  Disassembler disassembler(*program->target);
  Decoder decoder{*program, {}, {}, {}};
  for (const CodeRange& range : ranges) decoder.range(range, disassembler);
  if (!decoder.problems.empty()) {
    std::string message = "code object for " + program->target->name + " cannot be emulated:";
    for (const std::string& problem : decoder.problems) message += "\n  " + problem;
    throw LoadError(message);
  }
  link_branches(*program);
  for (const auto& [name, kernel] : program->kernels) {
    if (!program->index_of.count(kernel.entry)) throw LoadError("kernel " + name + " starts outside the code");
  }
  return program;
}

}  // namespace emu
