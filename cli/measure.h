// Measuring one problem: is it right, how fast is it, how fast is standard attention, what could the machine do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "peak.h"
#include "words.h"

namespace flashwave::cli {

struct Measurement {
  std::string problem, kernel, fault;  // fault: why the answer is wrong; nothing is timed then
  int threads = 0;
  int64_t samples = 0;
  double ms_p50 = 0, ms_p75 = 0, gflops = 0, flops = 0;
  double cpu_ms = 0;              // time on a core, of all threads; CPU only
  int64_t throttled_samples = 0;  // with the tile unit slowed down by the host before or after
  VectorWidth width = VectorWidth::kNone;
  double peak = 0, ratio_p50 = 0, ratio_p75 = 0;  // CPU only; 0 = not measured
  double standard_ms = 0, standard_bytes = 0;     // 0 = not run
  double workspace_bytes = 0;
  double kv_gbs = 0, read_gbs = 0;  // decoding (few queries) only; 0 = not measured
  double streamed_bytes = 0;
  std::string counters;  // of one call, as JSON: in place of times where the device is emulated
  // What the figures above are percentiles of.
  std::vector<double> milliseconds, cpu_milliseconds, ratios, peaks, reads, standard_milliseconds;
};

struct MeasureSettings {
  fw_device* device = nullptr;
  bool on_cpu = true;
  bool counting = false;  // the device counts; nothing is timed
  int64_t samples = 7, threads = 0;
  std::string kernel;
  bool standard = true;
};

// Throws a UsageError for words whose answer cannot be checked here.
void require_checkable(const Case& c);
// Throws LibraryError when the library refuses, HostMemoryError when the host is too small, UsageError as above.
Measurement measure(const Case& c, const MeasureSettings& settings);

// Adds the samples of another round of the same problem.
void merge(Measurement& into, const Measurement& round);

bool is_decoding(const Case& c);
double percentile(std::vector<double> values, double fraction);  // nearest rank

}  // namespace flashwave::cli
