// A small program over the C API: attention of one query against two keys for a huge batch, tensors in
// [batch, heads, seq, dim] order. It says what the GPU is, checks some rows, and prints times, rates and sample values;
// an emulated GPU has no times, so its counters are printed instead.
//
//   fmha_benchmark [--device D] [--dtype fp16|bf16] [--batch N] [--iterations N]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cli/counters.h"
#include "cli/dtype.h"
#include "cli/errors.h"
#include "cli/random.h"
#include "cli/table.h"
#include "flashwave/flashwave.h"

using namespace flashwave::cli;

namespace {

constexpr int64_t kQueries = 1, kKeys = 2;
constexpr int64_t kBatch = 30720, kEmulatedBatch = 120;  // an emulator executes every lane: a small batch by default
struct Shape {
  int64_t heads, dim;
};
constexpr Shape kShapes[] = {{16, 128}, {32, 128}, {16, 256}, {32, 256}};
constexpr int kCheckedRows = 200;

struct Settings {
  std::string device = "auto";
  fw_dtype dtype = FW_F16;
  int64_t batch = 0, iterations = 100;
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
  Tensor q, k, v, o;
  fw_attention attention{};

  Problem(fw_device* device, const Settings& settings, int64_t batch, Shape shape)
      : q(device, settings.dtype, batch, shape.heads, kQueries, shape.dim),
        k(device, settings.dtype, batch, shape.heads, kKeys, shape.dim),
        v(device, settings.dtype, batch, shape.heads, kKeys, shape.dim),
        o(device, settings.dtype, batch, shape.heads, kQueries, shape.dim) {
    q.fill(1), k.fill(2), v.fill(3), o.poison();
    fw_attention_init(&attention, sizeof attention);
    attention.batch = batch;
    attention.seqlen_q = kQueries, attention.seqlen_k = kKeys;
    attention.heads_q = attention.heads_k = shape.heads;
    attention.dim_qk = attention.dim_v = shape.dim;
    attention.q = q.view, attention.k = k.view, attention.v = v.view, attention.o = o.view;
  }

  // Row (batch, head) number `row` in double precision.
  double largest_error(int64_t row, int64_t dim) const {
    const std::vector<float> query = q.read(row * dim, dim), keys = k.read(row * kKeys * dim, kKeys * dim);
    const std::vector<float> values = v.read(row * kKeys * dim, kKeys * dim), got = o.read(row * dim, dim);
    double weight[kKeys], sum = 0, error = 0;
    for (int64_t j = 0; j < kKeys; ++j) {
      double s = 0;
      for (int64_t d = 0; d < dim; ++d) s += double(query[size_t(d)]) * keys[size_t(j * dim + d)];
      sum += weight[j] = std::exp(s / std::sqrt(double(dim)));
    }
    for (int64_t d = 0; d < dim; ++d) {
      double expected = 0;
      for (int64_t j = 0; j < kKeys; ++j) expected += weight[j] / sum * values[size_t(j * dim + d)];
      const double difference = std::abs(expected - got[size_t(d)]);
      if (!(difference <= error)) error = difference;  // NaN too
    }
    return error;
  }
};

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help" || i + 1 == argc) {
      throw UsageError("usage: fmha_benchmark [--device D] [--dtype fp16|bf16] [--batch N] [--iterations N]");
    }
    const std::string value = argv[++i];
    if (option == "--device") {
      settings.device = value;
    } else if (option == "--dtype" && (value == "fp16" || value == "bf16")) {
      settings.dtype = value == "fp16" ? FW_F16 : FW_BF16;
    } else if (option == "--batch" || option == "--iterations") {
      int64_t& number = option == "--batch" ? settings.batch : settings.iterations;
      number = std::atoll(value.c_str());
      if (number < 1) throw UsageError(option + " must be a whole number of at least 1, got '" + value + "'");
    } else {
      throw UsageError("fmha_benchmark: " + option + " " + value + " is not an option; --help lists them");
    }
  }
  return settings;
}

