#include <charconv>
#include <fstream>
#include <iterator>

#include "hip/bundle.h"
#include "hip/devices.h"
#include "tool/tool.h"

namespace emu::tool {

CommandLine::CommandLine(const std::vector<std::string>& words, const std::map<std::string, int>& options) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.size() < 2 || word[0] != '-' || word[1] != '-') {
      words_.push_back(word);
      continue;
    }
    const auto known = options.find(word);
    if (known == options.end()) throw UsageError("unknown option " + word);
    if (given_.count(word) > 0) throw UsageError("option " + word + " is given twice");
    std::vector<std::string>& values = given_[word];
    for (int n = 0; n < known->second; ++n) {
      if (++i == words.size()) {
        throw UsageError("option " + word + " needs " + (known->second == 1 ? "a value" : "two values"));
      }
      values.push_back(words[i]);
    }
  }
}

std::string CommandLine::value(const std::string& name, const std::string& otherwise) const {
  const auto found = given_.find(name);
  return found == given_.end() ? otherwise : found->second.front();
}

u64 parse_unsigned(const std::string& text, const std::string& what) {
  u64 number = 0;
  const bool hex = text.starts_with("0x");
  const char* begin = text.data() + (hex ? 2 : 0);
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(begin, end, number, hex ? 16 : 10);
  if (error != std::errc() || stopped != end) throw UsageError(what + " must be a whole number, got '" + text + "'");
  return number;
}

std::unique_ptr<Program> load_file(const std::string& path, const std::string& arch) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": cannot be read");
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (bytes.empty()) throw std::runtime_error(path + ": is empty");
  if (!arch.empty() && find_target(arch) == nullptr) {
    throw UsageError("--arch " + arch + " is not emulated; there are: " + hip::architectures());
  }
  hip::Image image;
  for (const Target& target : all_targets()) {
    if (!arch.empty() && arch != target.name) continue;
    image = hip::find_image(bytes.data(), bytes.size(), target);
    if (!image.code.empty() || !image.wrong_target) break;
  }
  if (image.code.empty()) {
    const bool any = image.wrong_target && arch.empty();
    throw std::runtime_error(path + ": " + (any ? "holds no code for a GPU that is emulated" : image.error));
  }
  return load_program(image.code.data(), image.code.size());
}

const Kernel& choose_kernel(const Program& program, const std::string& name) {
  std::string names;
  for (const auto& [known, kernel] : program.kernels) {
    if (known == name || (name.empty() && program.kernels.size() == 1)) return kernel;
    names += (names.empty() ? "" : ", ") + known;
  }
  if (names.empty()) throw std::runtime_error("the code object has no kernels");
  if (name.empty()) throw UsageError("--kernel must be one of: " + names);
  throw UsageError("there is no kernel '" + name + "'; there are: " + names);
}

}  // namespace emu::tool
