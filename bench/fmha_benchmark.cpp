// A small program over the C API: attention of few queries against few keys for a huge batch, tensors in
// [batch, heads, seq, dim] order. It says what the GPU is, checks some rows, and prints times, rates and sample values;
// an emulated GPU has no times, so its counters are printed instead. kHelp has the options.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "cli/counters.h"
#include "cli/dtype.h"
#include "cli/errors.h"
#include "cli/output_file.h"
#include "cli/peak.h"
#include "cli/progress.h"
#include "cli/random.h"
#include "cli/svg.h"
#include "cli/table.h"
#include "flashwave/flashwave.h"

using namespace flashwave::cli;

namespace {

constexpr const char* kHelp =
    "usage: fmha_benchmark [options]\n\n"
    "Attention of one query against two keys for a batch of 30720, fp16: times, rates, sample values and 200 rows\n"
    "against fp64, for four configurations (head dim 256 and 128 with 16 heads, then with 32). Memory is what limits "
    "it.\n"
    "On an emulated GPU instructions and bytes are counted in place of times, with a batch of 120.\n\n"
    "  --device D        cpu, cuda[:i], hip[:i], emu:gfxNNN or auto (default: the first GPU, else the CPU)\n"
    "  --dtype T         fp16 (default) or bf16\n"
    "  --config B,HQ,HKV,SQ,SKV,DQ,DKV\n"
    "                    a configuration in place of the four: batch, query and key heads (a multiple), queries and\n"
    "                    keys, head dim of q and k, of v and o; may be given several times\n"
    "  --batch N  --heads-q N  --heads-kv N  --seq-q N  --seq-kv N  --dim-q N  --dim-kv N\n"
    "                    one of these numbers in every configuration; --heads-q and --dim-q are for both, unless the\n"
    "                    other is given too\n"
    "  --iterations N    calls that are timed (default: as many as take a second, 3 to 100)\n"
    "  --plot F          also write an SVG chart: bytes moved against the least there are (emulated), or the "
    "bandwidth\n"
    "                    that those least bytes make\n"
    "  --help            this text\n";

constexpr int64_t kBatch = 30720, kEmulatedBatch = 120;  // an emulator executes every lane: a small batch by default
constexpr int kCheckedRows = 200;
constexpr double kTimedSeconds = 1;
constexpr int64_t kFewestIterations = 3, kMostIterations = 100;

struct Config {
  int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim_q, dim_kv;
};
// Batch 0: what suits the device.
constexpr Config kConfigs[] = {
    {0, 16, 16, 1, 2, 256, 256}, {0, 16, 16, 1, 2, 128, 128}, {0, 32, 32, 1, 2, 256, 256}, {0, 32, 32, 1, 2, 128, 128}};

struct Settings {
  std::string device = "auto", plot;
  fw_dtype dtype = FW_F16;
  int64_t iterations = 0;  // 0: by time
  std::vector<Config> configs;
};

// Device memory of one tensor [batch, heads, seq, dim] and its values on the host.
class Tensor {
 public:
  Tensor(fw_device* device, fw_dtype dtype, int64_t batch, int64_t heads, int64_t seq, int64_t dim)
      : device_(device), count_(batch * heads * seq * dim) {
    view.dtype = dtype;
    const int64_t strides[4] = {heads * seq * dim, dim, seq * dim, 1};  // (batch, seq, head, dim)
    std::copy(strides, strides + 4, view.stride);
    require(fw_device_alloc(device, bytes(), &view.data), "fw_device_alloc");
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { fw_device_free(device_, view.data); }

  size_t bytes() const { return static_cast<size_t>(count_) * 2; }

  void fill(uint64_t seed) {
    Random random(seed);
    // Rows repeat after a while: the host would spend minutes on billions of normal numbers.
    const int64_t period = std::min<int64_t>(count_, 1 << 20);
    std::vector<float> normal(static_cast<size_t>(period));
    for (float& x : normal) x = random.normal();
    std::vector<uint16_t> host(static_cast<size_t>(count_));
    store(normal.data(), normal.size(), fw_dtype(view.dtype), host.data());
    for (int64_t i = period; i < count_; ++i) host[size_t(i)] = host[size_t(i - period)];
    upload(host);
  }
  void poison() { upload(std::vector<uint16_t>(static_cast<size_t>(count_), 0xffff)); }

  std::vector<float> read(int64_t first, int64_t n) const {
    std::vector<uint16_t> host(static_cast<size_t>(n));
    const char* from = static_cast<const char*>(view.data) + first * 2;
    require(fw_device_copy(device_, host.data(), from, host.size() * 2, FW_DEVICE_TO_HOST, nullptr), "fw_device_copy");
    require(fw_device_synchronize(device_, nullptr), "fw_device_synchronize");
    std::vector<float> values(host.size());
    load(host.data(), host.size(), fw_dtype(view.dtype), values.data());
    return values;
  }

  fw_tensor view{};

 private:
  void upload(const std::vector<uint16_t>& host) {
    require(fw_device_copy(device_, view.data, host.data(), bytes(), FW_HOST_TO_DEVICE, nullptr), "fw_device_copy");
    require(fw_device_synchronize(device_, nullptr), "fw_device_synchronize");
  }
  fw_device* device_;
  int64_t count_;
};

struct Problem {
  Config config;
  Tensor q, k, v, o;
  fw_attention attention{};

