#include "hip/memory_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace emu::hip {
namespace {

constexpr size_t kGuard = 64 << 10;             // on both sides
constexpr size_t kMostFreed = 1024;             // allocations kept as freed,
constexpr size_t kMostFreedBytes = 1ull << 40;  // which costs addresses but no memory

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t mapping_bytes(size_t bytes) {
  const size_t page = page_bytes();
  return (bytes + page - 1) / page * page + 2 * kGuard;
}

std::string size_text(size_t bytes) { return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes"); }

std::string name_of(const Allocation& a) {
  switch (a.home) {
    case Home::device:
      return "the allocation of " + size_text(a.bytes);
    case Home::host:
      return "the host allocation of " + size_text(a.bytes);
    default:
      return "a code object of " + size_text(a.bytes);
  }
}

std::string address_text(u64 address) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "0x%llx", static_cast<unsigned long long>(address));
  return digits;
}

// A number of bytes in a file of the control group; none if there is no limit.
std::optional<size_t> group_number(const char* file) {
  std::ifstream in(file);
  size_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

}  // namespace

MemoryPool& memory_pool() {
  static auto& pool = *new MemoryPool;  // never destroyed: kernels of other threads may run while the process exits
  return pool;
}

size_t total_memory() { return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes(); }

size_t available_memory() {
  size_t available = total_memory();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;) {
    size_t kilobytes = 0;
    if (word == "MemAvailable:" && meminfo >> kilobytes) available = kilobytes << 10;
  }
  // The mapping itself would succeed beyond the limit; filling it would end the process.
  const auto limit = group_number("/sys/fs/cgroup/memory.max"), used = group_number("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, *limit > *used ? *limit - *used : 0);
  return available;
}

void* MemoryPool::allocate(size_t bytes, Home home, int device, u32 flags) {
  if (bytes > available_memory()) return nullptr;
  void* mapping =
      mmap(nullptr, mapping_bytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* data = static_cast<u8*>(mapping) + kGuard;
  std::memset(data, 0xff, bytes);
  const std::lock_guard lock(mutex_);
  const u64 begin = reinterpret_cast<u64>(data);
  live_[begin] = Allocation{begin, bytes, home, device, flags};
  return data;
}

std::string MemoryPool::release(const void* pointer, Home home) {
  const std::lock_guard lock(mutex_);
  const u64 begin = reinterpret_cast<u64>(pointer);
  const auto found = live_.find(begin);
  if (found == live_.end()) {
    for (const Freed& freed : freed_) {
      if (freed.allocation.begin == begin) return name_of(freed.allocation) + " was freed before";
    }
    const Allocation* inside = holder(begin);
    if (inside != nullptr) return address_text(begin) + " is not the beginning of an allocation, but inside one";
    return address_text(begin) + " was not allocated here";
  }
  if (found->second.home != home) {
    return name_of(found->second) + " must be freed with " +
           (found->second.home == Home::host ? "hipHostFree" : "hipFree");
  }
  Freed freed{found->second, reinterpret_cast<u8*>(begin) - kGuard, mapping_bytes(found->second.bytes)};
  live_.erase(found);
  // The pages go back to the system; the addresses stay taken.
  madvise(freed.mapping, freed.mapped, MADV_DONTNEED);
  mprotect(freed.mapping, freed.mapped, PROT_NONE);
  freed_bytes_ += freed.mapped;
  freed_.push_back(freed);
  while (freed_.size() > kMostFreed || freed_bytes_ > kMostFreedBytes) unmap_oldest();
  return "";
}

void MemoryPool::unmap_oldest() {
  const Freed oldest = freed_.front();
  freed_.pop_front();
  freed_bytes_ -= oldest.mapped;
  munmap(oldest.mapping, oldest.mapped);
}

void MemoryPool::add_module(u64 begin, size_t bytes, int device) {
  const std::lock_guard lock(mutex_);
  live_[begin] = Allocation{begin, bytes, Home::module, device, 0};
}

void MemoryPool::remove_module(u64 begin) {
  const std::lock_guard lock(mutex_);
  live_.erase(begin);
}

const Allocation* MemoryPool::holder(u64 address) const {
  auto after = live_.upper_bound(address);
  if (after == live_.begin()) return nullptr;
  const Allocation& candidate = std::prev(after)->second;
  return address < candidate.end() ? &candidate : nullptr;
}

std::optional<Allocation> MemoryPool::find(const void* pointer) const {
  const std::lock_guard lock(mutex_);
  const Allocation* found = holder(reinterpret_cast<u64>(pointer));
  return found != nullptr ? std::optional(*found) : std::nullopt;
}

std::string MemoryPool::fault(const void* pointer, size_t bytes, bool on_device) const {
  const std::lock_guard lock(mutex_);
  const u64 begin = reinterpret_cast<u64>(pointer);
  if (const Allocation* found = holder(begin)) {
    if (bytes <= found->end() - begin) return "";
    return size_text(bytes) + " from offset " + std::to_string(begin - found->begin) + " do not fit in " +
           name_of(*found);
  }
  for (const Freed& freed : freed_) {
    if (begin >= freed.allocation.begin && begin < freed.allocation.end()) {
      return address_text(begin) + " is in " + name_of(freed.allocation) + ", which was freed";
    }
  }
  return on_device ? address_text(begin) + " is not memory of a device" : "";
}

std::vector<Region> MemoryPool::regions(int device, const void* launched_image) const {
  const std::lock_guard lock(mutex_);
  std::vector<Region> regions;
  regions.reserve(live_.size() + freed_.size());
  const auto visible = [&](const Allocation& a) { return a.home == Home::host || a.device == device; };
  for (const auto& [begin, a] : live_) {
    if (begin != reinterpret_cast<u64>(launched_image) && visible(a))
      regions.push_back({a.begin, a.end(), name_of(a), true, false});
  }
  for (const Freed& freed : freed_) {
    const Allocation& a = freed.allocation;
    if (visible(a)) regions.push_back({a.begin, a.end(), name_of(a), true, true});
  }
  return regions;
}

size_t MemoryPool::allocated(int device) const {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [begin, a] : live_) {
    if (a.home == Home::device && a.device == device) bytes += a.bytes;
  }
  return bytes;
}

}  // namespace emu::hip
