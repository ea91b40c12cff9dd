#include "hip/results.h"

#include <cstdio>
#include <deque>
#include <mutex>

#include "count/bounds.h"
#include "count/issue_model.h"

namespace emu::hip {
namespace {

constexpr size_t kMostReports = 4096, kMostLaunches = 1024;

struct Kept {
  std::mutex mutex;
  std::deque<std::string> reports;  // the first ones
  size_t report_count = 0;
  struct Launch {
    int device;
    std::string json;
  };
  std::deque<Launch> launches;  // the latest ones
};

Kept& kept() {
  static auto& results = *new Kept;  // never destroyed: kernels of other threads may run while the process exits
  return results;
}

std::string list_of(const u32 (&extent)[3]) {
  return "[" + std::to_string(extent[0]) + ", " + std::to_string(extent[1]) + ", " + std::to_string(extent[2]) + "]";
}

std::string model_json(const IssueModelResult& model) {
  char text[160];
  std::snprintf(text, sizeof text,
                "{\"clocks\": %.17g, \"matrix_busy\": %.6g, \"vector_busy\": %.6g, \"lds_busy\": %.6g}", model.clocks,
                model.matrix_busy, model.vector_busy, model.lds_busy);
  return text;
}

// Kernel and target names hold nothing that JSON would have to escape: they are symbols.
std::string launch_json(const LaunchId& launch, const LaunchResult& result, const Settings& settings) {
  std::string text = "{\"kernel\": \"" + launch.kernel->name + "\", \"device\": " + std::to_string(launch.device) +
                     ", \"arch\": \"" + launch.program->target->name + "\", \"grid\": " + list_of(launch.shape.grid) +
                     ", \"block\": " + list_of(launch.shape.block) +
                     ", \"dynamic_lds\": " + std::to_string(launch.shape.dynamic_lds) +
                     ", \"counters\": " + counters_json(launch_counters(*launch.program, result));
  if (settings.model && !result.trace.empty()) {
    text += ", \"model\": " + model_json(model_issue(*launch.program, result, {}));
  }
  return text + "}";
}

}  // namespace

std::string reports_text(const LaunchResult& result) {
  std::string text;
  for (const Report& report : result.reports) text += (text.empty() ? "" : "\n") + report.text();
  return text;
}

void keep_results(const LaunchId& launch, const LaunchResult& result, const Settings& settings) {
  if (settings.log && !result.reports.empty()) std::fprintf(stderr, "%s\n", reports_text(result).c_str());
  // A launch that did not finish has nothing to compare with others.
  std::string json = result.error.empty() ? launch_json(launch, result, settings) : "";
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  for (const Report& report : result.reports) {
    ++all.report_count;
    if (all.reports.size() < kMostReports) all.reports.push_back(report.text());
  }
  if (json.empty()) return;
  all.launches.push_back({launch.device, std::move(json)});
  if (all.launches.size() > kMostLaunches) all.launches.pop_front();
}

std::string kept_reports() {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  std::string text;
  for (const std::string& report : all.reports) text += report + "\n";
  if (all.report_count > all.reports.size()) {
    text += "and " + std::to_string(all.report_count - all.reports.size()) + " more\n";
  }
  return text;
}

size_t kept_report_count() {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  return all.report_count;
}

void forget_reports() {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  all.reports.clear();
  all.report_count = 0;
}

std::string kept_counters(int device) {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  std::string list;
  for (const Kept::Launch& launch : all.launches) {
    if (device >= 0 && launch.device != device) continue;
    list += (list.empty() ? "" : ", ") + launch.json;
  }
  return "[" + list + "]";
}

void forget_counters(int device) {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.launches, [&](const Kept::Launch& launch) { return device < 0 || launch.device == device; });
}

}  // namespace emu::hip
