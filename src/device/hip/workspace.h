// Device memory that calls borrow. It goes from call to call, and possibly from stream to stream: the next user's
// stream waits for the last one's work.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <thread>

#include "device/hip/hip_api.h"

namespace flashwave::hip {

class WorkspacePool {
 public:
  explicit WorkspacePool(const Api& api) : api_(api) {}

  // The device must be current. nullptr if there is no memory to be had.
  char* lend(size_t bytes);
  void give_back(const char* data);

  // Around each launch: what this thread has borrowed is used on the stream.
  Error before_launch(void* stream);
  Error after_launch(void* stream);

 private:
  struct Block {
    char* data = nullptr;
    size_t bytes = 0;
    void* event = nullptr;   // when the last work that used it ends
    void* stream = nullptr;  // where that was queued
    bool used = false;       // event is recorded
    std::thread::id owner;   // none: not lent
  };
  bool make_event(Block& block);
  void drop(std::list<Block>::iterator block);

  const Api& api_;
  std::mutex mutex_;
  std::list<Block> blocks_;
};

}  // namespace flashwave::hip
