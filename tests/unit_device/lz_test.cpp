#include "base/lz.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace flashwave {
namespace {

bool round_trip(const std::string& raw, size_t* packed_bytes = nullptr) {
  const std::string packed = lz::pack(raw);
  if (packed_bytes != nullptr) *packed_bytes = packed.size();
  std::string back(raw.size(), '?');
  return lz::unpack(packed.data(), packed.size(), back.data(), back.size()) && back == raw;
}

TEST(Lz, UnpacksToItself) {
  EXPECT_TRUE(round_trip(""));
  EXPECT_TRUE(round_trip("a"));
  EXPECT_TRUE(round_trip("abcabcabcabc"));
  EXPECT_TRUE(round_trip(std::string(100000, '\0')));
  for (const size_t length : {3, 4, 14, 15, 16, 18, 19, 20, 269, 270, 271, 65535, 65540, 70000}) {
    EXPECT_TRUE(round_trip(std::string(length, 'x'))) << length;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    // Few letters: many matches; many letters: long rows of literals.
    const unsigned letters = 1 + random() % (i % 2 ? 256 : 4);
    std::string raw(random() % 5000, '\0');
    for (char& c : raw) c = char(random() % letters);
    if (i % 3 == 0) raw += raw;
    EXPECT_TRUE(round_trip(raw)) << i;
  }
}

TEST(Lz, FindsMatchesFarAway) {
  std::mt19937 random(2);
  std::string noise(60000, '\0');
  for (char& c : noise) c = char(random());
  size_t once = 0, twice = 0;
  EXPECT_TRUE(round_trip(noise, &once));
  EXPECT_TRUE(round_trip(noise + noise, &twice));
  EXPECT_LT(twice, once + 1000);
}

TEST(Lz, RefusesWhatIsNotWhole) {
  std::string raw;
  for (int i = 0; i < 3000; ++i) raw += "row " + std::to_string(i * i % 97) + ";";
  const std::string packed = lz::pack(raw);
  std::string back(raw.size(), '?');
  EXPECT_FALSE(lz::unpack(packed.data(), packed.size() / 2, back.data(), back.size()));
  EXPECT_FALSE(lz::unpack(packed.data(), packed.size(), back.data(), back.size() - 1));
  back.resize(raw.size() + 1);
  EXPECT_FALSE(lz::unpack(packed.data(), packed.size(), back.data(), back.size()));
  // Bytes turned at random never reach outside of either buffer (the sanitized build would say so).
  std::mt19937 random(3);
  back.resize(raw.size());
  for (int i = 0; i < 2000; ++i) {
    std::string broken = packed;
    for (int j = 0; j < 3; ++j) broken[random() % broken.size()] = char(random());
    static_cast<void>(lz::unpack(broken.data(), broken.size(), back.data(), back.size()));
  }
}

}  // namespace
}  // namespace flashwave
