// flashwave-emu run: one launch, with everything that can be seen of it.
#include <cstdio>
#include <fstream>
#include <map>

#include "core/launch.h"
#include "count/bounds.h"
#include "count/issue_model.h"
#include "hip/settings.h"
#include "isa/matrix.h"
#include "tool/arguments.h"
#include "tool/tool.h"

namespace emu::tool {

const char* const kRunHelp =
    "usage: flashwave-emu run FILE --kernel K --grid X[,Y,Z] --block X[,Y,Z] [options] ARG...\n\n"
    "Executes a kernel on the emulator. Exit status 1 if it does not finish or a checker reports something.\n\n"
    "  --kernel K       may be left out if there is only one\n"
    "  --grid X,Y,Z     workgroups (default 1)\n"
    "  --block X,Y,Z    work-items of a workgroup (default: one wave)\n"
    "  --lds N          bytes of dynamic LDS\n"
    "  --arch A         which code object of an offload bundle\n"
    "  --check LIST     only these checkers (all, wait, lds_race, uninitialised, bounds, ...)\n"
    "  --no-check       none but bounds\n"
    "  --hazards WHOSE  wait states that a compiler (default) keeps, or those that hand-written assembly does\n"
    "  --counters       print what was executed; --json as one JSON object\n"
    "  --model          how the instructions of the first workgroup might issue, for ranking only\n"
    "  --numerics N     how matrix instructions round sums: chain (default) or hardware\n"
    "  --trace FILE     every instruction with what it wrote, FILE - for standard output\n"
    "  --order ORDER    of the waves of a workgroup: waves (default: one after the other, up to its next barrier),\n"
    "                   lockstep (every wave one instruction in turn), or compare (both; says whether they differ)\n"
    "  --seed N         random order of waves and workgroups; --reverse: workgroups from last to first\n"
    "  --threads N      workgroups at a time (default: one per core)\n"
    "  --print N TYPE   the first N elements of each buffer afterwards\n\n";

namespace {

void parse_extent(const std::string& text, const std::string& option, u32 (&extent)[3]) {
  size_t begin = 0;
  for (int i = 0; i < 3 && begin <= text.size(); ++i) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const u64 number = parse_unsigned(text.substr(begin, end - begin), option);
    if (number == 0 || number > 0x7fffffff) throw UsageError(option + " must be numbers from 1, got " + text);
    extent[i] = static_cast<u32>(number);
    begin = end + 1;
  }
  if (begin <= text.size()) throw UsageError(option + " takes at most three numbers, got " + text);
}

// Writes a line for each instruction: who, where, what, the destinations afterwards (vectors: the first lanes), and for
// LDS instructions the address register of every active lane.
class Tracer {
 public:
  Tracer(const std::string& path, const Program& program) : program_(program) {
    file_ = path == "-" ? stdout : std::fopen(path.c_str(), "w");
    if (file_ == nullptr) throw std::runtime_error(path + ": cannot be written");
  }
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;
  ~Tracer() {
    if (file_ != stdout) std::fclose(file_);
  }

  void write(const Wave& wave, const Instruction& in) {
    const u32* group = wave.group->id;
    std::fprintf(file_, "%u,%u,%u wave %d  %6llx  %s", group[0], group[1], group[2], wave.id,
                 static_cast<unsigned long long>(in.address), program_.text[in.index].c_str());
    if (in.dest_count > 0) std::fprintf(file_, "  ; exec=%llx", static_cast<unsigned long long>(wave.exec()));
    for (int i = 0; i < in.dest_count; ++i) write_operand(wave, in.operand[i]);
    std::fprintf(file_, "%s\n", addresses_[wave.id].c_str());
    addresses_[wave.id] = next_addresses(wave);
  }

 private:
  static constexpr int kShownLanes = 4;

  // A load may overwrite its address, so that has to be looked at after the instruction before.
  std::string next_addresses(const Wave& wave) const {
    if (wave.pc >= program_.code.size()) return "";
    const Instruction& next = program_.code[wave.pc];
    const bool lds = next.cls == Class::lds_read || next.cls == Class::lds_write || next.cls == Class::lds_atomic;
    if (!lds || next.operand_count <= next.dest_count || !next.source(0).is_vgpr()) return "";
    std::string text = "  ; lds";
    for (u64 lanes = wave.exec(); lanes; lanes &= lanes - 1) {
      char address[16];
      std::snprintf(address, sizeof(address), " %x", wave.vgpr[next.source(0).reg][__builtin_ctzll(lanes)]);
      text += address;
    }
    return text;
  }

  void write_operand(const Wave& wave, const Operand& operand) {
    for (u32 i = 0; i < operand.width; ++i) {
      const u32 reg = operand.reg + i;
      if (operand.is_sgpr() && reg < kScalarRegisters) {
        std::fprintf(file_, " s[%u]=%x", reg, wave.sgpr[reg]);
      } else if (operand.is_vgpr()) {
        std::fprintf(file_, " %c%u=", reg >= kFirstAgpr ? 'a' : 'v', reg % kFirstAgpr);
        for (int lane = 0; lane < kShownLanes; ++lane) {
          std::fprintf(file_, "%s%x", lane > 0 ? "," : "", wave.vgpr[reg][lane]);
        }
      }
    }
  }

