// Right or refused: whatever a caller puts into the structs, a call is refused and touches nothing, or it stays inside
// the tensors it was given and agrees with the reference kernel.
//
//   fuzz_api -max_len=512                       until something is found
//   fuzz_api -max_len=512 -runs=5000 -seed=1    the same inputs every time
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "arrays.h"
#include "flashwave/flashwave.h"
#include "make_call.h"

namespace fuzz {
namespace {

constexpr double kMostWork = 3e6;  // multiplications a run may take

fw_device* cpu() {
  static fw_device* const device = [] {
    fw_device* opened = nullptr;
    if (fw_device_open("cpu", &opened) != FW_OK) std::abort();
    return opened;
  }();
  return device;
}

Arena& arena() {
  static Arena memory;
  return memory;
}

std::string explained(const Call& call) {
  std::vector<char> text(1 << 14);
  static_cast<void>(fw_explain(cpu(), &call.attention.value, call.gradients_or_null(), nullptr, FW_TEXT, text.data(),
                               text.size(), nullptr));
  return text.data();
}

// In bytes from the start of the arena, so that a byte that should not have changed can be placed.
void print_arrays(const Call& call) {
  for (const Array& array : arrays_of(call.attention.value, call.gradients_or_null())) {
    if (array.data == nullptr) continue;
    std::fprintf(stderr, "%-16s at %td, dtype %d%s,", array.name, array.data - arena().begin(), array.dtype,
                 array.written ? ", written" : "");
    for (int i = 0; i < 4; ++i) {
      std::fprintf(stderr, " %lld by %lld", static_cast<long long>(array.extent[i]),
                   static_cast<long long>(array.stride[i]));
    }
    std::fprintf(stderr, "\n");
  }
}

[[noreturn]] void fail(const Call& call, const std::string& what) {
  print_arrays(call);
  std::fprintf(stderr, "%s\nforced kernel: '%s'\n%slast error: %s\n", what.c_str(), call.kernel.c_str(),
               explained(call).c_str(), fw_last_error());
  std::abort();
}

// The same numbers in every tensor that is only read, so that results can be compared; index arrays stay.
void fill_inputs(const std::vector<Array>& arrays, Arena& arena) {
  const std::vector<char> indices(arena.begin(), arena.begin() + Arena::kIndexBytes);
  uint32_t state = 12345;
  for (const Array& array : arrays) {
    if (array.dtype < FW_F16 || array.dtype > FW_F32) continue;
    for_each_element(array, [&](char* address) {
      state = state * 1664525u + 1013904223u;
      store(address, array.dtype, static_cast<float>(state >> 16) / 32768.0f - 1.0f);
    });
  }
  std::copy(indices.begin(), indices.end(), arena.begin());
}

// Numbers for which two correct kernels give nearly the same results.
bool tame(const Call& call, const std::vector<Array>& arrays) {
  const fw_attention& a = call.attention.value;
  if (a.softmax_scale != FW_SCALE_AUTO && std::fabs(a.softmax_scale) > 4) return false;
  if (a.softcap != 0 && a.softcap < 0.5f) return false;
  if (a.dropout_p > 0.95f) return false;
  bool all = true;
  for (const Array& array : arrays) {
    if (array.dtype == FW_DTYPE_NONE) continue;
    for_each_element(array, [&](const char* at) {
      const float value = load(at, array.dtype);
      const bool is_row_sum = std::strcmp(array.name, "lse") == 0 && value == -INFINITY;
      all = all && (is_row_sum || std::fabs(value) <= 64);
    });
  }
  return all;
}

struct Workspace {
  void* memory = nullptr;
  size_t bytes = 0;
  ~Workspace() { std::free(memory); }
};

fw_status run(const Call& call, bool backward, const char* kernel, Workspace* workspace) {
  static const fw_executor serial = {nullptr, [](void*, int32_t workers, void (*job)(void*, int32_t), void* arg) {
                                       for (int32_t w = workers; w-- > 0;) job(arg, w);
                                     }};
  fw_report report{};
  report.struct_size = sizeof report;
  fw_exec exec;
  fw_exec_init(&exec, sizeof exec);
  exec.num_threads = call.threads;
  exec.force_kernel = kernel;
  exec.report = &report;
  if (call.own_executor) exec.executor = &serial;
  const fw_gradients* gradients = backward ? &call.gradients.value : nullptr;
  if (workspace != nullptr) {
    const fw_status status = fw_workspace_size(cpu(), &call.attention.value, gradients, &exec, &workspace->bytes);
    if (status == FW_OK && workspace->bytes > 0 && workspace->bytes <= (64u << 20)) {
      // Exactly as much as was asked for: the sanitizer sees one byte more.
      if (posix_memalign(&workspace->memory, 64, workspace->bytes) != 0) std::abort();
      exec.workspace = workspace->memory;
      exec.workspace_size = workspace->bytes;
    }
  }
  const fw_status status = backward ? fw_backward(cpu(), &call.attention.value, gradients, &exec)
                                    : fw_forward(cpu(), &call.attention.value, &exec);
  if (status == FW_OK && kernel != nullptr && report.kernel[0] != '\0' && std::string(kernel) != report.kernel) {
    fail(call, std::string("asked for ") + kernel + ", ran " + report.kernel);
  }
  return status;
}

// Bytes of the arena that the call may change: as many as the arena has, 1 where it may.
using Mask = std::vector<uint8_t>;
Mask writable(const std::vector<Array>& arrays, const Arena& arena) {
  Mask may(Arena::kBytes, 0);
  for (const Array& array : arrays) {
    if (!array.written) continue;
    for_each_element(array, [&](const char* at) {
      std::memset(may.data() + (at - arena.begin()), 1, static_cast<size_t>(array.element()));
    });
  }
  return may;
}

void check_untouched(const Call& call, const Mask& may, const std::vector<char>& before, const Arena& arena,
                     const char* when) {
  if (std::memcmp(arena.begin(), before.data(), before.size()) == 0) return;
  for (size_t i = 0; i < before.size(); ++i) {
    if (!may[i] && arena.begin()[i] != before[i]) {
      fail(call, std::string(when) + ": byte " + std::to_string(i) + " of the arena was changed");
    }
  }
}

void compare(const Call& call, const std::vector<Array>& arrays, const std::vector<char>& got, const Arena& arena) {
  for (const Array& array : arrays) {
    if (!array.written) continue;
    // Weights and dS are rounded to the type of q on their way into products, also where the product is fp32.
    const std::string name = array.name;
    const bool is_product = name == "o" || name == "dq" || name == "dk" || name == "dv";
    const int32_t coarsest = array.dtype == FW_F32 && is_product ? call.attention.value.q.dtype : array.dtype;
    const double unit = coarsest == FW_F32 ? 2e-4 : coarsest == FW_F16 ? 4e-3 : 3e-2;
    double largest = 1;
    for_each_element(array, [&](const char* at) {
      const float value = load(at, array.dtype);
      if (std::isfinite(value)) largest = std::max(largest, static_cast<double>(std::fabs(value)));
    });
    for_each_element(array, [&](const char* at) {
      const float expected = load(at, array.dtype), value = load(got.data() + (at - arena.begin()), array.dtype);
      const bool same = expected == value || (std::isnan(expected) && std::isnan(value));
      if (!same && !(std::fabs(static_cast<double>(expected) - value) <= unit * largest)) {
        fail(call, std::string(array.name) + ": got " + std::to_string(value) + ", the reference gives " +
                       std::to_string(expected));
      }
    });
  }
}

bool small_enough(const fw_attention& a) {
  const auto size = [](int64_t extent) { return extent > 0 ? static_cast<double>(extent) : 0.0; };
  return (1 + size(a.batch)) * size(a.heads_q) * (1 + size(a.seqlen_q)) * (1 + size(a.seqlen_k)) *
             (size(a.dim_qk) + size(a.dim_v)) <=
         kMostWork;
}

// Calls that look at no tensor must survive anything.
void ask(const Call& call) {
  const fw_attention* a = &call.attention.value;
  const fw_gradients* g = call.gradients_or_null();
  char text[256];
  size_t needed = 0, bytes = 0;
  for (const fw_format format : {FW_TEXT, FW_JSON}) {
    const fw_status status = fw_explain(cpu(), a, g, nullptr, format, text, sizeof text, &needed);
    if (status != FW_OK && status != FW_INVALID_ARGUMENT) fail(call, "fw_explain: unexpected status");
    if (status == FW_OK && needed < 2) fail(call, "fw_explain: no text");
  }
  const fw_status status = fw_workspace_size(cpu(), a, g, nullptr, &bytes);
  if (status != FW_OK && status != FW_INVALID_ARGUMENT && status != FW_OUT_OF_MEMORY) {
    fail(call, "fw_workspace_size: unexpected status");
  }
}

void test(const Call& call, Arena& arena) {
  ask(call);
  const fw_attention& a = call.attention.value;
  const std::vector<Array> arrays = arrays_of(a, call.gradients_or_null());
  for (const Array& array : arrays) {
    if (!array.inside(arena.begin(), arena.end())) return;
  }
  if (!small_enough(a)) return;

  fill_inputs(arrays, arena);
  bool consistent = true;  // o and lse are those of the forward
  if (call.backward) consistent = run(call, false, "reference_fwd", nullptr) == FW_OK;
  const std::vector<char> before(arena.begin(), arena.end());
  const Mask nothing(Arena::kBytes, 0), may = writable(arrays, arena);
  const bool comparable = consistent && tame(call, arrays);

  Workspace workspace;
  const char* kernel = call.kernel.empty() ? nullptr : call.kernel.c_str();
  const fw_status status = run(call, call.backward, kernel, call.own_workspace ? &workspace : nullptr);
  if (status != FW_OK) {
    const bool refused = status == FW_INVALID_ARGUMENT || (status == FW_UNSUPPORTED && kernel != nullptr);
    if (!refused) fail(call, std::string("unexpected ") + fw_status_name(status));
    if (fw_last_error()[0] == '\0') fail(call, "refused without a message");
    check_untouched(call, nothing, before, arena, "refused");
    return;
  }
  check_untouched(call, may, before, arena, "accepted");
  const std::vector<char> got(arena.begin(), arena.end());

  std::copy(before.begin(), before.end(), arena.begin());
  if (run(call, call.backward, call.backward ? "reference_bwd" : "reference_fwd", nullptr) != FW_OK) {
    fail(call, "the reference refuses what another kernel took");
  }
  check_untouched(call, may, before, arena, "reference");
  const bool rounds_often = call.kernel.rfind("naive", 0) == 0;  // that is what it is for
  if (comparable && !rounds_often) compare(call, arrays, got, arena);
}

}  // namespace

static void test_one(const uint8_t* data, size_t size) {
  arena().reset();
  Bytes bytes(data, size);
  Call call;
  make_call(bytes, arena(), &call);
  test(call, arena());
}

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::test_one(data, size);
  return 0;
}
