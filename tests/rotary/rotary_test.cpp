// Every rotary kernel against the formula in double: types, pairings, directions, layouts, offsets. Kernels of a GPU
// (FLASHWAVE_TEST_DEVICE=cuda, hip or emu:gfxNNN) against those of the CPU: the same bits.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "flashwave/flashwave.h"
#include "kernels/common/dtype.h"
#include "tests/device_copy.h"

namespace {

using flashwave::BFloat16;
using flashwave::DeviceCopy;
using flashwave::Half;

fw_device* cpu() {
  fw_device* device = nullptr;
  EXPECT_EQ(fw_device_open("cpu", &device), FW_OK) << fw_last_error();
  return device;
}

std::vector<std::string> rotary_kernels() {
  std::vector<std::string> names;
  for (int32_t i = 0; const char* name = fw_kernel_name(cpu(), i); ++i) {
    if (std::string(name).find("_rotary") != std::string::npos) names.emplace_back(name);
  }
  return names;
}

// Numbers in a storage type.
class Array {
 public:
  Array(size_t count, fw_dtype dtype) : dtype_(dtype), bytes_(count * (dtype == FW_F32 ? 4 : 2), 0xFF) {}  // NaN
  fw_dtype dtype() const { return dtype_; }
  void* data() { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  void set(int64_t i, float value) {
    if (dtype_ == FW_F32) return put(i, value);
    dtype_ == FW_F16 ? put(i, flashwave::from_float<Half>(value)) : put(i, flashwave::from_float<BFloat16>(value));
  }
  double get(int64_t i) const {
    if (dtype_ == FW_F32) return double{at<float>(i)};
    return double{dtype_ == FW_F16 ? flashwave::to_float(at<Half>(i)) : flashwave::to_float(at<BFloat16>(i))};
  }
  bool operator==(const Array&) const = default;

 private:
  template <class T>
  void put(int64_t i, T value) {
    std::memcpy(&bytes_[static_cast<size_t>(i) * sizeof(T)], &value, sizeof(T));
  }
  template <class T>
  T at(int64_t i) const {
    T value;
    std::memcpy(&value, &bytes_[static_cast<size_t>(i) * sizeof(T)], sizeof(T));
    return value;
  }

  fw_dtype dtype_;
  std::vector<unsigned char> bytes_;
};

struct Case {
  const char* name;
  int64_t batch = 2, seqlen = 5, heads = 3, dim = 16, rotary_dim = 16;
  uint32_t flags = 0;
  int64_t gap = 0;  // elements between the heads of x, and twice that of out
  bool head_major = false;
  std::vector<int32_t> cu_seqlens = {};
  int64_t total = 0;
  int64_t offset = 0;
  std::vector<int32_t> offsets = {};
  bool f32_angles = false;
  int64_t angle_gap = 0;  // elements between the rows of cos, and of sin
};

const std::vector<Case> kCases = {
    {.name = "halves"},
    {.name = "interleaved", .flags = FW_ROTARY_INTERLEAVED},
    {.name = "conjugate", .flags = FW_ROTARY_CONJUGATE, .f32_angles = true},
    {.name = "interleaved_conjugate", .flags = FW_ROTARY_INTERLEAVED | FW_ROTARY_CONJUGATE},
    {.name = "whole_vectors", .seqlen = 3, .dim = 128, .rotary_dim = 128, .f32_angles = true},
    {.name = "whole_vectors_interleaved", .dim = 128, .rotary_dim = 64, .flags = FW_ROTARY_INTERLEAVED},
    {.name = "tails", .dim = 57, .rotary_dim = 54, .f32_angles = true},
    {.name = "tails_interleaved", .dim = 57, .rotary_dim = 54, .flags = FW_ROTARY_INTERLEAVED, .f32_angles = true},
    {.name = "one_pair", .dim = 2, .rotary_dim = 2},
    {.name = "one_pair_interleaved", .dim = 3, .rotary_dim = 2, .flags = FW_ROTARY_INTERLEAVED},
    {.name = "largest", .batch = 1, .seqlen = 2, .heads = 1, .dim = 512, .rotary_dim = 512},
    {.name = "largest_interleaved",
     .batch = 1,
     .seqlen = 2,
     .heads = 1,
     .dim = 512,
     .rotary_dim = 510,
     .flags = FW_ROTARY_INTERLEAVED},
    {.name = "only_copied", .dim = 16, .rotary_dim = 0},
    {.name = "offset", .offset = 11},
    {.name = "offsets", .offset = 2, .offsets = {7, 0}, .angle_gap = 3},
    {.name = "strided", .dim = 24, .rotary_dim = 20, .gap = 5, .angle_gap = 1},
    {.name = "head_major", .flags = FW_ROTARY_INTERLEAVED, .head_major = true},
    {.name = "varlen", .batch = 5, .seqlen = 9, .cu_seqlens = {0, 4, 4, 13, 13, 14}, .total = 16},
    {.name = "varlen_offsets",
     .batch = 3,
     .seqlen = 4,
     .gap = 1,
     .cu_seqlens = {0, 4, 6, 10},
     .total = 10,
     .offset = 1,
     .offsets = {3, 0, 12},
     .f32_angles = true},
    {.name = "many_tasks", .batch = 3, .seqlen = 700, .heads = 2, .dim = 64, .rotary_dim = 32},
    {.name = "many_tasks_varlen",
     .batch = 4,
     .seqlen = 2000,
     .heads = 1,
     .dim = 64,
     .rotary_dim = 64,
     .flags = FW_ROTARY_INTERLEAVED,
     .cu_seqlens = {0, 3, 1500, 1500, 1900},
     .total = 1950},
};

// Where element (b, i, h, d) lies.
int64_t position_in(const fw_tensor& t, bool packed, int64_t b, int64_t row, int64_t h, int64_t d) {
  return (packed ? 0 : b * t.stride[0]) + row * t.stride[1] + h * t.stride[2] + d;
}

class Embedding {
 public:
  Embedding(const Case& c, fw_dtype dtype, bool in_place)
      : case_(c),
        x_(room(c, c.gap), dtype),
        out_(room(c, 2 * c.gap), dtype),
        cos_(static_cast<size_t>(positions() * angle_row()), c.f32_angles ? FW_F32 : dtype),
        sin_(cos_) {
    fw_rotary_embedding_init(&rotary, sizeof rotary);
    rotary.flags = c.flags;
    rotary.batch = c.batch, rotary.seqlen = c.seqlen, rotary.heads = c.heads, rotary.dim = c.dim;
    rotary.total = c.total, rotary.rotary_seqlen = positions(), rotary.rotary_dim = c.rotary_dim;
    rotary.seqlen_offset = c.offset;
    rotary.x = tensor(x_, c.gap), rotary.out = in_place ? rotary.x : tensor(out_, 2 * c.gap);
    for (auto& [view, array] : {std::pair{&rotary.cos, &cos_}, {&rotary.sin, &sin_}}) {
      *view = {array->data(), {angle_row(), 1, 0, 0}, array->dtype(), 0};
    }
    if (!c.offsets.empty()) rotary.seqlen_offsets = case_.offsets.data();
    if (packed()) rotary.cu_seqlens = case_.cu_seqlens.data();
    std::mt19937 random(17);
    std::normal_distribution<float> normal;
    for_each_row([&](int64_t b, int64_t row, int64_t, int64_t h) {
      for (int64_t d = 0; d < c.dim; ++d) x_.set(position_in(rotary.x, packed(), b, row, h, d), normal(random));
    });
    for (int64_t n = 0; n < positions(); ++n) {
      for (int64_t pair = 0; pair < c.rotary_dim / 2; ++pair) {
        const double angle = static_cast<double>(n + 1) / std::pow(30.0, static_cast<double>(pair) / 64);
        cos_.set(n * angle_row() + pair, static_cast<float>(std::cos(angle)));
        sin_.set(n * angle_row() + pair, static_cast<float>(std::sin(angle)));
      }
    }
    before_ = x_;
  }