  Problem(fw_device* device, fw_dtype dtype, const Config& c)
      : config(c),
        q(device, dtype, c.batch, c.heads_q, c.seq_q, c.dim_q),
        k(device, dtype, c.batch, c.heads_kv, c.seq_kv, c.dim_q),
        v(device, dtype, c.batch, c.heads_kv, c.seq_kv, c.dim_kv),
        o(device, dtype, c.batch, c.heads_q, c.seq_q, c.dim_kv) {
    q.fill(1), k.fill(2), v.fill(3), o.poison();
    fw_attention_init(&attention, sizeof attention);
    attention.batch = c.batch;
    attention.seqlen_q = c.seq_q, attention.seqlen_k = c.seq_kv;
    attention.heads_q = c.heads_q, attention.heads_k = c.heads_kv;
    attention.dim_qk = c.dim_q, attention.dim_v = c.dim_kv;
    attention.q = q.view, attention.k = k.view, attention.v = v.view, attention.o = o.view;
  }

  // Row (batch, head, query) number `row` in double precision.
  double largest_error(int64_t row) const {
    const Config& c = config;
    const int64_t batch_and_head = row / c.seq_q, batch = batch_and_head / c.heads_q, head = batch_and_head % c.heads_q;
    const int64_t first_key = (batch * c.heads_kv + head / (c.heads_q / c.heads_kv)) * c.seq_kv;
    const std::vector<float> query = q.read(row * c.dim_q, c.dim_q), got = o.read(row * c.dim_kv, c.dim_kv);
    const std::vector<float> keys = k.read(first_key * c.dim_q, c.seq_kv * c.dim_q);
    const std::vector<float> values = v.read(first_key * c.dim_kv, c.seq_kv * c.dim_kv);
    std::vector<double> weight(static_cast<size_t>(c.seq_kv));
    double sum = 0, error = 0;
    for (int64_t j = 0; j < c.seq_kv; ++j) {
      double s = 0;
      for (int64_t d = 0; d < c.dim_q; ++d) s += double(query[size_t(d)]) * keys[size_t(j * c.dim_q + d)];
      sum += weight[size_t(j)] = std::exp(s / std::sqrt(double(c.dim_q)));
    }
    for (int64_t d = 0; d < c.dim_kv; ++d) {
      double expected = 0;
      for (int64_t j = 0; j < c.seq_kv; ++j) {
        expected += weight[size_t(j)] / sum * values[size_t(j * c.dim_kv + d)];
      }
      const double difference = std::abs(expected - got[size_t(d)]);
      if (!(difference <= error)) error = difference;  // NaN too
    }
    return error;
  }
};

int64_t positive(const std::string& option, std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) {
    throw UsageError(option + " must be a whole number of at least 1, got '" + std::string(text) + "'");
  }
  return number;
}

Config parse_config(const std::string& text) {
  std::vector<int64_t> numbers;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    numbers.push_back(positive("--config", rest.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (numbers.size() != 7) {
    throw UsageError("--config takes seven numbers, batch,heads_q,heads_kv,seq_q,seq_kv,dim_q,dim_kv, got '" + text +
                     "'");
  }
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]};
}

// The options of one number each, and the field of every configuration that it is.
struct NumberOption {
  const char* name;
  int64_t Config::* field;
  int64_t Config::* also;  // unless its own option is given
};
constexpr NumberOption kNumbers[] = {
    {"--batch", &Config::batch, nullptr},       {"--heads-q", &Config::heads_q, &Config::heads_kv},
    {"--heads-kv", &Config::heads_kv, nullptr}, {"--seq-q", &Config::seq_q, nullptr},
    {"--seq-kv", &Config::seq_kv, nullptr},     {"--dim-q", &Config::dim_q, &Config::dim_kv},
    {"--dim-kv", &Config::dim_kv, nullptr},
};

Settings parse(int argc, char** argv) {
  Settings settings;
  int64_t given[std::size(kNumbers)] = {};
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto* number = std::ranges::find_if(kNumbers, [&](const NumberOption& n) { return option == n.name; });
    const bool known = number != std::end(kNumbers) || option == "--device" || option == "--dtype" ||
                       option == "--config" || option == "--iterations" || option == "--plot";
    if (!known) throw UsageError("fmha_benchmark: " + option + " is not an option; --help lists them");
    if (i + 1 == argc) throw UsageError("fmha_benchmark: " + option + " needs a value");
    const std::string value = argv[++i];
    if (option == "--device") {
      settings.device = value;
    } else if (option == "--dtype") {
      if (value != "fp16" && value != "bf16") throw UsageError("--dtype takes fp16 or bf16, got '" + value + "'");
      settings.dtype = value == "fp16" ? FW_F16 : FW_BF16;
    } else if (option == "--config") {
      settings.configs.push_back(parse_config(value));
    } else if (option == "--iterations") {
      settings.iterations = positive(option, value);
    } else if (option == "--plot") {
      require_writable(option, value);
      settings.plot = value;
    } else {
      given[number - kNumbers] = positive(option, value);
    }
  }
  if (settings.configs.empty()) settings.configs.assign(std::begin(kConfigs), std::end(kConfigs));
  for (Config& config : settings.configs) {
    for (size_t n = 0; n < std::size(kNumbers); ++n) {
      if (given[n] == 0) continue;
      config.*kNumbers[n].field = given[n];
      if (kNumbers[n].also != nullptr && given[n + 1] == 0) config.*kNumbers[n].also = given[n];
    }
    if (config.heads_q % config.heads_kv != 0) {
      throw UsageError("--heads-q must be a multiple of --heads-kv, got " + std::to_string(config.heads_q) + " and " +
                       std::to_string(config.heads_kv));
    }
  }
  return settings;
}

