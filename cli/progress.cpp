#include "progress.h"

#include <unistd.h>

#include <cstdio>

namespace flashwave::cli {

Progress::Progress(size_t total) : total_(total), terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::show(size_t done, const std::string& note) {
  if (!terminal_ || total_ < 2) return;
  const auto now = Clock::now();
  if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  constexpr size_t kWidth = 28, kNote = 60;
  const size_t full = kWidth * done / total_;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double left = done ? seconds * double(total_ - done) / double(done) : 0;
  std::fprintf(stderr, "\r\033[K[%s%s] %zu/%zu  %.0fs left  %s", std::string(full, '#').c_str(),
               std::string(kWidth - full, '.').c_str(), done, total_, left, note.substr(0, kNote).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace flashwave::cli
