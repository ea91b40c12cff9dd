#include "suite.h"

#include <fstream>
#include <sstream>

#include "errors.h"
#include "random.h"
#include "words.h"

namespace flashwave::cli {
namespace {

// The alternatives of the group that opens at text[open] == '{', and the position behind its '}'.
struct Group {
  std::vector<std::string> alternatives;
  size_t end;
};

Group read_group(const std::string& text, size_t open) {
  Group group;
  std::string current;
  int depth = 0;
  for (size_t i = open + 1; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '}' && depth == 0) {
      group.alternatives.push_back(current);
      group.end = i + 1;
      return group;
    }
    if (c == '|' && depth == 0) {
      group.alternatives.push_back(current);
      current.clear();
      continue;
    }
    depth += c == '{';
    depth -= c == '}';
    current += c;
  }
  throw UsageError("a { is not closed");
}

// Replaces the first {a|b} (not ?{a|b}) by each of its alternatives in turn, recursively.
void expand_product(const std::string& text, std::vector<std::string>& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '?' && i + 1 < text.size() && text[i + 1] == '{') {
      i = read_group(text, i + 1).end - 1;
      continue;
    }
    if (text[i] != '{') continue;
    const Group group = read_group(text, i);
    for (const std::string& alternative : group.alternatives) {
      expand_product(text.substr(0, i) + alternative + text.substr(group.end), out);
    }
    return;
  }
  out.push_back(text);
}

// Replaces ?{a|b} and ~low..high from left to right by random choices.
std::string draw(std::string text, Random& random) {
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '?' && i + 1 < text.size() && text[i + 1] == '{') {
      const Group group = read_group(text, i + 1);
      const auto pick = size_t(random.integer(0, int64_t(group.alternatives.size()) - 1));
      text = text.substr(0, i) + group.alternatives[pick] + text.substr(group.end);
    } else if (text[i] == '~') {
      const size_t end = std::min(text.find_first_of(" ,:", i), text.size());
      const std::string range = text.substr(i + 1, end - i - 1);
      const size_t dots = range.find("..");
      if (dots == std::string::npos) throw UsageError("~" + range + " is not ~low..high");
      const int64_t low = parse_integer(range.substr(0, dots), "~low", 0, int64_t{1} << 40);
      const int64_t high = parse_integer(range.substr(dots + 2), "~high", low, int64_t{1} << 40);
      text = text.substr(0, i) + std::to_string(random.integer(low, high)) + text.substr(end);
    } else {
      ++i;
    }
  }
  return text;
}

std::string trim(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

void expand_line(Suite& suite, std::string line, uint64_t seed) {
  int64_t draws = 1;
  if (line[0] == '*') {
    const size_t end = std::min(line.find(' '), line.size());
    draws = parse_integer(line.substr(1, end - 1), "*N", 1, 1000000);
    line = line.substr(end);
  }
  std::vector<std::string> product;
  expand_product(line, product);
  for (const std::string& text : product) {
    for (int64_t n = 0; n < draws; ++n) {
      const uint64_t problem_seed = mix(mix(seed, hash_text(text)), uint64_t(n));
      Random random(problem_seed);
      Case c = parse_case(draw(text, random));
      if (c.seed == 0) c.seed = problem_seed % 1000000 + 1;  // short enough to read, never "none"
      suite.problems.push_back(format_case(c));
    }
  }
}

}  // namespace

Suite expand_suite(const std::string& name, std::string_view text, uint64_t seed) {
  Suite suite;
  suite.name = name;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    try {
      if (line.starts_with("@rounds ")) {
        suite.rounds = parse_integer(trim(line.substr(8)), "@rounds", 1, 1000);
      } else if (line.starts_with("@samples ")) {
        suite.samples = parse_integer(trim(line.substr(9)), "@samples", 1, 100000);
      } else if (line[0] == '@') {
        throw UsageError("unknown setting " + line);
      } else {
        expand_line(suite, line, seed);
      }
    } catch (const UsageError& error) {
      throw UsageError("suite " + name + ", line " + std::to_string(number) + ": " + error.what());
    }
  }
  return suite;
}

Suite load_suite(const std::string& kind, const std::string& name, uint64_t seed) {
  for (const EmbeddedSuite* s = kEmbeddedSuites; s->kind; ++s) {
    if (kind == s->kind && name == s->name) return expand_suite(name, s->text, seed);
  }
  std::ifstream file(name);
  if (!file) {
    throw UsageError("--suite " + name + ": neither a file nor one of " + embedded_suite_names(kind));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return expand_suite(name, text.str(), seed);
}

std::string embedded_suite_names(const std::string& kind) {
  std::string names;
  for (const EmbeddedSuite* s = kEmbeddedSuites; s->kind; ++s) {
    if (kind == s->kind) names += (names.empty() ? "" : ", ") + std::string(s->name);
  }
  return names;
}

}  // namespace flashwave::cli