struct Timing {
  double seconds = 0;  // of one call
  int64_t iterations = 0;
};

Timing time_calls(fw_device* device, const fw_attention& attention, int64_t wanted) {
  const auto run = [&](int64_t times) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < times; ++i) require(fw_forward(device, &attention, nullptr), "fw_forward");
    require(fw_device_synchronize(device, nullptr), "fw_device_synchronize");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  run(1);                          // caches fill
  const double once = run(2) / 2;  // clocks go up
  const auto by_time = int64_t(kTimedSeconds / std::max(once, 1e-9));
  const int64_t times = wanted > 0 ? wanted : std::clamp(by_time, kFewestIterations, kMostIterations);
  return {run(times) / double(times), times};
}

struct Result {
  std::string label;
  double least_bytes = 0, moved_bytes = 0, gbs = 0;
  bool good = false;
};

std::string name_of(const Config& c) {
  const auto pair = [](int64_t q, int64_t kv) {
    return q == kv ? std::to_string(q) : std::to_string(q) + "/" + std::to_string(kv);
  };
  return "batch " + std::to_string(c.batch) + ", heads " + pair(c.heads_q, c.heads_kv) + ", seq " +
         std::to_string(c.seq_q) + "/" + std::to_string(c.seq_kv) + ", dim " + pair(c.dim_q, c.dim_kv);
}

using Note = std::function<void(const char*)>;