  // The largest error in units of what one rounding of the fp32 formula may lose; infinite if a number that is no
  // output was written.
  double error() const {
    const Case& c = case_;
    const Array& result = rotary.out.data == rotary.x.data ? x_ : out_;
    Array untouched = rotary.out.data == rotary.x.data ? before_ : Array(room(c, 2 * c.gap), x_.dtype());
    const double half_ulp = x_.dtype() == FW_F32 ? 0x1p-24 : x_.dtype() == FW_F16 ? 0x1p-11 : 0x1p-8;
    const double sign = c.flags & FW_ROTARY_CONJUGATE ? -1 : 1;
    double worst = 0;
    for_each_row([&](int64_t b, int64_t row, int64_t i, int64_t h) {
      const auto in = [&](int64_t d) { return before_.get(position_in(rotary.x, packed(), b, row, h, d)); };
      const auto compare = [&](int64_t d, double expected, double tolerance) {
        const int64_t at = position_in(rotary.out, packed(), b, row, h, d);
        const double difference = std::abs(result.get(at) - expected);
        worst = std::max(worst, difference <= tolerance ? difference / std::max(tolerance, 1e-300)
                                                        : (std::isnan(difference) ? INFINITY : difference / tolerance));
        untouched.set(at, static_cast<float>(result.get(at)));
      };
      const int64_t n = c.offset + (c.offsets.empty() ? 0 : c.offsets[static_cast<size_t>(b)]) + i;
      for (int64_t pair = 0; pair < c.rotary_dim / 2; ++pair) {
        const bool interleaved = c.flags & FW_ROTARY_INTERLEAVED;
        const int64_t first = interleaved ? 2 * pair : pair, second = interleaved ? first + 1 : pair + c.rotary_dim / 2;
        const double cos = cos_.get(n * angle_row() + pair), sin = sign * sin_.get(n * angle_row() + pair);
        const double x = in(first), y = in(second);
        // Each product and their sum lose half a unit in fp32, the result half a unit of its type.
        const auto tolerance = [&](double value, double products) {
          return 1.001 * half_ulp * std::abs(value) + 0x1p-23 * products + (x_.dtype() == FW_F16 ? 0x1p-25 : 0);
        };
        compare(first, x * cos - y * sin, tolerance(x * cos - y * sin, std::abs(x * cos) + std::abs(y * sin)));
        compare(second, x * sin + y * cos, tolerance(x * sin + y * cos, std::abs(x * sin) + std::abs(y * cos)));
      }
      for (int64_t d = c.rotary_dim; d < c.dim; ++d) compare(d, in(d), 0x1p-149);
    });
    return result == untouched ? worst : INFINITY;
  }

