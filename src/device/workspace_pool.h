// Device memory that calls borrow. It goes from call to call, and possibly from stream to stream: the next user's
// stream waits for the last one's work.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <thread>

#include "device/gpu_driver.h"

namespace flashwave {

class WorkspacePool {
 public:
  explicit WorkspacePool(GpuDriver& driver) : driver_(driver) {}

  // The device must be current. nullptr if there is no memory to be had.
  char* lend(size_t bytes);
  void give_back(const char* data);
  bool has_lent();  // to this thread

  // Around each launch: what this thread has borrowed is used on the stream.
  GpuError before_launch(void* stream);
  GpuError after_launch(void* stream);

 private:
  struct Block {
    char* data = nullptr;
    size_t bytes = 0;
    void* event = nullptr;   // when the last work that used it ends
    void* stream = nullptr;  // where that was queued
    bool used = false;       // event is recorded
    std::thread::id owner;   // none: not lent
  };
  void drop(std::list<Block>::iterator block);

  GpuDriver& driver_;
  std::mutex mutex_;
  std::list<Block> blocks_;
};

}  // namespace flashwave
