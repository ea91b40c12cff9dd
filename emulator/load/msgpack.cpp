#include "load/msgpack.h"

#include "core/errors.h"

namespace emu {
namespace {

constexpr int kMaxDepth = 32;

class Reader {
 public:
  Reader(const u8* bytes, size_t size) : at_(bytes), end_(bytes + size) {}

  MsgValue value(int depth) {
    if (depth > kMaxDepth) throw LoadError("code object metadata is nested too deeply");
    const u8 tag = byte();
    if (tag < 0x80) return integer(tag);
    if (tag < 0x90) return map(tag & 0xf, depth);
    if (tag < 0xa0) return array(tag & 0xf, depth);
    if (tag < 0xc0) return text(tag & 0x1f);
    if (tag >= 0xe0) return integer(static_cast<i8>(tag));
    switch (tag) {
      case 0xc0:
        return {};
      case 0xc2:
        return boolean(false);
      case 0xc3:
        return boolean(true);
      case 0xc4:
      case 0xd9:
        return text(big(1));
      case 0xc5:
      case 0xda:
        return text(big(2));
      case 0xc6:
      case 0xdb:
        return text(big(4));
      case 0xcc:
        return integer(static_cast<i64>(big(1)));
      case 0xcd:
        return integer(static_cast<i64>(big(2)));
      case 0xce:
        return integer(static_cast<i64>(big(4)));
      case 0xcf:
        return integer(static_cast<i64>(big(8)));
      case 0xd0:
        return integer(static_cast<i8>(big(1)));
      case 0xd1:
        return integer(static_cast<i16>(big(2)));
      case 0xd2:
        return integer(static_cast<i32>(big(4)));
      case 0xd3:
        return integer(static_cast<i64>(big(8)));
      case 0xdc:
        return array(big(2), depth);
      case 0xdd:
        return array(big(4), depth);
      case 0xde:
        return map(big(2), depth);
      case 0xdf:
        return map(big(4), depth);
      default:
        throw LoadError("code object metadata has a value of an unexpected type");
    }
  }

 private:
  u8 byte() {
    if (at_ == end_) throw LoadError("code object metadata ends in the middle of a value");
    return *at_++;
  }
  u64 big(int bytes) {
    u64 value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | byte();
    return value;
  }
  static MsgValue integer(i64 number) {
    MsgValue v;
    v.kind = MsgValue::Kind::integer;
    v.integer = number;
    return v;
  }
  static MsgValue boolean(bool truth) {
    MsgValue v = integer(truth);
    v.kind = MsgValue::Kind::boolean;
    return v;
  }
  MsgValue text(u64 length) {
    if (length > static_cast<u64>(end_ - at_)) throw LoadError("code object metadata ends in the middle of a string");
    MsgValue v;
    v.kind = MsgValue::Kind::text;
    v.text.assign(reinterpret_cast<const char*>(at_), length);
    at_ += length;
    return v;
  }
  MsgValue array(u64 length, int depth) {
    MsgValue v;
    v.kind = MsgValue::Kind::array;
    for (u64 i = 0; i < length; ++i) v.array.push_back(value(depth + 1));
    return v;
  }
  MsgValue map(u64 length, int depth) {
    MsgValue v;
    v.kind = MsgValue::Kind::map;
    for (u64 i = 0; i < length; ++i) {
      MsgValue key = value(depth + 1);
      v.map[key.text] = value(depth + 1);
    }
    return v;
  }

  const u8 *at_, *end_;
};

}  // namespace

const MsgValue* MsgValue::get(const std::string& key) const {
  auto found = map.find(key);
  return found == map.end() ? nullptr : &found->second;
}

i64 MsgValue::integer_at(const std::string& key, i64 otherwise) const {
  const MsgValue* v = get(key);
  return v && (v->kind == Kind::integer || v->kind == Kind::boolean) ? v->integer : otherwise;
}

std::string MsgValue::text_at(const std::string& key) const {
  const MsgValue* v = get(key);
  return v ? v->text : "";
}

MsgValue read_msgpack(const u8* bytes, size_t size) { return Reader(bytes, size).value(0); }

}  // namespace emu
