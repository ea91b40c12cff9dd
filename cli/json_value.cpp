#include "json_value.h"

#include <charconv>
#include <stdexcept>

namespace flashwave::cli {
namespace {

constexpr int kDeepest = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  JsonValue whole() {
    JsonValue value = next(0);
    skip_space();
    if (at_ != text_.size()) fail("something after the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("JSON at byte " + std::to_string(at_) + ": " + what);
  }
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void expect(char c) {
    skip_space();
    if (!take({&c, 1})) fail(std::string("'") + c + "' is expected");
  }

  JsonValue next(int depth) {
    if (depth > kDeepest) fail("nested too deeply");
    skip_space();
    JsonValue value;
    if (take("{")) {
      value.kind = JsonValue::Kind::kObject;
      list('}', [&] {
        std::string name = string();
        expect(':');
        value.members[std::move(name)] = next(depth + 1);
      });
    } else if (take("[")) {
      value.kind = JsonValue::Kind::kArray;
      list(']', [&] { value.items.push_back(next(depth + 1)); });
    } else if (at_ < text_.size() && text_[at_] == '"') {
      value.kind = JsonValue::Kind::kString;
      value.text = string();
    } else if (take("true") || take("false")) {
      value.kind = JsonValue::Kind::kBoolean;
      value.number = text_[at_ - 2] == 'u';
    } else if (!take("null")) {
      value.kind = JsonValue::Kind::kNumber;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value.number);
      if (error != std::errc()) fail("a value is expected");
      at_ = size_t(end - text_.data());
    }
    return value;
  }

  template <class Element>
  void list(char close, Element&& element) {
    skip_space();
    if (take({&close, 1})) return;
    do {
      element();
      skip_space();
    } while (take(","));
    expect(close);
  }

  std::string string() {
    expect('"');
    std::string out;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] != '\\') {
        out += text_[at_++];
        continue;
      }
      if (++at_ == text_.size()) break;
      const char c = text_[at_++];
      if (c == 'u') {
        unsigned code = 0;
        if (at_ + 4 > text_.size()) fail("a cut off escape");
        std::from_chars(text_.data() + at_, text_.data() + at_ + 4, code, 16);
        at_ += 4;
        out += char(code);  // the writers escape control characters alone
      } else {
        out += c == 'n' ? '\n' : c == 't' ? '\t' : c;
      }
    }
    expect('"');
    return out;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

const JsonValue& JsonValue::operator[](std::string_view name) const {
  static const JsonValue kNothing;
  const auto found = members.find(name);
  return found == members.end() ? kNothing : found->second;
}

JsonValue parse_json(std::string_view text) { return Parser(text).whole(); }

}  // namespace flashwave::cli
