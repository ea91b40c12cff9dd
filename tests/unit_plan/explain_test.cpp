#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "problem/cost.h"
#include "tests/unit_plan/problems.h"

namespace flashwave {
namespace {

// A strict reader of JSON: objects, arrays, strings, numbers, true, false, null.
struct Json {
  enum Kind { kNull, kBool, kNumber, kString, kArray, kObject } kind = kNull;
  std::string text;  // string, number or bool
  std::vector<Json> items;
  std::map<std::string, Json> fields;

  const Json& operator[](const std::string& name) const {
    static const Json missing;
    const auto found = fields.find(name);
    EXPECT_NE(found, fields.end()) << "no field " << name;
    return found == fields.end() ? missing : found->second;
  }
  double number() const {
    EXPECT_EQ(kind, kNumber) << text;
    return std::stod(text);
  }
};

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}
  bool read(Json* out) {
    const bool good = value(out);
    space();
    return good && at_ == text_.size();
  }

 private:
  void space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool eat(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view w) {
    if (!text_.substr(at_).starts_with(w)) return false;
    at_ += w.size();
    return true;
  }
  bool string(std::string* out) {
    if (!eat('"')) return false;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) return false;
      if (text_[at_] == '\\') {
        if (++at_ >= text_.size()) return false;
        const char c = text_[at_];
        if (c == 'u') {
          for (int i = 1; i <= 4; ++i) {
            if (at_ + i >= text_.size() || !std::isxdigit(static_cast<unsigned char>(text_[at_ + i]))) return false;
          }
          *out += static_cast<char>(std::stoi(std::string(text_.substr(at_ + 1, 4)), nullptr, 16));
          at_ += 5;
          continue;
        }
        if (std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos) return false;
      }
      *out += text_[at_++];
    }
    return at_ < text_.size() && text_[at_++] == '"';
  }
  bool digits() {
    const size_t first = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ > first;
  }
  bool number(std::string* out) {
    const size_t first = at_;
    if (text_[at_] == '-') ++at_;
    const size_t whole = at_;
    if (!digits() || (text_[whole] == '0' && at_ - whole > 1)) return false;
    if (at_ < text_.size() && text_[at_] == '.' && (++at_, !digits())) return false;
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      if (!digits()) return false;
    }
    *out = text_.substr(first, at_ - first);
    return true;
  }
  bool value(Json* out) {
    space();
    if (at_ >= text_.size()) return false;
    switch (text_[at_]) {
      case '{':
        return object(out);
      case '[':
        return array(out);
      case '"':
        out->kind = Json::kString;
        return string(&out->text);
      case 'n':
        return word("null");
      case 't':
      case 'f':
        out->kind = Json::kBool;
        out->text = text_[at_] == 't' ? "true" : "false";
        return word(out->text);
      default:
        out->kind = Json::kNumber;
        return number(&out->text);
    }
  }
  bool object(Json* out) {
    out->kind = Json::kObject;
    eat('{');
    if (eat('}')) return true;
    do {
      std::string name;
      space();
      if (!string(&name) || !eat(':') || out->fields.count(name) || !value(&out->fields[name])) return false;
    } while (eat(','));
    return eat('}');
  }
  bool array(Json* out) {
    out->kind = Json::kArray;
    eat('[');
    if (eat(']')) return true;
    do {
      if (!value(&out->items.emplace_back())) return false;
    } while (eat(','));
    return eat(']');
  }

  std::string_view text_;
  size_t at_ = 0;
};

Json parsed(const std::string& text) {
  Json json;
  EXPECT_TRUE(JsonReader(text).read(&json)) << text;
  return json;
}

struct Explained {
  Plan plan;
  Status status;
  std::string text;
  Json json;
};
Explained explained(const Problem& problem, const DeviceInfo& device, const PlanOptions& options = {}) {
  Explained e;
  e.status = make_plan(problem, device, options, &e.plan);
  e.text = explain_text(problem, device, e.plan, e.status);
  e.json = parsed(explain_json(problem, device, e.plan, e.status));
  return e;
}

TEST(JsonReader, RefusesWhatIsNotJson) {
  for (const char* bad : {"", "{", "{}{}", "{\"a\": }", "[1,]", "{\"a\" 1}", "\"\n\"", "\"\\x\"", "01", "1.", "nul",
                          "{\"a\": 1, \"a\": 2}"}) {
    Json json;
    EXPECT_FALSE(JsonReader(bad).read(&json)) << bad;
  }
}

TEST(Explain, SaysWhatRunsAndWhyTheOthersDoNot) {
  const Problem problem = forward_problem();
  const DeviceInfo cpu = cpu_with(kIsaAvx2);
  const Explained e = explained(problem, cpu, {nullptr, 4});
  ASSERT_TRUE(e.status.ok());
  const KernelRow& row = *e.plan.selection.row;
  EXPECT_EQ(e.json["status"].text, "ok");
  EXPECT_EQ(e.json["device"].text, "cpu");
  EXPECT_EQ(e.json["op"].text, "forward");
  EXPECT_EQ(e.json["problem"].text, describe(problem));
  EXPECT_EQ(e.json["kernel"].text, row.name);
  EXPECT_EQ(e.json["tile"].items.size(), 2u);
  EXPECT_EQ(e.json["tile"].items.at(0).number(), row.tile_q);
  EXPECT_EQ(e.json["tile"].items.at(1).number(), row.tile_k);
  EXPECT_EQ(e.json["splits"].number(), e.plan.schedule.splits);
  EXPECT_EQ(e.json["tasks"].number(), static_cast<double>(e.plan.schedule.tasks));
  EXPECT_EQ(e.json["threads"].number(), e.plan.threads);
  EXPECT_EQ(e.json["workspace_bytes"].number(), static_cast<double>(e.plan.workspace_bytes()));
  EXPECT_EQ(e.json["flops"].number(), cost_of(problem, false).flops);
  EXPECT_EQ(e.json["bytes"].number(), cost_of(problem, false).bytes);
  EXPECT_EQ(e.json.fields.count("message"), 0u);
  const auto& refused = e.json["refused"].items;
  ASSERT_EQ(refused.size(), e.plan.selection.refused.size());
  ASSERT_FALSE(refused.empty());
  for (size_t i = 0; i < refused.size(); ++i) {
    EXPECT_EQ(refused[i]["kernel"].text, e.plan.selection.refused[i].row->name);
    EXPECT_EQ(refused[i]["reason"].text, e.plan.selection.refused[i].reason);
    EXPECT_NE(e.text.find(e.plan.selection.refused[i].row->name), std::string::npos);
    EXPECT_NE(e.text.find(": " + e.plan.selection.refused[i].reason), std::string::npos);
  }
  EXPECT_NE(e.text.find(row.name), std::string::npos);
  EXPECT_NE(e.text.find(describe(problem)), std::string::npos);
  EXPECT_NE(e.text.find(cpu.description), std::string::npos);
}

