// Turns the fuzzer's bytes into a call: a small valid problem whose tensors lie in one arena, then a few fields broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "flashwave/flashwave.h"

namespace fuzz {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  uint64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }
  int64_t below(int64_t count) { return count > 0 ? byte() % count : 0; }  // count <= 256
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool flip() { return (byte() & 1) != 0; }
  bool rarely() { return byte() % 16 == 15; }  // never once the bytes run out

 private:
  const uint8_t* data_;
  size_t size_;
};

// One block of memory: index arrays in front, tensors behind.
class Arena {
 public:
  static constexpr size_t kBytes = 96 * 1024, kIndexBytes = 4096;
  Arena();
  void reset();  // forgets what was taken; fills with a harmless pattern
  int32_t* take_indices(size_t count);
  char* take(size_t bytes);  // nullptr if full
  char* begin() const { return memory_.get(); }
  char* end() const { return memory_.get() + kBytes; }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> memory_;
  size_t indices_used_ = 0, used_ = kIndexBytes;
};

// A struct with zeros behind it: struct_size may claim up to 4096 bytes.
template <class T>
union Padded {
  T value;
  char bytes[4096];
  Padded() : bytes{} {}
};

struct Call {
  Padded<fw_attention> attention;
  Padded<fw_gradients> gradients;
  bool backward = false;
  int32_t threads = 0;
  bool own_executor = false, own_workspace = false;
  std::string kernel;  // forced; empty = choose

  const fw_gradients* gradients_or_null() const { return backward ? &gradients.value : nullptr; }
};

void make_call(Bytes& bytes, Arena& arena, Call* call);

}  // namespace fuzz