  fw_status run(const char* kernel, int32_t threads = 1) {
    fw_exec exec;
    fw_exec_init(&exec, sizeof exec);
    exec.force_kernel = kernel, exec.num_threads = threads;
    return fw_rotary(cpu(), &rotary, &exec);
  }

  // With copies of everything in the memory of a GPU; the results come back.
  fw_status run_on(fw_device* gpu) {
    const auto copy_of = [&](const std::vector<int32_t>& words) {
      return DeviceCopy(gpu, words.data(), words.size() * sizeof(int32_t));
    };
    DeviceCopy x(gpu, x_.data(), x_.size()), out(gpu, out_.data(), out_.size());
    DeviceCopy cos(gpu, cos_.data(), cos_.size()), sin(gpu, sin_.data(), sin_.size());
    DeviceCopy offsets = copy_of(case_.offsets), lengths = copy_of(case_.cu_seqlens);
    fw_rotary_embedding there = rotary;
    there.x.data = x.data(), there.cos.data = cos.data(), there.sin.data = sin.data();
    there.out.data = rotary.out.data == rotary.x.data ? x.data() : out.data();
    if (there.seqlen_offsets != nullptr) there.seqlen_offsets = static_cast<const int32_t*>(offsets.data());
    if (there.cu_seqlens != nullptr) there.cu_seqlens = static_cast<const int32_t*>(lengths.data());
    fw_exec exec;
    fw_exec_init(&exec, sizeof exec);
    const fw_status status = fw_rotary(gpu, &there, &exec);
    x.fetch(x_.data());
    out.fetch(out_.data());
    return status;
  }

