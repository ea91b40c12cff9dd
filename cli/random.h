// Random numbers that are the same on every machine and standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace flashwave::cli {

// SplitMix64: one 64-bit state, full period, good enough for test data.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  double uniform() { return double(bits() >> 11) * 0x1p-53; }                                              // [0, 1)
  int64_t integer(int64_t low, int64_t high) { return low + int64_t(bits() % uint64_t(high - low + 1)); }  // inclusive
  float normal() {  // Box and Muller: two at a time
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform())), angle = 6.283185307179586 * uniform();
    double sine, cosine;
    sincos(angle, &sine, &cosine);  // glibc's: half the time of two calls, the same numbers
    spare_ = float(radius * sine);
    has_spare_ = true;
    return float(radius * cosine);
  }

 private:
  uint64_t state_;
  float spare_ = 0;
  bool has_spare_ = false;
};

inline uint64_t mix(uint64_t a, uint64_t b) { return Random(a ^ (b * 0xD6E8FEB86659FD93u)).bits(); }

inline uint64_t hash_text(std::string_view text) {  // FNV-1a
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ uint8_t(c)) * 0x100000001B3u;
  return h;
}

}  // namespace flashwave::cli
