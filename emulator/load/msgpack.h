// Reads the MessagePack documents in which code objects describe their kernels.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/bits.h"

namespace emu {

struct MsgValue {
  enum class Kind : u8 { nil, boolean, integer, text, array, map } kind = Kind::nil;
  i64 integer = 0;  // booleans too
  std::string text;
  std::vector<MsgValue> array;
  std::map<std::string, MsgValue> map;

  // The value of a key, or nullptr.
  const MsgValue* get(const std::string& key) const;
  i64 integer_at(const std::string& key, i64 otherwise) const;
  std::string text_at(const std::string& key) const;
};

// Throws LoadError if the bytes are not one document.
MsgValue read_msgpack(const u8* bytes, size_t size);

}  // namespace emu
