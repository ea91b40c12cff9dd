// Bytes of a code object -> Program.
#include <set>

#include "core/errors.h"
#include "load/disassembler.h"
#include "load/elf.h"
#include "load/parse.h"

namespace emu {
namespace {

struct Decoder {
  Program& program;
  std::unordered_map<u32, const Row*> rows;
  std::set<std::string> problems;

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

  void range(const CodeRange& code, Disassembler& disassembler) {
    for (u64 address = code.begin; address < code.end;) {
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
  Decoder decoder{*program, {}, {}};
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
