// Reading JSON: what the library's own functions write.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace flashwave::cli {

struct JsonValue {
  enum class Kind { kNull, kBoolean, kNumber, kString, kArray, kObject } kind = Kind::kNull;
  double number = 0;  // of a boolean 0 or 1
  std::string text;
  std::vector<JsonValue> items;
  std::map<std::string, JsonValue, std::less<>> members;

  // A member of an object; a null if there is none.
  const JsonValue& operator[](std::string_view name) const;
};

JsonValue parse_json(std::string_view text);  // throws std::runtime_error

}  // namespace flashwave::cli
