// A small LZ77 for the machine code that is embedded in the library: the build packs it, the first use unpacks it.
//
// The packed bytes are a row of (literals, match) pairs. A pair starts with a byte: its high half is the number of
// literals, its low half the length of the match less 4; 15 means that bytes follow which are added until one is not
// 255. Then the literals, then the distance of the match in two bytes, low one first. The last pair has no match.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace flashwave::lz {

inline constexpr size_t kMinMatch = 4, kMaxDistance = 65535;

inline std::string pack(const std::string& raw) {
  constexpr int kHashBits = 16, kTries = 64;
  constexpr size_t kNone = ~size_t{0};
  std::vector<size_t> newest(size_t{1} << kHashBits, kNone), older(raw.size(), kNone);
  const auto hash = [&](size_t at) {
    uint32_t word;
    std::memcpy(&word, raw.data() + at, 4);
    return (word * 2654435761u) >> (32 - kHashBits);
  };
  const auto length_of = [&](size_t a, size_t b) {
    size_t n = 0;
    while (b + n < raw.size() && raw[a + n] == raw[b + n]) ++n;
    return n;
  };
  std::string out;
  const auto count = [&](size_t n) {
    for (; n >= 255; n -= 255) out += char(255);
    out += char(n);
  };
  const auto pair = [&](size_t first_literal, size_t literals, size_t length, size_t distance) {
    const size_t extra = length ? length - kMinMatch : 0;
    out += char((literals < 15 ? literals : 15) << 4 | (extra < 15 ? extra : 15));
    if (literals >= 15) count(literals - 15);
    out.append(raw, first_literal, literals);
    if (length == 0) return;
    out += char(distance & 255);
    out += char(distance >> 8);
    if (extra >= 15) count(extra - 15);
  };
  size_t at = 0, literals = 0;
  const auto remember = [&](size_t position) {
    if (position + 4 > raw.size()) return;
    const uint32_t h = hash(position);
    older[position] = newest[h];
    newest[h] = position;
  };
  while (at < raw.size()) {
    size_t best = 0, from = 0;
    if (at + kMinMatch <= raw.size()) {
      size_t candidate = newest[hash(at)];
      for (int tries = 0; tries < kTries && candidate != kNone && at - candidate <= kMaxDistance; ++tries) {
        if (const size_t n = length_of(candidate, at); n > best) best = n, from = candidate;
        candidate = older[candidate];
      }
    }
    if (best < kMinMatch) {
      remember(at++);
      ++literals;
      continue;
    }
    pair(at - literals, literals, best, at - from);
    literals = 0;
    for (const size_t end = at + best; at < end; ++at) remember(at);
  }
  pair(at - literals, literals, 0, 0);
  return out;
}

// False if the packed bytes do not describe exactly `raw_bytes` bytes.
inline bool unpack(const char* packed, size_t packed_bytes, char* raw, size_t raw_bytes) {
  const auto* in = reinterpret_cast<const unsigned char*>(packed);
  const unsigned char* const end = in + packed_bytes;
  size_t at = 0;
  const auto longer = [&](size_t n) {
    if (n < 15) return n;
    while (in < end) {
      n += *in;
      if (*in++ != 255) break;
    }
    return n;
  };
  while (in < end) {
    const unsigned token = *in++;
    const size_t literals = longer(token >> 4);
    if (literals > size_t(end - in) || literals > raw_bytes - at) return false;
    std::memcpy(raw + at, in, literals);
    at += literals, in += literals;
    if (in == end) break;
    if (end - in < 2) return false;
    const size_t distance = in[0] | size_t{in[1]} << 8;
    in += 2;
    const size_t length = longer(token & 15) + kMinMatch;
    if (distance == 0 || distance > at || length > raw_bytes - at) return false;
    for (const size_t stop = at + length; at < stop; ++at) raw[at] = raw[at - distance];  // may overlap itself
  }
  return at == raw_bytes;
}

}  // namespace flashwave::lz
