// What the checkers say, and where it goes.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/program.h"
#include "core/wave.h"

namespace emu {

enum class Check : u8 {
  wait,           // a register or LDS byte used before its load was waited for
  lds_race,       // two waves, one byte, no barrier between
  uninitialised,  // register or LDS byte read before it was written
  bounds,         // outside every allocation, freed, outside LDS or scratch
  misaligned,
  barrier,      // not every wave of the workgroup reaches it
  replication,  // gfx11 WMMA: lanes 16..31 must repeat lanes 0..15
  hazard,       // wait states the hardware does not insert
  order,        // the result depends on the order of waves (where two were compared)
  trap,
  count
};
const char* check_name(Check check);

struct Report {
  Check check = Check::wait;
  std::string message;  // the rule that was broken, with register or address
  std::string kernel;
  std::string instruction;  // as disassembled
  u64 code_address = 0;     // in the code object's image
  SourceLine source;
  u32 workgroup[3] = {0, 0, 0};
  int wave = 0, lane = -1;  // lane -1: the whole wave; wave -1: the whole launch
  u64 address = 0;          // of memory, where the rule is about memory
  bool has_address = false;
  u64 count = 1;  // how often this instruction broke this rule
  std::string text() const;
};

// Reports of one launch: the first of each (instruction, rule), counted. Threads share it.
class LaunchLog {
 public:
  explicit LaunchLog(const Program& program, const Kernel& kernel) : program_(program), kernel_(kernel) {}
  void add(Check check, const Wave& wave, const Instruction& at, const std::string& message, int lane = -1);
  void add_at(Check check, const Wave& wave, const Instruction& at, const std::string& message, int lane, u64 address);
  std::vector<Report> reports() const;
  bool empty() const;

 private:
  void insert(Report report, const Instruction& at);
  const Program& program_;
  const Kernel& kernel_;
  mutable std::mutex mutex_;
  std::map<std::pair<u32, std::string>, Report> reports_;
};

}  // namespace emu
