// Short pieces of assembly, run on a wave whose registers are given: the format of encodings/*.txt.
//
// One test per line, fields separated by " | ", "#" starts a comment:
//   targets | instructions, " ; " between them | registers before | registers expected after
// targets: names, or gfx9 (gfx908, gfx90a, gfx942, gfx950), gfx11 (gfx1100), gfx12 (gfx1201), all (gfx9, gfx11, gfx12).
// Registers: name=value[,value...] with spaces between. Names: v3, a2 (values: lanes 0, 1, 2, ...; repeated when set,
// only those compared when expected; a single value means every lane, when expected every lane that exec names before),
// s4, lds@BYTE, mem@BYTE (values: consecutive
// registers or words), vcc, exec (one value: the whole mask), m0, scc. Values: 0x hexadecimal and decimal, of 32 bits
// or, beyond those, of 64 (two registers); 1.5f f32, 1.5h f16, 1.5b bf16, 1.5d f64 (two registers); "nan" and "inf" are
// numbers, and any NaN equals an expected NaN.
// mem is a buffer of 4 KiB whose address is in s[20:21] and in v[20:21] of every lane. What is not set is 0xffffffff.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/memory_map.h"
#include "core/program.h"
#include "core/report.h"
#include "core/wave.h"

namespace emu_test {

struct Snippet {
  std::string file;
  int line = 0;
  std::vector<std::string> targets;
  std::string instructions, before, after;
};

// Throws std::runtime_error naming the line that is wrong.
std::vector<Snippet> read_snippets(const std::string& path);

// Snippets of one target as one loaded program. A snippet that LLVM cannot assemble or the emulator cannot decode is
// left out and named in `problems`.
struct Assembled {
  std::unique_ptr<emu::Program> program;
  std::vector<const Snippet*> snippets;
  std::vector<emu::u32> begin, end;  // instruction indices, by snippet
  std::vector<std::string> problems;
};
Assembled assemble(const emu::Target& target, const std::vector<Snippet>& snippets);

// Runs single snippets of an assembled program, each from a fresh state.
class SnippetRunner {
 public:
  explicit SnippetRunner(const emu::Program& program);
  // What differs from the snippet's expectation, one line each; empty: it passed.
  std::vector<std::string> run(const Snippet& snippet, emu::u32 begin, emu::u32 end);

 private:
  void reset();
  void apply(const std::string& assignments);
  std::vector<std::string> compare(const std::string& expectations);

  const emu::Program& program_;
  const emu::Kernel& kernel_;
  emu::LaunchLog log_;
  std::vector<emu::u32> buffer_;
  std::unique_ptr<emu::MemoryMap> memory_;
  emu::Workgroup group_;
  std::unique_ptr<emu::Wave> wave_;
  emu::Wave* waves_[1];
  emu::u64 active_ = 0;  // lanes of exec before the snippet runs
};

}  // namespace emu_test