  const Program& program_;
  std::FILE* file_;
  std::map<int, std::string> addresses_;  // of the next instruction of each wave
};

RunOptions read_options(const CommandLine& line) {
  RunOptions options;
  if (line.has("--json") && !line.has("--counters")) throw UsageError("--json goes with --counters");
  const std::string numerics = line.value("--numerics", "chain");
  if (numerics != "chain" && numerics != "hardware") throw UsageError("--numerics must be chain or hardware");
  set_matrix_numerics(numerics == "hardware" ? MatrixNumerics::hardware : MatrixNumerics::chain);
  if (line.has("--no-check") && line.has("--check")) throw UsageError("--check and --no-check exclude each other");
  options.check = !line.has("--no-check");
  if (line.has("--check")) {
    const std::string wrong = hip::parse_checks(line.value("--check", ""), &options.checks.enabled);
    if (!wrong.empty()) throw UsageError("--check " + wrong);
  }
  const std::string wrong_hazards =
      hip::parse_hazards(line.value("--hazards", "compiler"), &options.checks.close_vector_hazards);
  if (!wrong_hazards.empty()) throw UsageError("--hazards " + wrong_hazards);
  options.count = line.has("--counters") || line.has("--model");
  options.trace = line.has("--model");
  const std::string wrong_order = hip::parse_order(line.value("--order", "waves"), &options.order);
  if (!wrong_order.empty()) throw UsageError("--order " + wrong_order);
  options.seed = parse_unsigned(line.value("--seed", "0"), "--seed");
  options.reverse = line.has("--reverse");
  options.threads = static_cast<int>(std::min<u64>(parse_unsigned(line.value("--threads", "0"), "--threads"), 1024));
  return options;
}

void print_counts(const CommandLine& line, const Program& program, const LaunchResult& result) {
  if (line.has("--counters")) {
    const LaunchCounters counters = launch_counters(program, result);
    std::printf("%s\n", (line.has("--json") ? counters_json(counters) : counters_table(counters)).c_str());
  }
  if (line.has("--model")) std::printf("%s\n", model_issue(program, result, {}).text().c_str());
}

void write_files(const std::vector<Buffer>& buffers) {
  for (const Buffer& buffer : buffers) {
    if (buffer.out_file.empty()) continue;
    std::ofstream out(buffer.out_file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(buffer.data), static_cast<std::streamsize>(buffer.bytes));
    if (!out.flush()) throw std::runtime_error(buffer.out_file + ": cannot be written");
  }
}

}  // namespace

int run_command(const std::vector<std::string>& words) {
  const CommandLine line(words, {{"--kernel", 1},
                                 {"--grid", 1},
                                 {"--block", 1},
                                 {"--lds", 1},
                                 {"--arch", 1},
                                 {"--check", 1},
                                 {"--no-check", 0},
                                 {"--hazards", 1},
                                 {"--counters", 0},
                                 {"--json", 0},
                                 {"--numerics", 1},
                                 {"--model", 0},
                                 {"--trace", 1},
                                 {"--order", 1},
                                 {"--seed", 1},
                                 {"--reverse", 0},
                                 {"--threads", 1},
                                 {"--print", 2}});
  if (line.words().empty()) throw UsageError("a FILE is expected");
  const std::unique_ptr<Program> program = load_file(line.words().front(), line.value("--arch", ""));
  const Kernel& kernel = choose_kernel(*program, line.value("--kernel", ""));
  LaunchShape shape;
  parse_extent(line.value("--grid", "1"), "--grid", shape.grid);
  parse_extent(line.value("--block", std::to_string(kernel.wave_size)), "--block", shape.block);
  shape.dynamic_lds = static_cast<u32>(std::min<u64>(parse_unsigned(line.value("--lds", "0"), "--lds"), 1u << 30));

  RunOptions options = read_options(line);
  const Arguments arguments = parse_arguments({line.words().begin() + 1, line.words().end()}, hip::memory_pool());
  const std::vector<u8> packed = pack(arguments.values, kernel);
  std::unique_ptr<Tracer> tracer;
  if (line.has("--trace")) {
    tracer = std::make_unique<Tracer>(line.value("--trace", ""), *program);
    options.on_instruction = [&](const Wave& wave, const Instruction& in) { tracer->write(wave, in); };
  }
  const LaunchResult result = run_kernel(*program, kernel, shape, packed.data(), packed.size(),
                                         hip::memory_pool().regions(0, program->image), options);
  tracer.reset();

  if (line.has("--print")) {
    const size_t count = parse_unsigned(line.values("--print")[0], "--print");
    for (const Buffer& buffer : arguments.buffers) {
      std::printf("%s: %s\n", buffer.word.c_str(), print_elements(buffer, count, line.values("--print")[1]).c_str());
    }
  }
  write_files(arguments.buffers);
  if (result.error.empty()) print_counts(line, *program, result);
  if (result.orders == OrdersCompared::same) {
    std::printf("order: the result is the same with waves one after the other and in lockstep\n");
  }
  std::fflush(stdout);
  for (const Report& report : result.reports) std::fprintf(stderr, "%s\n", report.text().c_str());
  if (!result.error.empty()) std::fprintf(stderr, "flashwave-emu: %s\n", result.error.c_str());
  return result.reports.empty() && result.error.empty() ? 0 : 1;
}

}  // namespace emu::tool
