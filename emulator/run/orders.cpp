// A launch in one order of its waves, or in two, to see whether the result depends on it.
#include <algorithm>
#include <cstring>

#include "core/access.h"
#include "run/once.h"

namespace emu {
namespace {

// What a kernel can change, as it was at one time.
class MemoryCopy {
 public:
  MemoryCopy(const std::vector<Region>& memory, const Program& program) {
    for (const Region& region : memory) {
      if (region.writable && !region.freed) keep(region);
    }
    const u64 image = reinterpret_cast<u64>(program.image);
    keep({image, image + program.image_bytes, "the code object", true, false});
  }

  void restore() const {
    for (const Kept& kept : kept_) std::memcpy(memory_at(kept.region.begin), kept.bytes.data(), kept.bytes.size());
  }

  // Against memory as it is now: how many bytes differ, where the first of them is and in what.
  struct Difference {
    u64 bytes = 0, first = 0;
    std::string region;
  };
  Difference difference() const {
    Difference found;
    for (const Kept& kept : kept_) {
      const u8* now = memory_at(kept.region.begin);
      if (std::memcmp(now, kept.bytes.data(), kept.bytes.size()) == 0) continue;
      for (size_t i = 0; i < kept.bytes.size(); ++i) {
        if (now[i] == kept.bytes[i]) continue;
        if (found.bytes++ == 0) found = {1, kept.region.begin + i, kept.region.name};
      }
    }
    return found;
  }

 private:
  struct Kept {
    Region region;
    std::vector<u8> bytes;
  };
  void keep(const Region& region) {
    if (region.begin == region.end) return;
    kept_.push_back({region, {memory_at(region.begin), memory_at(region.end)}});
  }
  std::vector<Kept> kept_;
};

Report order_report(const Kernel& kernel, const std::string& message) {
  Report report;
  report.check = Check::order;
  report.kernel = kernel.name;
  report.message = message;
  report.wave = -1;
  return report;
}

// Reports of both runs, those of the second marked if the first has not got them.
void join_reports(std::vector<Report>& reports, const std::vector<Report>& in_lockstep, bool same) {
  for (const Report& report : in_lockstep) {
    const bool known = std::any_of(reports.begin(), reports.end(), [&](const Report& r) {
      return r.check == report.check && r.code_address == report.code_address;
    });
    if (known) continue;
    reports.push_back(report);
    reports.back().message += " (in lockstep only)";
  }
  for (Report& report : reports) {
    if (report.check == Check::lds_race) {
      report.message += same ? "; the result is the same in lockstep" : "; the result differs in lockstep";
    }
  }
}

LaunchResult run_in_both(const Program& program, const Kernel& kernel, const LaunchShape& shape, const void* arguments,
                         size_t argument_bytes, const std::vector<Region>& memory, RunOptions options) {
  options.threads = 1;  // the order of workgroups is another matter
  options.order = WaveOrder::waves;
  const MemoryCopy before(memory, program);
  LaunchResult result = run_once(program, kernel, shape, arguments, argument_bytes, memory, options);
  if (!result.error.empty()) return result;
  const MemoryCopy after(memory, program);
  before.restore();
  options.order = WaveOrder::lockstep;
  options.trace = options.count = false;
  options.on_instruction = nullptr;
  const LaunchResult lockstep = run_once(program, kernel, shape, arguments, argument_bytes, memory, options);
  const MemoryCopy::Difference difference = after.difference();
  after.restore();

  const bool same = lockstep.error.empty() && difference.bytes == 0;
  result.orders = same ? OrdersCompared::same : OrdersCompared::different;
  join_reports(result.reports, lockstep.reports, same);
  if (!options.checks.on(Check::order) || same) return result;
  if (!lockstep.error.empty()) {
    result.reports.push_back(order_report(kernel, "in lockstep the kernel does not finish: " + lockstep.error));
    return result;
  }
  Report report = order_report(kernel, "the result depends on the order of waves: " + std::to_string(difference.bytes) +
                                           " bytes differ in lockstep, the first in " + difference.region);
  report.address = difference.first;
  report.has_address = true;
  result.reports.push_back(report);
  return result;
}

}  // namespace

LaunchResult run_kernel(const Program& program, const Kernel& kernel, const LaunchShape& shape, const void* arguments,
                        size_t argument_bytes, std::vector<Region> memory, const RunOptions& options) {
  if (options.order == WaveOrder::compare) {
    return run_in_both(program, kernel, shape, arguments, argument_bytes, memory, options);
  }
  return run_once(program, kernel, shape, arguments, argument_bytes, std::move(memory), options);
}

}  // namespace emu
