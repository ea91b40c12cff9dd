// A plan in words, for people and for programs. Touches no tensor data and no device.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "problem/cost.h"

namespace flashwave {
namespace {

const char* op_word(const Problem& problem) { return problem.backward ? "backward" : "forward"; }

const char* status_word(fw_status code) {
  switch (code) {
    case FW_OK:
      return "ok";
    case FW_INVALID_ARGUMENT:
      return "invalid_argument";
    case FW_UNSUPPORTED:
      return "unsupported";
    case FW_NO_DEVICE:
      return "no_device";
    case FW_OUT_OF_MEMORY:
      return "out_of_memory";
    case FW_WORKSPACE_TOO_SMALL:
      return "workspace_too_small";
    case FW_DEVICE_ERROR:
      return "device_error";
    case FW_INTERNAL_ERROR:
      return "internal_error";
  }
  return "unknown";
}

// The shortest digits that read back as the same number, whatever the locale.
std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  return std::string(digits, end);
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

// An object written field by field.
class JsonObject {
 public:
  void field(std::string_view name, const std::string& json) {
    text_ += (text_.empty() ? "" : ", ") + quoted(name) + ": " + json;
  }
  void text(std::string_view name, std::string_view value) { field(name, quoted(value)); }
  void integer(std::string_view name, int64_t value) { field(name, std::to_string(value)); }
  std::string str() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

std::string refused_json(const Selection& selection) {
  std::string list;
  for (const Refusal& r : selection.refused) {
    JsonObject entry;
    entry.field("kernel", r.row ? quoted(r.row->name) : "null");
    entry.text("reason", r.reason);
    list += (list.empty() ? "" : ", ") + entry.str();
  }
  return "[" + list + "]";
}

// Of a GPU's kernels most are for other GPUs or other element types, which is no news: they are counted. Others that
// give one reason share a line.
bool is_news(const Refusal& refusal) {
  const bool of_gpu = refusal.row != nullptr && refusal.row->threads > 0;
  return !of_gpu || (refusal.rule != Reason::kIsa && refusal.rule != Reason::kDtype);
}

std::vector<std::string> refusals_in_words(const Selection& selection) {
  constexpr size_t kNamesWidth = 96;
  std::vector<std::string> reasons, lines;
  size_t others = 0;
  for (const Refusal& r : selection.refused) {
    if (!is_news(r)) {
      ++others;
    } else if (std::ranges::find(reasons, r.reason) == reasons.end()) {
      reasons.push_back(r.reason);
    }
  }
  for (const std::string& reason : reasons) {
    std::string names;
    const auto end_line = [&](const std::string& end) {
      lines.push_back(names + end);
      names.clear();
    };
    for (const Refusal& r : selection.refused) {
      if (!is_news(r) || r.reason != reason || r.row == nullptr) continue;
      if (!names.empty() && names.size() + 2 + std::string_view(r.row->name).size() > kNamesWidth) end_line(",");
      names += (names.empty() ? "" : ", ") + std::string(r.row->name);
    }
    end_line(names.empty() ? reason : ": " + reason);
  }
  if (others > 0) {
    const std::string count = std::to_string(others) + (others == 1 ? " kernel" : " kernels");
    lines.push_back((lines.empty() ? "" : "and ") + count + " for other GPUs or element types");
  }
  return lines;
}

std::string names_json(const std::vector<Step>& steps) {
  std::string list;
  for (const Step& step : steps) list += (list.empty() ? "" : ", ") + quoted(step.row->name);
  return "[" + list + "]";
}

}  // namespace

std::string explain_json(const Problem& problem, const DeviceInfo& device, const Plan& plan, const Status& planned) {
  const Cost cost = cost_of(problem, false);
  JsonObject out;
  out.text("status", status_word(planned.code));
  if (!planned.ok()) out.text("message", planned.message);
  out.text("device", device.name);
  out.text("arch", device.arch);
  out.text("op", op_word(problem));
  out.text("problem", describe(problem));
  if (planned.ok()) {
    const KernelRow& row = *plan.selection.row;
    out.text("kernel", row.name);
    out.field("slow_path", is_slow_path(row) ? "true" : "false");
    if (plan.convert) out.text("convert", plan.convert->name);
    if (plan.fill) out.text("fill", plan.fill->name);
    if (plan.append) out.text("prepass", plan.append->name);
    if (!plan.before.empty()) out.field("first", names_json(plan.before));
    if (!plan.after.empty()) out.field("then", names_json(plan.after));
    out.field("tile", "[" + std::to_string(row.tile_q) + ", " + std::to_string(row.tile_k) + "]");
    out.integer("splits", plan.splits);
    out.integer("tasks", plan.schedule.tasks);
    out.integer("threads", plan.threads);
    out.integer("workspace_bytes", static_cast<int64_t>(plan.workspace_bytes()));
  } else {
    out.field("kernel", "null");
  }
  out.field("flops", number(cost.flops));
  out.field("bytes", number(cost.bytes));
  out.field("refused", refused_json(plan.selection));
  return out.str() + "\n";
}

std::string explain_text(const Problem& problem, const DeviceInfo& device, const Plan& plan, const Status& planned) {
  const Cost cost = cost_of(problem, false);
  std::string out;
  const auto line = [&](const std::string& name, const std::string& value) {
    out += name + std::string(11 - name.size(), ' ') + value + "\n";
  };
  line("device",
       device.name + " (" + device.arch + (device.description.empty() ? "" : ", " + device.description) + ")");
  line("op", op_word(problem));
  line("problem", describe(problem));
  if (planned.ok()) {
    const KernelRow& row = *plan.selection.row;
    line("kernel", row.name);
    if (is_slow_path(row)) line("slow path", "it takes any problem, and is slower than the kernels before it");
    if (plan.convert) line("convert", plan.convert->name + std::string(": fp16 to bf16 before, and back after"));
    if (plan.fill) line("fill", plan.fill->name + std::string(": rows of no sequence"));
    if (plan.append) line("pre-pass", plan.append->name);
    for (const Step& step : plan.before) line("first", step.row->name);
    for (const Step& step : plan.after) line("then", step.row->name);
    line("tile", std::to_string(row.tile_q) + " queries x " + std::to_string(row.tile_k) + " keys");
    line("splits", std::to_string(plan.splits));
    line("tasks", std::to_string(plan.schedule.tasks));
    line("threads", std::to_string(plan.threads));
    line("workspace", std::to_string(plan.workspace_bytes()) + " bytes");
  } else {
    line("kernel", "none");
    line("status", std::string(status_word(planned.code)) + ": " + planned.message);
  }
  line("flops", number(cost.flops));
  line("bytes", number(cost.bytes));
  const char* heading = "refused";
  for (const std::string& text : refusals_in_words(plan.selection)) {
    line(heading, text);
    heading = "";
  }
  return out;
}

}  // namespace flashwave