Result run_config(fw_device* device, const Settings& settings, bool emulated, const Config& config, const Note& note) {
  note("filling the tensors");
  Problem problem(device, settings.dtype, config);
  fw_report report{};
  report.struct_size = sizeof report;
  fw_exec exec;
  fw_exec_init(&exec, sizeof exec);
  exec.report = &report;
  if (emulated) start_counters(device);
  note("the first call");
  require(fw_forward(device, &problem.attention, &exec), "fw_forward");
  require(fw_device_synchronize(device, nullptr), "fw_device_synchronize");
  fw_cost cost{};
  cost.struct_size = sizeof cost;
  require(fw_problem_cost(device, &problem.attention, nullptr, &cost), "fw_problem_cost");

  Result result{.label = name_of(config), .least_bytes = cost.bytes};
  std::string rates;
  if (emulated) {
    const Counts counts = sum_counters(take_counters(device));
    result.moved_bytes = counts.memory_bytes;
    char line[256];
    std::snprintf(line, sizeof line,
                  "  executed on an instruction-level emulator: counts, no times\n"
                  "  %.0f wave instructions; %s moved, %s at least: %.3fx\n",
                  counts.instructions, human_bytes(counts.memory_bytes).c_str(), human_bytes(cost.bytes).c_str(),
                  counts.memory_bytes / cost.bytes);
    rates = line;
  } else {
    note("timing");
    const Timing timing = time_calls(device, problem.attention, settings.iterations);
    const double seconds = timing.seconds;
    result.gbs = cost.bytes / seconds * 1e-9;
    char line[256];
    std::snprintf(line, sizeof line,
                  "  %.3f ms on average of %lld, %.1f iterations/s, %.4g TFLOP/s, %.1f GB/s (%s at least)\n",
                  seconds * 1e3, static_cast<long long>(timing.iterations), 1 / seconds, cost.flops / seconds * 1e-12,
                  result.gbs, human_bytes(cost.bytes).c_str());
    rates = line;
  }
  note("checking");
  Random random(4);
  double error = 0;
  for (int i = 0; i < kCheckedRows; ++i) {
    const double e = problem.largest_error(random.integer(0, config.batch * config.heads_q * config.seq_q - 1));
    if (!(e <= error)) error = e;
  }
  // Values below 8, rounded once to 11 or 8 bits, and weights of at most 1.
  const double allowed = settings.dtype == FW_F16 ? 8e-3 : 6e-2;
  result.good = error <= allowed;

  note(nullptr);
  std::printf("\n[%s] %s\n%s", result.label.c_str(), report.kernel, rates.c_str());
  const int64_t shown = std::min<int64_t>(config.dim_kv, 5);
  std::printf("  o[0, 0, 0, 0:%lld] =", static_cast<long long>(shown));
  for (const float x : problem.o.read(0, shown)) std::printf(" %9.5f", double(x));
  std::printf("\n  %d rows against fp64: largest error %.1e, %s\n", kCheckedRows, error, result.good ? "ok" : "WRONG");
  return result;
}

std::string chart_of(const fw_device_info& info, const std::vector<Result>& results, bool emulated) {
  BarChart chart;
  chart.title = "fmha_benchmark: few keys, a huge batch";
  if (emulated) {
    chart.subtitle = std::string("bytes moved and the least that must be, on ") + info.name +
                     ", an instruction-level emulator; equal is best";
    chart.value_axis = "MB";
    chart.series = {"moved", "least"};
    for (const Result& r : results) {
      chart.groups.push_back({r.label, {r.moved_bytes * 1e-6, r.least_bytes * 1e-6}, 0});
    }
    return to_svg(chart);
  }
  chart.subtitle = std::string("the least bytes there are, over the time, on ") + info.name + "; higher is better";
  chart.value_axis = "GB/s";
  chart.series = {"flashwave"};
  double limit = 0;
  if (std::string_view(info.kind) == "cpu") {
    limit = read_bandwidth_gbs(fw_get_num_threads());
    chart.marker_name = "a loop that only reads";
  }
  for (const Result& r : results) chart.groups.push_back({r.label, {r.gbs}, limit});
  return to_svg(chart);
}

int run(const Settings& settings) {
  fw_device* device = nullptr;
  require(fw_device_open(settings.device.c_str(), &device), "fw_device_open");
  fw_device_info info{};
  info.struct_size = sizeof info;
  require(fw_device_query(device, &info), "fw_device_query");
  const bool emulated = std::string_view(info.kind) == "emu";
  std::printf("%s: %s (%s), %lld compute units, %s; flashwave %s\n", info.name, info.description, info.arch,
              static_cast<long long>(info.compute_units), human_bytes(double(info.memory_bytes)).c_str(),
              fw_version_string());
  std::vector<Config> configs = settings.configs;
  if (emulated && configs.front().batch == 0) {
    std::printf("batch %lld instead of %lld: it is emulated (--batch %lld for the whole)\n",
                static_cast<long long>(kEmulatedBatch), static_cast<long long>(kBatch), static_cast<long long>(kBatch));
  }
  constexpr size_t kStages = 4;
  Progress progress(configs.size() * kStages);
  std::vector<Result> results;
  bool good = true;
  for (Config& config : configs) {
    if (config.batch == 0) config.batch = emulated ? kEmulatedBatch : kBatch;
    size_t stage = results.size() * kStages;
    const Note note = [&](const char* doing) {
      doing != nullptr ? progress.show(stage++, name_of(config) + ": " + doing) : progress.clear();
    };
    results.push_back(run_config(device, settings, emulated, config, note));
    good = good && results.back().good;
  }
  if (!settings.plot.empty()) write_file("--plot", settings.plot, chart_of(info, results, emulated));
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a reader of a pipe sees each configuration when it is done
  try {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--help") == 0 || std::strcmp(argv[i], "-h") == 0) return std::fputs(kHelp, stdout), 0;
    }
    return run(parse(argc, argv));
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "fmha_benchmark: the host's memory does not suffice; --batch makes the tensors smaller\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fmha_benchmark: %s\n", error.what());
    return 1;
  }
}
