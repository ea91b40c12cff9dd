// Offload bundles: several code objects in one file, as clang makes them (LLVM "Clang Offload Bundler").
#pragma once

#include <span>
#include <string>

#include "core/target.h"

namespace emu::hip {

struct Image {
  std::span<const u8> code;   // one code object, or empty
  bool wrong_target = false;  // there are code objects, but none for this GPU
  std::string error;          // why `code` is empty
};

// The code object for the target, in an ELF file or a bundle of them. size 0: unknown, the headers say.
Image find_image(const void* bytes, size_t size, const Target& target);

}  // namespace emu::hip
