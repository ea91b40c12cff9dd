// Objects that programs hold by an opaque pointer. One that was destroyed, or never was, is noticed.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

namespace emu::hip {

template <class T>
class Handles {
 public:
  T* add(std::shared_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    T* handle = object.get();
    objects_.emplace(handle, std::move(object));
    return handle;
  }
  // Empty if there is no such object. What is returned lives on while it is used, even if another thread destroys it.
  std::shared_ptr<T> find(const void* handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  bool remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    return objects_.erase(handle) > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> objects_;
};

}  // namespace emu::hip
