// Kernel arguments as words of a command line: i32:5, f32:1.5, buf:4096:randn16:out=FILE, ...
#pragma once

#include <string>
#include <vector>

#include "core/program.h"
#include "hip/memory_pool.h"

namespace emu::tool {

// One buffer in device memory.
struct Buffer {
  std::string word;  // as it was given
  u8* data = nullptr;
  size_t bytes = 0;
  std::string out_file;  // written after the run; empty: nowhere
};

struct Value {
  std::string word;
  std::vector<u8> bytes;  // as passed to the kernel; for a buffer its address
};

struct Arguments {
  std::vector<Value> values;
  std::vector<Buffer> buffers;
};

// Allocates and fills buffers. Throws UsageError.
Arguments parse_arguments(const std::vector<std::string>& words, hip::MemoryPool& memory);

// The explicit arguments laid out as the kernel wants them; without metadata, one after the other by their alignment.
std::vector<u8> pack(const std::vector<Value>& values, const Kernel& kernel);

// The first `count` elements of a buffer, as text. Types are those of scalar arguments.
std::string print_elements(const Buffer& buffer, size_t count, const std::string& type);

extern const char* const kArgumentHelp;

}  // namespace emu::tool
