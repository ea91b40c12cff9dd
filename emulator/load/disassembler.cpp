#include "load/disassembler.h"

#include <llvm-c/Disassembler.h>

#include <mutex>

#include "core/errors.h"

extern "C" {
void LLVMInitializeAMDGPUTargetInfo();
void LLVMInitializeAMDGPUTargetMC();
void LLVMInitializeAMDGPUDisassembler();
}

namespace emu {

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
  if (taken) text = buffer[0] == '\t' ? buffer + 1 : buffer;
  return taken;
}

}  // namespace emu
