#include "options.h"

#include <algorithm>

#include "errors.h"
#include "words.h"

namespace flashwave::cli {

Options::Options(const std::vector<std::string>& arguments, const std::vector<std::string>& allowed) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.empty() || argument[0] != '-') {
      words_ += (words_.empty() ? "" : " ") + argument;
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const bool plain = std::find(allowed.begin(), allowed.end(), name) != allowed.end();
    const bool valued = std::find(allowed.begin(), allowed.end(), name + "=") != allowed.end();
    if (!plain && !valued) throw UsageError("unknown option " + name);
    if (values_.count(name)) throw UsageError("option " + name + " is given twice");
    if (plain) {
      if (equals != std::string::npos) throw UsageError("option " + name + " takes no value");
      values_[name] = "";
    } else if (equals != std::string::npos) {
      values_[name] = argument.substr(equals + 1);
    } else {
      if (i + 1 == arguments.size()) throw UsageError("option " + name + " needs a value");
      values_[name] = arguments[++i];
    }
  }
}

std::string Options::text(const std::string& name, const std::string& otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : found->second;
}

int64_t Options::integer(const std::string& name, int64_t otherwise, int64_t low, int64_t high) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : parse_integer(found->second, name, low, high);
}

void Options::no_words() const {
  if (!words_.empty()) throw UsageError("unexpected argument '" + words_ + "'");
}

}  // namespace flashwave::cli
