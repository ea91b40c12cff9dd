// Structs that grow: how those of callers built against an older or newer header are read and filled.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/status.h"

namespace flashwave::api {

// No struct of ours is near this; a larger struct_size is an uninitialised one, not a newer one.
inline constexpr uint32_t kLargestStruct = 4096;

inline Status check_struct_size(const char* name, uint32_t size, size_t first_size, const char* remedy) {
  if (size >= first_size && size <= kLargestStruct) return {};
  return Status::invalid(std::string(name) + ".struct_size is " + std::to_string(size) + ", at least " +
                         std::to_string(first_size) + " is expected: " + remedy);
}

// Copies the caller's struct. Fields it does not know keep the value they have in *copy (their defaults); fields that
// we do not know must be 0, since we cannot honour them. first_size: that of the struct's first release.
template <class T>
Status read_struct(const char* name, const T* caller, size_t first_size, const char* remedy, T* copy) {
  if (caller == nullptr) return Status::invalid(std::string(name) + " must not be NULL");
  const uint32_t size = caller->struct_size;
  if (Status status = check_struct_size(name, size, first_size, remedy); !status.ok()) return status;
  const auto* bytes = reinterpret_cast<const unsigned char*>(caller);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return Status::invalid(std::string(name) + " uses a field of a newer flashwave (byte " + std::to_string(i) +
                             " is not 0); this one is " + std::to_string(FW_VERSION_MAJOR) + "." +
                             std::to_string(FW_VERSION_MINOR));
    }
  }
  std::memcpy(static_cast<void*>(copy), bytes, std::min<size_t>(size, sizeof(T)));
  copy->struct_size = sizeof(T);
  return {};
}

// Fills the caller's struct of the given size from ours; what it knows beyond that becomes 0.
template <class T>
void write_struct(const T& filled, size_t size, T* caller) {
  auto* bytes = reinterpret_cast<unsigned char*>(caller);
  std::memcpy(bytes, &filled, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(bytes + sizeof(T), 0, size - sizeof(T));
  const auto stored = static_cast<uint32_t>(size);
  std::memcpy(bytes, &stored, sizeof stored);  // struct_size comes first in every struct
}

// Text into a fixed field of a struct, cut if it is longer.
template <size_t N>
void put(const std::string& text, char (&field)[N]) {
  const size_t length = std::min(text.size(), N - 1);
  std::copy_n(text.data(), length, field);
  field[length] = '\0';
}

// Text into a caller's buffer, cut if it is longer; `needed`, if given, gets its length with the final 0.
inline void give_text(const std::string& text, char* buffer, size_t capacity, size_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  if (capacity == 0) return;
  const size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(buffer, text.data(), length);
  buffer[length] = '\0';
}

}  // namespace flashwave::api