TEST(Explain, KernelsOfOneReasonShareALineAndThoseOfOtherGpusAreCounted) {
  const auto gpu_row = [&](const char* name) {
    static std::vector<KernelRow> rows(4);  // never grows: the plan keeps addresses
    static size_t used = 0;
    KernelRow& row = rows.at(used++);
    row = catalog()[0];
    row.name = name;
    row.threads = 256;
    return &row;
  };
  Explained e = explained(forward_problem(), cpu_with(kIsaNone));
  ASSERT_TRUE(e.status.ok());
  e.plan.selection.refused = {{gpu_row("tiny_a"), "takes seqlen_k <= 2, got 9", Reason::kTooLarge},
                              {gpu_row("other_gpu"), "needs the matrix instructions of RDNA 3", Reason::kIsa},
                              {gpu_row("tiny_b"), "takes seqlen_k <= 2, got 9", Reason::kTooLarge},
                              {gpu_row("other_type"), "does not take bf16", Reason::kDtype}};
  const std::string text = explain_text(forward_problem(), cpu_with(kIsaNone), e.plan, e.status);
  EXPECT_NE(text.find("refused    tiny_a, tiny_b: takes seqlen_k <= 2, got 9\n"
                      "           and 2 kernels for other GPUs or element types\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("other_"), std::string::npos);
  const Json json = parsed(explain_json(forward_problem(), cpu_with(kIsaNone), e.plan, e.status));
  EXPECT_EQ(json["refused"].items.size(), 4u) << "a program is told of all";
}

TEST(Explain, NamesThePrePassAndTheBackward) {
  const Explained append = explained(append_problem(), cpu_with(kIsaNone));
  EXPECT_EQ(append.json["prepass"].text, "append_kv");
  EXPECT_NE(append.text.find("append_kv"), std::string::npos);
  const Explained backward = explained(backward_problem(), cpu_with(kIsaNone));
  EXPECT_EQ(backward.json["op"].text, "backward");
  EXPECT_EQ(backward.json.fields.count("prepass"), 0u);
}

TEST(Explain, NamesWhatFillsRows) {
  Problem problem = forward_problem();
  problem.a.cu_seqlens_q = present<int32_t>(), problem.a.total_q = 20;
  EXPECT_EQ(explained(problem, cpu_with(kIsaNone)).json.fields.count("fill"), 0u);
  problem.a.flags |= FW_FILL_UNUSED;
  const Explained filled = explained(problem, cpu_with(kIsaNone));
  EXPECT_EQ(filled.json["fill"].text, "fill_unused");
  EXPECT_NE(filled.json["problem"].text.find(" fill=1"), std::string::npos);
  EXPECT_NE(filled.text.find("fill       fill_unused"), std::string::npos);
}

TEST(Explain, SaysWhetherTheKernelIsTheSlowPath) {
  const Explained fast = explained(forward_problem(), cpu_with(kIsaAvx2));
  EXPECT_EQ(fast.json["slow_path"].text, "false");
  EXPECT_EQ(fast.text.find("slow path"), std::string::npos);
  const Explained slow = explained(forward_problem(), cpu_with(kIsaAvx2), {"reference_fwd", 1});
  EXPECT_EQ(slow.json["slow_path"].text, "true");
  EXPECT_NE(slow.text.find("slow path"), std::string::npos);
}

TEST(Explain, NothingTakesIt) {
  Problem problem = forward_problem();
  problem.a.dim_qk = problem.a.dim_v = 1024;
  const Explained e = explained(problem, cpu_with(kIsaNone));
  EXPECT_EQ(e.json["status"].text, "unsupported");
  EXPECT_EQ(e.json["message"].text, e.status.message);
  EXPECT_EQ(e.json["kernel"].kind, Json::kNull);
  EXPECT_FALSE(e.json["refused"].items.empty());
  EXPECT_NE(e.text.find(e.status.message), std::string::npos);
}

TEST(Explain, StringsAreEscaped) {
  DeviceInfo device = cpu_with(kIsaNone);
  device.arch = "quote \" backslash \\ newline \n tab \t bell \a";
  EXPECT_EQ(explained(forward_problem(), device).json["arch"].text, device.arch);
  const Explained odd = explained(forward_problem(), device, {"na\"\n\\me", 1});
  EXPECT_EQ(odd.json["refused"].items.at(0)["kernel"].kind, Json::kNull);
  EXPECT_NE(odd.json["message"].text.find("'na\"\n\\me'"), std::string::npos);
}

}  // namespace
}  // namespace flashwave
