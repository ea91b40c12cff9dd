#include "device/workspace_pool.h"

#include <algorithm>

namespace flashwave {
namespace {

constexpr size_t kKeptBlocks = 4;                 // idle ones beyond this are freed
constexpr size_t kKeptBytes = size_t{256} << 20;  // larger ones are not kept
constexpr size_t kSmallestBytes = size_t{1} << 20;

size_t grown(size_t wanted) {
  if (wanted > kKeptBytes) return wanted;
  // Doubling, so that a sequence that gets longer call by call does not allocate in each.
  size_t bytes = kSmallestBytes;
  while (bytes < wanted) bytes *= 2;
  return bytes;
}

}  // namespace

char* WorkspacePool::lend(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto free_and_fits = [&](const Block& b) { return b.owner == std::thread::id() && b.bytes >= bytes; };
  auto found = std::find_if(blocks_.begin(), blocks_.end(), free_and_fits);
  if (found == blocks_.end()) {
    Block block;
    block.bytes = grown(bytes);
    void* data = nullptr;
    if (driver_.allocate(&data, block.bytes)) return nullptr;
    block.data = static_cast<char*>(data);
    if (driver_.create_event(&block.event)) {
      static_cast<void>(driver_.release(data));
      return nullptr;
    }
    found = blocks_.insert(blocks_.begin(), block);
  }
  found->owner = std::this_thread::get_id();
  return found->data;
}

void WorkspacePool::drop(std::list<Block>::iterator block) {
  static_cast<void>(driver_.release(block->data));
  static_cast<void>(driver_.destroy_event(block->event));
  blocks_.erase(block);
}

void WorkspacePool::give_back(const char* data) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) { return b.data == data; });
  if (found == blocks_.end()) return;
  found->owner = {};
  if (found->bytes > kKeptBytes) return drop(found);
  blocks_.splice(blocks_.begin(), blocks_, found);  // the one used last comes first
  const auto idle = [](const Block& b) { return b.owner == std::thread::id(); };
  while (static_cast<size_t>(std::count_if(blocks_.begin(), blocks_.end(), idle)) > kKeptBlocks) {
    drop(std::prev(std::find_if(blocks_.rbegin(), blocks_.rend(), idle).base()));
  }
}

bool WorkspacePool::has_lent() {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(blocks_, [](const Block& b) { return b.owner == std::this_thread::get_id(); });
}

GpuError WorkspacePool::before_launch(void* stream) {
  const std::lock_guard lock(mutex_);
  for (Block& block : blocks_) {
    if (block.owner != std::this_thread::get_id() || !block.used || block.stream == stream) continue;
    if (const GpuError error = driver_.wait(stream, block.event)) return error;
  }
  return {};
}

GpuError WorkspacePool::after_launch(void* stream) {
  const std::lock_guard lock(mutex_);
  for (Block& block : blocks_) {
    if (block.owner != std::this_thread::get_id()) continue;
    if (const GpuError error = driver_.record(block.event, stream)) return error;
    block.stream = stream;
    block.used = true;
  }
  return {};
}

}  // namespace flashwave
