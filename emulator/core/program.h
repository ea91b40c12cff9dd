// A loaded code object: its memory image, its kernels and its decoded instructions.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/instruction.h"
#include "core/target.h"

namespace emu {

// One argument of a kernel, from the code object's metadata.
struct Argument {
  std::string name, kind;  // kind: "by_value", "global_buffer", "hidden_block_count_x", ...
  u32 offset = 0, size = 0;
  bool hidden() const { return kind.rfind("hidden_", 0) == 0; }
};

struct Kernel {
  std::string name;
  u64 entry = 0;  // address in the image
  // Kernel descriptor (LLVM "User Guide for AMDGPU Backend", Kernel Descriptor).
  u32 lds_bytes = 0, scratch_bytes = 0, kernarg_bytes = 0;
  u32 rsrc1 = 0, rsrc2 = 0, rsrc3 = 0;
  u16 properties = 0, preload = 0;
  // Metadata notes.
  std::vector<Argument> arguments;
  u32 vgprs = 0, agprs = 0, sgprs = 0, vgpr_spills = 0, sgpr_spills = 0;
  u32 max_workgroup = 1024;
  bool uses_dynamic_stack = false;
  int wave_size = 64;
};

struct RegisterUseTable;  // check/: which registers each instruction reads and writes

struct SourceLine {
  std::string file;
  u32 line = 0;
};

struct Program {
  const Target* target = nullptr;
  std::vector<u8> file;  // the ELF as given
  u8* image = nullptr;   // loaded segments; an address in the image is an offset from here
  u64 image_bytes = 0;
  std::map<std::string, Kernel> kernels;
  std::map<std::string, std::pair<u64, u64>> globals;  // variables: address in the image, size
  std::vector<Instruction> code;
  std::deque<Instruction> second_halves;  // of VOPD
  std::deque<Row> constant_rows;
  std::vector<std::string> text;          // as disassembled, by Instruction::index
  std::unordered_map<u64, u32> index_of;  // image address -> index in code

  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  // What the checkers know of each instruction, made when a launch first needs it.
  mutable std::once_flag register_use_once;
  mutable std::shared_ptr<const RegisterUseTable> register_use;

  // From debug information; line 0 if there is none. Slow: for reports.
  SourceLine line_of(u64 address) const;
};

// Throws LoadError, naming every mnemonic and modifier that is not known.
std::unique_ptr<Program> load_program(const void* bytes, size_t size);

}  // namespace emu
