#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "counters.h"
#include "dtype.h"
#include "errors.h"
#include "rows.h"
#include "standard_attention.h"
#include "tensors.h"

namespace flashwave::cli {
namespace {

using Clock = std::chrono::steady_clock;

// A sample lasts at least this long, by repeating short calls.
constexpr double kShortestSample = 0.005;
constexpr int64_t kMostQueriesOfDecoding = 16;
// Standard attention gets fewer samples, and one where its matrix is huge; beyond the limit it is not run at all.
constexpr int64_t kStandardSamples = 5;
constexpr double kStandardSeconds = 8, kHugeMatrix = double(1 << 29), kMatrixLimit = 2.0 * (1 << 30);

template <class Body>
double seconds_of(Body&& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// o and lse of a forward, as host floats for the row reference.
void keep_forward(const Geometry& g, const Staged& staged, HostValues& values) {
  for (const TensorId id : {kO, kLse}) {
    const std::vector<std::byte> bytes = staged.download_raw(id);
    values.buffer[id].resize(size_t(g.elements[id]));
    load(bytes.data(), values.buffer[id].size(), g.dtype_of(id, g.problem.dtype), values.buffer[id].data());
  }
}

double streamed_bytes(const Geometry& g) {
  const Case& c = g.problem;
  double keys = 0;
  for (const SequenceShape& s : g.sequences) keys += double(s.keys(c.append));
  return keys * double(c.hk * (c.dqk + c.dv)) * double(dtype_size(c.dtype));
}

double workspace_bytes(const Staged& staged, bool backward, const RunOptions& options) {
  fw_exec exec;
  fw_exec_init(&exec, sizeof exec);
  exec.num_threads = int32_t(options.threads);
  exec.force_kernel = options.kernel.empty() ? nullptr : options.kernel.c_str();
  size_t bytes = 0;
  require(
      fw_workspace_size(staged.device(), &staged.attention(), backward ? &staged.gradients() : nullptr, &exec, &bytes),
      "fw_workspace_size");
  return double(bytes);
}

double flops_of(const Staged& staged, bool backward) {
  fw_cost cost{};
  cost.struct_size = sizeof cost;
  require(fw_problem_cost(staged.device(), &staged.attention(), backward ? &staged.gradients() : nullptr, &cost),
          "fw_problem_cost");
  return cost.flops;
}

// Peak loops run directly before and after each sample, and where keys and values are streamed a loop that only reads
// runs before it, so that a slow moment of the machine slows both.
void take_samples(const Staged& staged, bool backward, const RunOptions& options, const MeasureSettings& settings,
                  Measurement& m) {
  const auto call = [&] { run_problem(staged, backward, options); };
  const double once = seconds_of(call);
  const auto repeats = int64_t(std::clamp(std::ceil(kShortestSample / std::max(once, 1e-7)), 1.0, 100000.0));
  m.width = settings.on_cpu ? width_of_kernel(m.kernel) : VectorWidth::kNone;
  std::optional<ReadLoop> read;
  if (settings.on_cpu && m.streamed_bytes > 0) read.emplace();
  double before = peak_gflops(m.width, m.threads);
  for (int64_t n = 0; n < settings.samples; ++n) {
    if (read) m.reads.push_back(read->gbs(m.threads));
    const double cpu_before = cpu_seconds(m.threads);
    const double seconds = seconds_of([&] {
                             for (int64_t r = 0; r < repeats; ++r) call();
                           }) /
                           double(repeats);
    const double on_core = (cpu_seconds(m.threads) - cpu_before) / double(repeats);
    const double after = peak_gflops(m.width, m.threads);
    m.milliseconds.push_back(seconds * 1e3);
    if (settings.on_cpu) m.cpu_milliseconds.push_back(on_core * 1e3);
    if (before > 0 && after > 0) {
      // One thread: both in its own time, so that other work on the machine does not count. Several wait for each
      // other.
      m.peaks.push_back((before + after) / 2);
      m.ratios.push_back(m.flops / (m.threads == 1 ? on_core : seconds) * 1e-9 / m.peaks.back());
      const bool slow_before = throttled(m.width, m.threads, before), slow_after = throttled(m.width, m.threads, after);
      m.throttled_samples += slow_before || slow_after;
    }
    before = after;
  }
}

void summarise(Measurement& m) {
  m.samples = int64_t(m.milliseconds.size());
  m.ms_p50 = percentile(m.milliseconds, 0.5);
  m.ms_p75 = percentile(m.milliseconds, 0.75);
  m.cpu_ms = percentile(m.cpu_milliseconds, 0.5);
  m.gflops = m.flops / m.ms_p50 * 1e-6;
  m.peak = percentile(m.peaks, 0.5);
  m.ratio_p50 = percentile(m.ratios, 0.5);
  m.ratio_p75 = percentile(m.ratios, 0.75);
  m.standard_ms = percentile(m.standard_milliseconds, 0.5);
  m.read_gbs = percentile(m.reads, 0.5);
  const bool own_time = m.threads == 1 && m.cpu_ms > 0;  // as the loop that only reads
  if (m.streamed_bytes > 0) m.kv_gbs = m.streamed_bytes / (own_time ? m.cpu_ms : m.ms_p50) * 1e-6;
}

void time_standard(const Geometry& g, const HostValues& values, Measurement& m) {
  const Case& c = g.problem;
  const double one_matrix = double(c.sq) * double(c.sk) * sizeof(float);
  if (!StandardAttention::takes(c) || one_matrix > kMatrixLimit) return;
  StandardAttention standard(g, values, m.threads);
  const auto once = [&] { return c.backward ? standard.backward() : standard.forward(); };
  double spent = 0;
  const auto ours = int64_t(m.milliseconds.size());
  const int64_t samples = one_matrix >= kHugeMatrix ? 1 : std::min(ours, kStandardSamples);
  if (samples > 1) spent += once();
  for (int64_t n = 0; n < samples && (n == 0 || spent < kStandardSeconds); ++n) {
    const double seconds = once();
    spent += seconds;
    m.standard_milliseconds.push_back(seconds * 1e3);
  }
  m.standard_bytes = StandardAttention::matrix_bytes(c);
}

}  // namespace

bool is_decoding(const Case& c) { return !c.backward && c.sq <= kMostQueriesOfDecoding; }

double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = size_t(std::ceil(fraction * double(values.size())));
  return values[std::min(values.size() - 1, rank > 0 ? rank - 1 : 0)];
}

void require_checkable(const Case& c) {
  if (!RowReference::takes(c)) throw UsageError("bench cannot check dropout, append or probs; 'check' can");
}

Measurement measure(const Case& c, const MeasureSettings& settings) {
  require_checkable(c);
  Measurement m;
  m.problem = format_case(c);
  const Geometry g = make_geometry(c);
  HostValues values = make_values(g);
  Staged staged(settings.device, g, c.dtype);
  staged.upload(values);
  const RunOptions options{c.kernel.empty() ? settings.kernel : c.kernel, c.threads ? c.threads : settings.threads};
  if (c.backward) {
    run_problem(staged, false, {"", options.threads});
    keep_forward(g, staged, values);
  }
  const fw_report report = run_problem(staged, c.backward, options);
  m.kernel = report.kernel;
  m.threads = settings.on_cpu ? std::max(1, report.threads) : 0;
  if (!options.kernel.empty() && m.kernel != options.kernel) {
    m.fault = "kernel " + options.kernel + " was forced, but " + m.kernel + " ran";
    return m;
  }
  m.fault = sampled_rows_fault(g, values, staged);
  if (!m.fault.empty()) return m;

  m.flops = flops_of(staged, c.backward);
  m.workspace_bytes = workspace_bytes(staged, c.backward, options);
  if (settings.counting) {
    take_counters(settings.device);  // those of the calls so far
    run_problem(staged, c.backward, options);
    m.counters = take_counters(settings.device);
    return m;
  }
  if (is_decoding(c)) m.streamed_bytes = streamed_bytes(g);
  take_samples(staged, c.backward, options, settings, m);
  if (settings.on_cpu && settings.standard) time_standard(g, values, m);
  summarise(m);
  return m;
}

void merge(Measurement& into, const Measurement& round) {
  const auto append = [](std::vector<double>& to, const std::vector<double>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  append(into.milliseconds, round.milliseconds);
  append(into.cpu_milliseconds, round.cpu_milliseconds);
  append(into.ratios, round.ratios);
  into.throttled_samples += round.throttled_samples;
  append(into.peaks, round.peaks);
  append(into.reads, round.reads);
  append(into.standard_milliseconds, round.standard_milliseconds);
  if (into.fault.empty()) into.fault = round.fault;
  summarise(into);
}

}  // namespace flashwave::cli
