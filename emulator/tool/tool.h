// The commands of flashwave-emu and what they share.
#pragma once

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/program.h"

namespace emu::tool {

// Wrong usage: exit status 2. Other failures are std::runtime_error or emu's own: exit status 1.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A command line: options by name, and the other words in order.
class CommandLine {
 public:
  // `options`: name -> how many values it takes ("--grid" -> 1). One given twice, or unknown, is an error.
  CommandLine(const std::vector<std::string>& words, const std::map<std::string, int>& options);
  bool has(const std::string& name) const { return given_.count(name) > 0; }
  std::string value(const std::string& name, const std::string& otherwise) const;
  const std::vector<std::string>& values(const std::string& name) const { return given_.at(name); }
  const std::vector<std::string>& words() const { return words_; }

 private:
  std::map<std::string, std::vector<std::string>> given_;
  std::vector<std::string> words_;
};

u64 parse_unsigned(const std::string& text, const std::string& what);

// A code object, or the one in an offload bundle: for `arch`, or if that is empty the first that is emulated.
std::unique_ptr<Program> load_file(const std::string& path, const std::string& arch);
// By name; without one, the only kernel there is.
const Kernel& choose_kernel(const Program& program, const std::string& name);

int info_command(const std::vector<std::string>& words);
int disasm_command(const std::vector<std::string>& words);
int run_command(const std::vector<std::string>& words);

extern const char* const kInfoHelp;
extern const char* const kDisasmHelp;
extern const char* const kRunHelp;

}  // namespace emu::tool