double average_seconds(fw_device* device, const fw_attention& attention, int64_t iterations) {
  const auto run = [&](int64_t times) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < times; ++i) require(fw_forward(device, &attention, nullptr), "fw_forward");
    require(fw_device_synchronize(device, nullptr), "fw_device_synchronize");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  run(std::max<int64_t>(iterations / 10, 1));  // clocks go up, caches fill
  return run(iterations) / double(iterations);
}

bool run_shape(fw_device* device, const Settings& settings, int64_t batch, bool emulated, Shape shape) {
  Problem problem(device, settings, batch, shape);
  char kernel[64] = {};
  fw_report report{};
  report.struct_size = sizeof report;
  fw_exec exec;
  fw_exec_init(&exec, sizeof exec);
  exec.report = &report;
  if (emulated) start_counters(device);
  require(fw_forward(device, &problem.attention, &exec), "fw_forward");
  require(fw_device_synchronize(device, nullptr), "fw_device_synchronize");
  std::memcpy(kernel, report.kernel, sizeof kernel);
  fw_cost cost{};
  cost.struct_size = sizeof cost;
  require(fw_problem_cost(device, &problem.attention, nullptr, &cost), "fw_problem_cost");

  std::printf("\n[batch %lld, heads %lld, seq %lld/%lld, dim %lld] %s\n", static_cast<long long>(batch),
              static_cast<long long>(shape.heads), static_cast<long long>(kQueries), static_cast<long long>(kKeys),
              static_cast<long long>(shape.dim), kernel);
  if (emulated) {
    const Counts counts = sum_counters(take_counters(device));
    std::printf("  executed on an instruction-level emulator: counts, no times\n");
    std::printf("  %.0f wave instructions; %s moved, %s at least: %.3fx\n", counts.instructions,
                human_bytes(counts.memory_bytes).c_str(), human_bytes(cost.bytes).c_str(),
                counts.memory_bytes / cost.bytes);
  } else {
    const double seconds = average_seconds(device, problem.attention, settings.iterations);
    std::printf("  %.3f ms on average, %.1f iterations/s, %.3f TFLOP/s, %.1f GB/s\n", seconds * 1e3, 1 / seconds,
                cost.flops / seconds * 1e-12, cost.bytes / seconds * 1e-9);
  }
  const std::vector<float> sample = problem.o.read(0, 5);
  std::printf("  o[0, 0, 0, 0:5] = %9.5f %9.5f %9.5f %9.5f %9.5f\n", double(sample[0]), double(sample[1]),
              double(sample[2]), double(sample[3]), double(sample[4]));
  Random random(4);
  double error = 0;
  for (int i = 0; i < kCheckedRows; ++i) {
    const double e = problem.largest_error(random.integer(0, batch * shape.heads - 1), shape.dim);
    if (!(e <= error)) error = e;
  }
  // Values below 8, rounded once to 11 or 8 bits, and weights of at most 1.
  const double allowed = settings.dtype == FW_F16 ? 8e-3 : 6e-2;
  const bool good = error <= allowed;
  std::printf("  %d rows against fp64: largest error %.1e, %s\n", kCheckedRows, error, good ? "ok" : "WRONG");
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Settings settings = parse(argc, argv);
    fw_device* device = nullptr;
    require(fw_device_open(settings.device.c_str(), &device), "fw_device_open");
    fw_device_info info{};
    info.struct_size = sizeof info;
    require(fw_device_query(device, &info), "fw_device_query");
    const bool emulated = std::string(info.kind) == "emu";
    const int64_t batch = settings.batch > 0 ? settings.batch : emulated ? kEmulatedBatch : kBatch;
    std::printf("%s: %s (%s), %lld compute units, %s; flashwave %s\n", info.name, info.description, info.arch,
                static_cast<long long>(info.compute_units), human_bytes(double(info.memory_bytes)).c_str(),
                fw_version_string());
    if (emulated && settings.batch == 0) {
      std::printf("batch %lld instead of %lld: it is emulated (--batch %lld for the whole)\n",
                  static_cast<long long>(batch), static_cast<long long>(kBatch), static_cast<long long>(kBatch));
    }
    bool good = true;
    for (const Shape& shape : kShapes) good = run_shape(device, settings, batch, emulated, shape) && good;
    return good ? 0 : 1;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fmha_benchmark: %s\n", error.what());
    return 1;
  }
}
