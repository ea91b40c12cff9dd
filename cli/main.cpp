#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "commands.h"
#include "errors.h"

namespace {

using namespace flashwave::cli;

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments&);
  std::string (*help)();
};

constexpr Command kCommands[] = {
    {"devices", "the devices of this machine", devices_command, devices_help},
    {"explain", "which kernel would run a problem, and why not the others", explain_command, explain_help},
    {"check", "compare with the fp64 reference", check_command, check_help},
    {"bench", "time, and compare with standard attention and the machine's peak", bench_command, bench_help},
    {"support", "the table of features and devices", support_command, support_help},
};

void print_overview(std::FILE* out) {
  std::fprintf(out, "usage: flashwave COMMAND [options]\n\n");
  for (const Command& c : kCommands) std::fprintf(out, "  %-9s %s\n", c.name, c.summary);
  std::fprintf(out,
               "\n'flashwave COMMAND --help' says more; 'flashwave --version' gives the version.\n"
               "Exit status: 0 good, 1 something failed, 2 wrong usage.\n");
}

int run(int count, char** values) {
  const std::string name = count > 1 ? values[1] : "";
  if (name == "--help" || name == "-h" || name == "help") return print_overview(stdout), 0;
  if (name == "--version") return std::printf("flashwave %s\n", fw_version_string()), 0;
  const Arguments arguments(values + (count > 1 ? 2 : count), values + count);
  for (const Command& c : kCommands) {
    if (name != c.name) continue;
    for (const std::string& argument : arguments) {
      if (argument == "--help" || argument == "-h") return std::fputs(c.help().c_str(), stdout), 0;
    }
    return c.run(arguments);
  }
  if (!name.empty()) std::fprintf(stderr, "flashwave: unknown command '%s'\n", name.c_str());
  print_overview(stderr);
  return 2;
}

}  // namespace

int main(int count, char** values) {
  try {
    return run(count, values);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "flashwave: %s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "flashwave: out of memory: this takes more than the host has, or lets one process have\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flashwave: %s\n", error.what());
    return 1;
  }
}
