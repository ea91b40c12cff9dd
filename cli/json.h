// JSON, one object on one line; and the little reading that the tool needs of its own library's JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flashwave::cli {

std::string json_quote(std::string_view text);
std::string json_number(double value);  // shortest that reads back; null for NaN and infinities

class JsonObject {
 public:
  JsonObject& text(std::string_view name, std::string_view value) { return raw(name, json_quote(value)); }
  JsonObject& number(std::string_view name, double value) { return raw(name, json_number(value)); }
  JsonObject& integer(std::string_view name, int64_t value) { return raw(name, std::to_string(value)); }
  JsonObject& boolean(std::string_view name, bool value) { return raw(name, value ? "true" : "false"); }
  JsonObject& null(std::string_view name) { return raw(name, "null"); }
  JsonObject& raw(std::string_view name, std::string_view json);
  std::string str() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

// The value of a member of the outermost object, a string, number or word; empty if it is absent or null.
std::string json_member(std::string_view object, std::string_view name);

}  // namespace flashwave::cli
