#include "json.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace flashwave::cli {

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", unsigned(static_cast<unsigned char>(c)));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char digits[40];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

JsonObject& JsonObject::raw(std::string_view name, std::string_view json) {
  if (!body_.empty()) body_ += ", ";
  body_ += json_quote(name) + ": ";
  body_ += json;
  return *this;
}

namespace {

// Reads the string that starts at text[at] == '"'; leaves `at` behind the closing quote.
std::string read_string(std::string_view text, size_t& at) {
  std::string out;
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\' && at + 1 < text.size()) ++at;
    out += text[at];
  }
  ++at;
  return out;
}

}  // namespace

std::string json_member(std::string_view object, std::string_view name) {
  int depth = 0;
  for (size_t at = 0; at < object.size();) {
    const char c = object[at];
    if (c != '"') {
      depth += c == '{' || c == '[';
      depth -= c == '}' || c == ']';
      ++at;
      continue;
    }
    const std::string key = read_string(object, at);
    const size_t next = object.find_first_not_of(" \t\n", at);
    if (depth != 1 || key != name || next == std::string_view::npos || object[next] != ':') continue;
    at = object.find_first_not_of(" \t\n", next + 1);
    if (at == std::string_view::npos) return "";
    if (object[at] == '"') return read_string(object, at);
    const std::string_view word = object.substr(at, object.find_first_of(",}] \t\n", at) - at);
    return word == "null" ? "" : std::string(word);
  }
  return "";
}

}  // namespace flashwave::cli
