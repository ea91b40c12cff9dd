// LLVM's AMDGPU disassembler behind a small door: bytes in, text out.
#pragma once

#include <string>

#include "core/target.h"

namespace emu {

class Disassembler {
 public:
  explicit Disassembler(const Target& target);
  ~Disassembler();
  Disassembler(const Disassembler&) = delete;
  Disassembler& operator=(const Disassembler&) = delete;
  // Bytes taken (0: not an instruction).
  size_t one(const u8* bytes, size_t available, std::string& text);

 private:
  void* context_;
};

}  // namespace emu
