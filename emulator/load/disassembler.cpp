#include "load/disassembler.h"

#include <llvm-c/Disassembler.h>

#include <cstdio>
#include <cstring>
#include <mutex>

#include "core/errors.h"

extern "C" {
void LLVMInitializeAMDGPUTargetInfo();
void LLVMInitializeAMDGPUTargetMC();
void LLVMInitializeAMDGPUDisassembler();
}

namespace emu {
namespace {

// The constant K of v_fmaak_f32 and its kin is always a literal, the last word of the instruction. LLVM 22 takes words
// from 0x80 to 0xf8 for codes of inline constants and prints what those stand for: 0x84 becomes 0x4. So K is written
// again from the word. `at`: where the instruction begins in the text.
void write_constant_again(std::string& text, size_t at, const u8* last_word) {
  const size_t name_end = text.find(' ', at);
  if (name_end == std::string::npos) return;
  const std::string_view name = std::string_view(text).substr(at, name_end - at);
  const bool last = name.find("aak_f") != name.npos, second = name.find("amk_f") != name.npos;  // fmaak, madmk, ...
  if (!last && !second) return;
  size_t begin = name_end;
  for (int comma = 0; comma < (last ? 3 : 2); ++comma) begin = text.find(", ", begin) + 2;
  u32 word;
  std::memcpy(&word, last_word, sizeof word);
  char constant[16];
  std::snprintf(constant, sizeof constant, "0x%x", word);
  text.replace(begin, text.find_first_of(", ", begin) - begin, constant);
}

}  // namespace

Disassembler::Disassembler(const Target& target) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeAMDGPUTargetInfo();
    LLVMInitializeAMDGPUTargetMC();
    LLVMInitializeAMDGPUDisassembler();
  });
  context_ = LLVMCreateDisasmCPUFeatures("amdgcn-amd-amdhsa", target.name.c_str(), target.features.c_str(), nullptr, 0,
                                         nullptr, nullptr);
  if (!context_) throw LoadError("the disassembler does not know " + target.name);
}

Disassembler::~Disassembler() { LLVMDisasmDispose(context_); }

size_t Disassembler::one(const u8* bytes, size_t available, std::string& text) {
  char buffer[512];
  const size_t taken = LLVMDisasmInstruction(context_, const_cast<u8*>(bytes), available, 0, buffer, sizeof buffer);
  if (taken == 0) return 0;
  text = buffer[0] == '\t' ? buffer + 1 : buffer;
  if (taken > 4) {
    const u8* const last_word = bytes + taken - 4;
    write_constant_again(text, 0, last_word);
    if (const size_t pair = text.find(" :: "); pair != std::string::npos)
      write_constant_again(text, pair + 4, last_word);
  }
  return taken;
}

}  // namespace emu
