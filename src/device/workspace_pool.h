// Device memory that calls borrow. It goes from call to call, and possibly from stream to stream: the next user's
// stream waits for the last one's work.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <thread>

namespace flashwave {

// What the pool asks of a GPU's runtime. Each answers 0, or the runtime's error.
class StreamOrderedMemory {
 public:
  virtual ~StreamOrderedMemory() = default;
  virtual int allocate(void** data, size_t bytes) = 0;
  virtual int release(void* data) = 0;  // waits for work that uses it
  virtual int create_event(void** event) = 0;
  virtual int destroy_event(void* event) = 0;
  virtual int record(void* event, void* stream) = 0;
  virtual int wait(void* stream, void* event) = 0;
};

class WorkspacePool {
 public:
  explicit WorkspacePool(StreamOrderedMemory& memory) : memory_(memory) {}

  // The device must be current. nullptr if there is no memory to be had.
  char* lend(size_t bytes);
  void give_back(const char* data);
  bool has_lent();  // to this thread

  // Around each launch: what this thread has borrowed is used on the stream.
  int before_launch(void* stream);
  int after_launch(void* stream);

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

  StreamOrderedMemory& memory_;
  std::mutex mutex_;
  std::list<Block> blocks_;
};

}  // namespace flashwave
