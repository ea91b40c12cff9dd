// Every encoding on its own: the data of encodings/*.txt (snippet.h says how to read it), a test per file and target.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "snippet.h"
#include "tests/paths.h"

namespace {

using emu_test::Snippet;

class Encodings : public testing::Test {
 public:
  Encodings(std::string path, std::string target) : path_(std::move(path)), target_(std::move(target)) {}
  void TestBody() override {
    const std::vector<Snippet> snippets = emu_test::read_snippets(path_);
    const emu_test::Assembled assembled = emu_test::assemble(*emu::find_target(target_), snippets);
    for (const std::string& problem : assembled.problems) ADD_FAILURE() << target_ << ": " << problem;
    if (!assembled.program) return;
    emu_test::SnippetRunner runner(*assembled.program);
    for (size_t i = 0; i < assembled.snippets.size(); ++i) {
      const Snippet& snippet = *assembled.snippets[i];
      const std::vector<std::string> wrong = runner.run(snippet, assembled.begin[i], assembled.end[i]);
      if (wrong.empty()) continue;
      std::string message;
      for (size_t k = 0; k < std::min<size_t>(wrong.size(), 4); ++k) message += "\n  " + wrong[k];
      if (wrong.size() > 4) message += "\n  and " + std::to_string(wrong.size() - 4) + " more";
      ADD_FAILURE() << target_ << ": " << snippet.file << ":" << snippet.line << ": " << snippet.instructions << " | "
                    << snippet.before << message;
    }
  }

 private:
  std::string path_, target_;
};

// A file that cannot be read is a test that says so.
class Unreadable : public testing::Test {
 public:
  explicit Unreadable(std::string why) : why_(std::move(why)) {}
  void TestBody() override { FAIL() << why_; }

 private:
  std::string why_;
};

void register_file(const std::filesystem::path& path) {
  const std::string name = path.stem().string();
  std::set<std::string> targets;
  try {
    for (const Snippet& snippet : emu_test::read_snippets(path.string())) {
      targets.insert(snippet.targets.begin(), snippet.targets.end());
    }
  } catch (const std::exception& e) {
    const std::string why = e.what();
    testing::RegisterTest("Encodings", name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [why]() -> testing::Test* { return new Unreadable(why); });
    return;
  }
  for (const std::string& target : targets) {
    testing::RegisterTest("Encodings", (name + "_" + target).c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [path, target]() -> testing::Test* { return new Encodings(path.string(), target); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(flashwave::paths::kEncodings)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    fprintf(stderr, "no data in %s\n", flashwave::paths::kEncodings);
    return 1;
  }
  for (const auto& file : files) register_file(file);
  return RUN_ALL_TESTS();
}