  const Array& result() const { return rotary.out.data == rotary.x.data ? x_ : out_; }
  double result_at(int64_t b, int64_t row, int64_t h, int64_t d) const {
    return result().get(position_in(rotary.out, packed(), b, row, h, d));
  }

  fw_rotary_embedding rotary{};  // points into the arrays; tests change it to see that the change is noticed

 private:
  bool packed() const { return !case_.cu_seqlens.empty(); }
  int64_t angle_row() const { return case_.rotary_dim / 2 + case_.angle_gap; }
  int64_t positions() const {
    const int32_t most = case_.offsets.empty() ? 0 : *std::max_element(case_.offsets.begin(), case_.offsets.end());
    return case_.offset + most + case_.seqlen;
  }
  static size_t room(const Case& c, int64_t gap) {
    const int64_t rows = c.cu_seqlens.empty() ? c.batch * c.seqlen : c.total;
    return static_cast<size_t>(rows * c.heads * (c.dim + gap));
  }
  fw_tensor tensor(Array& array, int64_t gap) const {
    const Case& c = case_;
    const int64_t dim = c.dim + gap, rows = packed() ? c.total : c.seqlen;
    if (c.head_major) return {array.data(), {rows * c.heads * dim, dim, rows * dim, 1}, array.dtype(), 0};
    return {array.data(), {rows * c.heads * dim, c.heads * dim, dim, 1}, array.dtype(), 0};
  }
  // visit(sequence, row of the tensor, row of the sequence, head)
  template <class Visit>
  void for_each_row(Visit visit) const {
    for (int64_t b = 0; b < case_.batch; ++b) {
      const auto at = static_cast<size_t>(b);
      const int64_t first = packed() ? case_.cu_seqlens[at] : 0;
      const int64_t length = packed() ? case_.cu_seqlens[at + 1] - first : case_.seqlen;
      for (int64_t i = 0; i < length; ++i) {
        for (int64_t h = 0; h < case_.heads; ++h) visit(b, first + i, i, h);
      }
    }
  }

  Case case_;
  Array x_, out_, cos_, sin_, before_{0, FW_F32};
};

constexpr fw_dtype kTypes[] = {FW_F32, FW_F16, FW_BF16};

TEST(Rotary, EveryKernelFollowsTheFormula) {
  const std::vector<std::string> kernels = rotary_kernels();
  ASSERT_FALSE(kernels.empty());
  EXPECT_EQ(kernels.back(), "portable_rotary");
  for (const Case& c : kCases) {
    for (const fw_dtype dtype : kTypes) {
      for (const bool in_place : {false, true}) {
        for (const std::string& kernel : kernels) {
          SCOPED_TRACE(c.name + (" " + kernel) + " dtype " + std::to_string(dtype) + (in_place ? " in place" : ""));
          Embedding run(c, dtype, in_place);
          ASSERT_EQ(run.run(kernel.c_str()), FW_OK) << fw_last_error();
          EXPECT_LE(run.error(), 1.0);
        }
      }
    }
  }
}

TEST(Rotary, KernelsThreadsAndPlacesGiveTheSameBits) {
  for (const Case& c : kCases) {
    for (const fw_dtype dtype : kTypes) {
      SCOPED_TRACE(c.name + (" dtype " + std::to_string(dtype)));
      Embedding first(c, dtype, false), in_place(c, dtype, true);
      ASSERT_EQ(first.run("portable_rotary"), FW_OK) << fw_last_error();
      for (const std::string& kernel : rotary_kernels()) {
        Embedding other(c, dtype, false);
        ASSERT_EQ(other.run(kernel.c_str(), 4), FW_OK) << fw_last_error();
        EXPECT_EQ(other.result(), first.result()) << kernel;
      }
      ASSERT_EQ(in_place.run(nullptr, 3), FW_OK) << fw_last_error();
      if (c.gap == 0 && c.cu_seqlens.empty()) EXPECT_EQ(in_place.result(), first.result());
    }
  }
}

TEST(Rotary, GpuGivesTheBitsOfTheCpu) {
  const char* const name = std::getenv("FLASHWAVE_TEST_DEVICE");
  if (name == nullptr) GTEST_SKIP() << "FLASHWAVE_TEST_DEVICE names no GPU";
  fw_device* gpu = nullptr;
  ASSERT_EQ(fw_device_open(name, &gpu), FW_OK) << fw_last_error();
  for (const Case& c : kCases) {
    for (const fw_dtype dtype : kTypes) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(c.name + (" dtype " + std::to_string(dtype)) + (in_place ? " in place" : ""));
        Embedding here(c, dtype, in_place), there(c, dtype, in_place);
        ASSERT_EQ(here.run(nullptr), FW_OK) << fw_last_error();
        ASSERT_EQ(there.run_on(gpu), FW_OK) << fw_last_error();
        EXPECT_EQ(there.result(), here.result());
      }
    }
  }
}

