// flashwave-emu info and disasm: what is in a code object.
#include <algorithm>
#include <cstdio>

#include "core/report.h"
#include "hip/occupancy.h"
#include "tool/tool.h"

namespace emu::tool {

const char* const kInfoHelp =
    "usage: flashwave-emu info FILE [--arch gfxNNN]\n\n"
    "Prints the target of a code object and, for each kernel, its arguments, registers, LDS, scratch, spills, and how\n"
    "many waves fit on a SIMD and workgroups of its largest size on a compute unit.\n\n"
    "  --arch A   which code object of an offload bundle\n";

const char* const kDisasmHelp =
    "usage: flashwave-emu disasm FILE [--kernel K] [--arch gfxNNN]\n\n"
    "Prints address, encoding and text of each instruction, and source lines if there is debug information.\n\n"
    "  --kernel K   from this kernel's entry to the next one's\n"
    "  --arch A     which code object of an offload bundle\n";

namespace {

constexpr size_t kShownRepeats = 4;

void print_kernel(const Program& program, const Kernel& kernel) {
  const Target& target = *program.target;
  const hip::Occupancy fit = hip::occupancy(target, kernel, kernel.max_workgroup, 0);
  std::printf("\nkernel %s\n", kernel.name.c_str());
  std::printf("  wave size %d, workgroups of at most %u work-items\n", kernel.wave_size, kernel.max_workgroup);
  std::printf("  VGPRs %u, AGPRs %u, SGPRs %u (%u registers a lane allocated)\n", kernel.vgprs, kernel.agprs,
              kernel.sgprs, fit.vgprs);
  std::printf("  spills: %u VGPRs, %u SGPRs\n", kernel.vgpr_spills, kernel.sgpr_spills);
  std::printf("  LDS %u bytes, scratch %u bytes a lane%s\n", kernel.lds_bytes, kernel.scratch_bytes,
              kernel.uses_dynamic_stack ? ", dynamic stack" : "");
  std::printf("  occupancy: %u of %u waves a SIMD; %u workgroups of %u work-items a compute unit, limited by %s\n",
              fit.waves_per_simd, target.max_waves_per_simd, fit.blocks_per_cu, kernel.max_workgroup, fit.limit);
  std::printf("  arguments: %u bytes\n", kernel.kernarg_bytes);
  for (const Argument& argument : kernel.arguments) {
    std::printf("    %4u  %3u bytes  %-28s %s\n", argument.offset, argument.size, argument.kind.c_str(),
                argument.name.c_str());
  }
}

// Where the kernels begin, for headings and to find where one ends.
std::map<u64, const Kernel*> entries_of(const Program& program) {
  std::map<u64, const Kernel*> entries;
  for (const auto& [name, kernel] : program.kernels) entries[kernel.entry] = &kernel;
  return entries;
}

const std::string& only_word(const CommandLine& line) {
  if (line.words().size() != 1) throw UsageError("one FILE is expected");
  return line.words().front();
}

}  // namespace

int info_command(const std::vector<std::string>& words) {
  const CommandLine line(words, {{"--arch", 1}});
  const std::unique_ptr<Program> program = load_file(only_word(line), line.value("--arch", ""));
  std::printf("target %s (%s), %zu instructions, image of %llu bytes\n", program->target->name.c_str(),
              program->target->title.c_str(), program->code.size(),
              static_cast<unsigned long long>(program->image_bytes));
  for (const auto& [name, place] : program->globals) {
    std::printf("variable %s: %llu bytes at 0x%llx\n", name.c_str(), static_cast<unsigned long long>(place.second),
                static_cast<unsigned long long>(place.first));
  }
  for (const auto& [name, kernel] : program->kernels) print_kernel(*program, kernel);
  return 0;
}

int disasm_command(const std::vector<std::string>& words) {
  const CommandLine line(words, {{"--arch", 1}, {"--kernel", 1}});
  const std::unique_ptr<Program> program = load_file(only_word(line), line.value("--arch", ""));
  const std::map<u64, const Kernel*> entries = entries_of(*program);
  u64 begin = 0, end = ~0ull;
  if (line.has("--kernel")) {
    begin = choose_kernel(*program, line.value("--kernel", "")).entry;
    const auto next = entries.upper_bound(begin);
    if (next != entries.end()) end = next->first;
  }
  SourceLine last;
  size_t repeated = 0;  // kernels are padded with hundreds of s_nop or s_code_end
  const auto end_of_run = [&] {
    if (repeated > kShownRepeats) std::printf("          ... %zu more of these\n", repeated - kShownRepeats);
  };
  for (const Instruction& in : program->code) {
    if (in.address < begin || in.address >= end) continue;
    const bool again = in.index > 0 && program->text[in.index] == program->text[in.index - 1];
    if (!again) end_of_run();
    repeated = again ? repeated + 1 : 0;
    if (repeated > kShownRepeats && !entries.contains(in.address)) continue;
    if (const auto entry = entries.find(in.address); entry != entries.end()) {
      std::printf("\n%s:\n", entry->second->name.c_str());
    }
    const SourceLine source = program->line_of(in.address);
    if (source.line != 0 && (source.line != last.line || source.file != last.file)) {
      std::printf("; %s:%u\n", source.file.c_str(), source.line);
      last = source;
    }
    char encoding[24];
    if (in.size > 4) {
      std::snprintf(encoding, sizeof encoding, "%08x %08x", in.word[0], in.word[1]);
    } else {
      std::snprintf(encoding, sizeof encoding, "%08x", in.word[0]);
    }
    std::printf("%8llx  %-17s  %s\n", static_cast<unsigned long long>(in.address), encoding,
                program->text[in.index].c_str());
  }
  end_of_run();
  return 0;
}

}  // namespace emu::tool
