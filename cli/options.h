// The options of a command: what is allowed, what was given.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace flashwave::cli {

class Options {
 public:
  // `allowed`: option names; those ending in '=' take a value ("--suite=" accepts "--suite X" and "--suite=X").
  // Throws UsageError on anything else that starts with '-'.
  Options(const std::vector<std::string>& arguments, const std::vector<std::string>& allowed);

  bool has(const std::string& name) const { return values_.count(name) > 0; }
  std::string text(const std::string& name, const std::string& otherwise) const;
  int64_t integer(const std::string& name, int64_t otherwise, int64_t low, int64_t high) const;
  const std::string& words() const { return words_; }  // everything that is not an option, joined by blanks
  void no_words() const;                               // throws UsageError if there are any

 private:
  std::map<std::string, std::string> values_;
  std::string words_;
};

}  // namespace flashwave::cli