TEST(Rotary, ConjugateUndoesTheRotation) {
  for (const uint32_t flags : {0u, uint32_t{FW_ROTARY_INTERLEAVED}}) {
    const Case c{.name = "", .seqlen = 4, .dim = 40, .rotary_dim = 36, .flags = flags, .f32_angles = true};
    Embedding run(c, FW_F32, true);
    const Array before = run.result();
    ASSERT_EQ(run.run(nullptr), FW_OK);
    EXPECT_NE(run.result(), before);
    run.rotary.flags |= FW_ROTARY_CONJUGATE;
    ASSERT_EQ(run.run(nullptr), FW_OK);
    for (int64_t i = 0; i < c.batch * c.seqlen * c.heads * c.dim; ++i) {
      EXPECT_NEAR(run.result().get(i), before.get(i), 2e-6);
    }
  }
}

// The comparison is worth nothing if it does not see these.
TEST(RotaryGuard, NoticesEveryMutation) {
  const auto error = [](const char* name, auto&& mutate) {
    const auto c =
        std::find_if(kCases.begin(), kCases.end(), [&](const Case& x) { return std::string(x.name) == name; });
    Embedding run(*c, FW_F32, false);
    const fw_rotary_embedding right = run.rotary;
    mutate(run.rotary);
    EXPECT_EQ(run.run(nullptr), FW_OK) << fw_last_error();
    run.rotary = right;
    return run.error();
  };
  EXPECT_LE(error("strided", [](fw_rotary_embedding&) {}), 1);
  EXPECT_GT(error("strided", [](fw_rotary_embedding& r) { r.flags ^= FW_ROTARY_INTERLEAVED; }), 10);
  EXPECT_GT(error("strided", [](fw_rotary_embedding& r) { r.flags ^= FW_ROTARY_CONJUGATE; }), 10);
  EXPECT_GT(error("strided", [](fw_rotary_embedding& r) { r.rotary_dim -= 2; }), 10);
  EXPECT_GT(error("strided", [](fw_rotary_embedding& r) { std::swap(r.cos, r.sin); }), 10);
  EXPECT_GT(error("strided", [](fw_rotary_embedding& r) { r.out.stride[2] -= 1; }), 10);
  EXPECT_GT(error("offset", [](fw_rotary_embedding& r) { r.seqlen_offset -= 1; }), 10);
  EXPECT_GT(error("offsets", [](fw_rotary_embedding& r) { r.seqlen_offsets = nullptr; }), 10);
  const int32_t other[] = {0, 4, 5, 13, 13, 14};
  EXPECT_GT(error("varlen", [&](fw_rotary_embedding& r) { r.cu_seqlens = other; }), 10);
}

TEST(Rotary, NonFiniteNumbersStayInTheirPair) {
  const Case c{.name = "", .batch = 1, .seqlen = 1, .heads = 1, .dim = 8, .rotary_dim = 6, .f32_angles = true};
  for (const std::string& kernel : rotary_kernels()) {
    Embedding run(c, FW_F32, false);
    static_cast<float*>(run.rotary.x.data)[1] = NAN;
    static_cast<float*>(run.rotary.x.data)[7] = INFINITY;
    ASSERT_EQ(run.run(kernel.c_str()), FW_OK);
    for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(std::isnan(run.result_at(0, 0, 0, d)), d == 1 || d == 4) << d;
    EXPECT_EQ(run.result_at(0, 0, 0, 7), INFINITY);
  }
}

