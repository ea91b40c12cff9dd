#include <cstdio>
#include <exception>

#include "hip/devices.h"
#include "include/flashwave_emu.h"
#include "tool/arguments.h"
#include "tool/tool.h"

namespace {

using namespace emu::tool;

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const std::vector<std::string>& words);
  const char* help;
};

const Command kCommands[] = {
    {"info", "what a code object holds: kernels, arguments, registers, LDS, occupancy", info_command, kInfoHelp},
    {"disasm", "its instructions, with source lines", disasm_command, kDisasmHelp},
    {"run", "execute a kernel: results, checkers, counters, trace", run_command, kRunHelp},
};

void print_overview(std::FILE* out) {
  std::fprintf(out, "usage: flashwave-emu COMMAND ...\n\nExecutes code objects of AMD GPUs (%s) on the CPU.\n\n",
               emu::hip::architectures().c_str());
  for (const Command& c : kCommands) std::fprintf(out, "  %-7s %s\n", c.name, c.summary);
  std::fprintf(out,
               "\n'flashwave-emu COMMAND --help' says more. Exit status: 0 good, 1 something failed, 2 wrong usage.\n");
}

int run(const std::vector<std::string>& words) {
  const std::string name = words.empty() ? "" : words.front();
  if (name == "--help" || name == "-h" || name == "help") return print_overview(stdout), 0;
  if (name == "--version") return std::printf("flashwave-emu %s\n", fwemu_version()), 0;
  for (const Command& c : kCommands) {
    if (name != c.name) continue;
    const std::vector<std::string> rest(words.begin() + 1, words.end());
    for (const std::string& word : rest) {
      if (word != "--help" && word != "-h") continue;
      std::fputs(c.help, stdout);
      if (name == "run") std::fputs(kArgumentHelp, stdout);
      return 0;
    }
    return c.run(rest);
  }
  if (!name.empty()) std::fprintf(stderr, "flashwave-emu: unknown command '%s'\n", name.c_str());
  print_overview(stderr);
  return 2;
}

}  // namespace

int main(int count, char** values) {
  try {
    return run(std::vector<std::string>(values + 1, values + count));
  } catch (const UsageError& error) {
    std::fprintf(stderr, "flashwave-emu: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flashwave-emu: %s\n", error.what());
    return 1;
  }
}
