// A progress bar on stderr, only if that is a terminal.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace flashwave::cli {

class Progress {
 public:
  explicit Progress(size_t total);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(size_t done, const std::string& note);  // redraws at most ten times a second
  void clear();                                     // call before printing anything else

 private:
  using Clock = std::chrono::steady_clock;
  size_t total_;
  bool terminal_, drawn_ = false;
  Clock::time_point start_ = Clock::now(), last_{};
};

}  // namespace flashwave::cli