TEST(Rotary, RowsMoreThan2To31ElementsApart) {
  constexpr int64_t kLong = (int64_t{1} << 31) + 64, kRows = 3, kDim = 16;
  const size_t bytes = size_t{2 * kLong * 4} + 64 * 4;
  void* memory = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space for sparse tensors";
  const Case c{.name = "", .batch = 1, .seqlen = kRows, .heads = 1, .dim = kDim, .f32_angles = true};
  Embedding packed(c, FW_F32, false), wide(c, FW_F32, false);
  auto* x = static_cast<float*>(memory);
  float* out = x + bytes / 4;
  for (int64_t i = 0; i < kRows * kDim; ++i) {
    x[i / kDim * kLong + i % kDim] = static_cast<float*>(packed.rotary.x.data)[i];
  }
  wide.rotary.x.data = x, wide.rotary.out.data = out;
  wide.rotary.x.stride[1] = wide.rotary.out.stride[1] = kLong;
  ASSERT_EQ(packed.run(nullptr), FW_OK);
  ASSERT_EQ(wide.run(nullptr), FW_OK) << fw_last_error();
  for (int64_t i = 0; i < kRows * kDim; ++i) {
    EXPECT_EQ(double{out[i / kDim * kLong + i % kDim]}, packed.result().get(i)) << i;
  }
  munmap(memory, 2 * bytes);
}

TEST(Rotary, ReportNamesTheKernelAndThreads) {
  const Case c{.name = "", .batch = 4, .seqlen = 600, .heads = 4, .dim = 64, .rotary_dim = 64};
  Embedding run(c, FW_F32, false);
  fw_exec exec;
  fw_exec_init(&exec, sizeof exec);
  fw_report report{};
  report.struct_size = sizeof report;
  exec.report = &report, exec.num_threads = 3;
  ASSERT_EQ(fw_rotary(cpu(), &run.rotary, &exec), FW_OK) << fw_last_error();
  EXPECT_EQ(report.kernel, rotary_kernels().front());
  EXPECT_EQ(report.threads, 3);
  EXPECT_EQ(report.workspace_size, 0u);
  run.rotary.seqlen = 1;  // too little to share
  ASSERT_EQ(fw_rotary(cpu(), &run.rotary, &exec), FW_OK) << fw_last_error();
  EXPECT_EQ(report.threads, 1);
  run.rotary.batch = 0;
  run.rotary.x.data = run.rotary.out.data = nullptr;
  ASSERT_EQ(fw_rotary(cpu(), &run.rotary, &exec), FW_OK) << fw_last_error();
  EXPECT_STREQ(report.kernel, "");
}

TEST(Rotary, OnlyARotaryKernelCanBeForced) {
  Embedding run(kCases[0], FW_F32, false);
  EXPECT_EQ(run.run("reference_fwd"), FW_UNSUPPORTED);
  EXPECT_STREQ(fw_last_error(), "the forced kernel cannot run: reference_fwd computes the forward, not the rotary");
  EXPECT_EQ(run.run("portable_rotari"), FW_UNSUPPORTED);
  EXPECT_NE(std::string(fw_last_error()).find("did you mean portable_rotary?"), std::string::npos) << fw_last_error();
  setenv("FLASHWAVE_FORCE_KERNEL", "reference_fwd,portable_rotary", 1);
  EXPECT_EQ(run.run(nullptr), FW_OK) << fw_last_error();
  setenv("FLASHWAVE_FORCE_KERNEL", "reference_fwd", 1);
  EXPECT_EQ(run.run(nullptr), FW_UNSUPPORTED);
  EXPECT_STREQ(fw_last_error(), "FLASHWAVE_FORCE_KERNEL=reference_fwd names no rotary kernel");
  unsetenv("FLASHWAVE_FORCE_KERNEL");
}

}  // namespace
