// The memory of the emulated GPUs: host pages, so that a device address is a host address. Each allocation is its own
// mapping with unused pages around it; it starts out as 0xff bytes (NaN in every float type), and once freed its
// addresses stay reserved for a while, so that a use after free is seen as such.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/memory_map.h"

namespace emu::hip {

enum class Home : u8 { device, host, module };  // module: a loaded code object's image

struct Allocation {
  u64 begin = 0;
  size_t bytes = 0;
  Home home = Home::device;
  int device = 0;
  u32 flags = 0;
  u64 end() const { return begin + bytes; }
};

class MemoryPool {
 public:
  void* allocate(size_t bytes, Home home, int device, u32 flags);  // nullptr: not enough memory
  // Empty, or what is wrong with the pointer.
  std::string release(const void* pointer, Home home);

  // Images of code objects are not ours, but addresses of their variables are device addresses.
  void add_module(u64 begin, size_t bytes, int device);
  void remove_module(u64 begin);

  std::optional<Allocation> find(const void* pointer) const;  // the one that holds this byte
  // Empty if the bytes are host memory we know nothing of, or lie in one allocation; else what is wrong. With
  // `on_device`, memory we know nothing of is wrong too.
  std::string fault(const void* pointer, size_t bytes, bool on_device) const;
  // What a kernel on the device may touch, and what was freed. The launch itself adds the image of its code object.
  std::vector<Region> regions(int device, const void* launched_image) const;

  size_t allocated(int device) const;

 private:
  struct Freed {
    Allocation allocation;
    void* mapping;
    size_t mapped;
  };
  const Allocation* holder(u64 address) const;
  void unmap_oldest();

  mutable std::mutex mutex_;
  std::map<u64, Allocation> live_;  // by begin
  std::deque<Freed> freed_;
  size_t freed_bytes_ = 0;
};

MemoryPool& memory_pool();
// Bytes that this process could still get, and all there are: the host's memory stands for each device's.
size_t available_memory();
size_t total_memory();

}  // namespace emu::hip
