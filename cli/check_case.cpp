#include <algorithm>
#include <chrono>
#include <map>
#include <new>
#include <optional>

#include "check.h"
#include "errors.h"

namespace flashwave::cli {
namespace {

std::vector<TensorId> judged_tensors(const Geometry& g) {
  std::vector<TensorId> ids;
  for (int i = 0; i < kTensorCount; ++i) {
    const auto id = TensorId(i);
    if (g.view[id].present && (g.is_output(id) || g.is_updated(id))) ids.push_back(id);
  }
  return ids;
}

// What a backward is given: o and lse of a forward in the same element type.
struct ForwardResult {
  std::vector<std::byte> o, lse;

  static ForwardResult of(const Staged& staged) { return {staged.download_raw(kO), staged.download_raw(kLse)}; }
  void give_to(Staged& staged) const {
    staged.upload_raw(kO, o);
    staged.upload_raw(kLse, lse);
  }
};

}  // namespace

// Each is made when the first device asks, all by the CPU.
class Answers {
 public:
  Answers(const Case& c, fw_device* cpu) : g_(make_geometry(c)), cpu_(cpu) {}

  const Geometry& geometry() const { return g_; }
  const HostValues& values() {
    if (!values_) values_ = make_values(g_);
    return *values_;
  }
  const ForwardResult& forward() {
    if (!forward_) {
      forward_.emplace();
      if (g_.problem.backward) {
        Staged given(cpu_, g_, g_.problem.dtype);
        given.upload(values());
        run_problem(given, false, kReferenceForward);
        forward_ = ForwardResult::of(given);
      }
    }
    return *forward_;
  }
  // fp64 on the inputs widened to F32 (exact). One per judged tensor, as below.
  const std::vector<Readback>& reference() {
    if (reference_.empty()) {
      Staged exact(cpu_, g_, FW_F32);
      exact.upload(values());
      run_problem(exact, false, kReferenceForward);
      if (g_.problem.backward) run_problem(exact, true, {"reference_bwd", 0});
      reference_ = read_all(exact);
    }
    return reference_;
  }
  // Plain attention in the case's own type, or in that of its products.
  const std::vector<Readback>& naive(fw_dtype products) {
    std::vector<Readback>& result = naive_[products];
    if (result.empty()) {
      const Case& c = g_.problem;
      Staged naive(cpu_, g_, products);
      naive.upload(values());
      if (c.backward && products == c.dtype) {
        forward().give_to(naive);
      } else if (c.backward) {
        run_problem(naive, false, kReferenceForward);
      }
      run_problem(naive, c.backward, {c.backward ? "naive_bwd" : "naive_fwd", 0});
      result = read_all(naive);
    }
    return result;
  }

 private:
  inline static const RunOptions kReferenceForward{"reference_fwd", 0};

  std::vector<Readback> read_all(const Staged& staged) const {
    std::vector<Readback> all;
    for (const TensorId id : judged_tensors(g_)) all.push_back(staged.read(id));
    return all;
  }

  Geometry g_;
  fw_device* cpu_;
  std::optional<HostValues> values_;
  std::optional<ForwardResult> forward_;
  std::vector<Readback> reference_;
  std::map<fw_dtype, std::vector<Readback>> naive_;
};

namespace {

// What a kernel multiplies, as its name says: fp16 tensors may be multiplied as bf16
// (FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE).
fw_dtype products_of(const std::string& kernel, fw_dtype dtype) {
  return dtype == FW_F16 && kernel.find("_bf16") != std::string::npos ? FW_BF16 : dtype;
}

// Promised everywhere: o, lse, dk, dv and what is stored in the cache. dq and the sums over many rows only on request,
// except on the CPU, where everything is.
bool must_repeat(const Case& c, TensorId id, bool on_cpu) {
  if (on_cpu || c.deterministic) return true;
  return id == kO || id == kLse || id == kProbs || id == kDK || id == kDV || id == kK || id == kV;
}

void load_inputs(Staged& staged, Answers& answers, bool backward) {
  staged.upload(answers.values());
  if (backward) answers.forward().give_to(staged);
}

// Runs again (same threads, then 1 and 2 on a CPU) and compares bits. Empty if all agree.
std::string repeat_fault(Staged& staged, Answers& answers, const RunOptions& options, bool on_cpu) {
  const Geometry& g = answers.geometry();
  const Case& c = g.problem;
  const std::vector<TensorId> ids = judged_tensors(g);
  std::vector<std::vector<std::byte>> first;
  for (const TensorId id : ids) first.push_back(staged.download_raw(g.view[id].buffer));
  std::vector<int64_t> threads = {options.threads};
  if (on_cpu) threads.insert(threads.end(), {1, 2});
  for (const int64_t count : threads) {
    load_inputs(staged, answers, c.backward);
    run_problem(staged, c.backward, {options.kernel, count});
    for (size_t i = 0; i < ids.size(); ++i) {
      if (must_repeat(c, ids[i], on_cpu) && staged.download_raw(g.view[ids[i]].buffer) != first[i]) {
        const std::string how =
            count == options.threads ? "in a second run" : "with " + std::to_string(count) + " threads";
        return std::string(tensor_name(ids[i])) + " has other bits " + how;
      }
    }
  }
  return "";
}

// A case that must not run. The data does not matter.
CheckResult check_refusal(const Geometry& g, fw_device* device, const RunOptions& options) {
  const Case& c = g.problem;
  CheckResult result;
  Staged staged(device, g, c.dtype);
  try {
    result.kernel = run_problem(staged, c.backward, options).kernel;
    result.reason = "expected a refusal, but it ran";
  } catch (const LibraryError& error) {
    const fw_status wanted = c.expect == Expect::kInvalid ? FW_INVALID_ARGUMENT : FW_UNSUPPORTED;
    result.reason = error.what();
    if (error.status != wanted) {
      result.reason += std::string(" (expected ") + fw_status_name(wanted) + ")";
    } else if (result.reason.find(c.expect_text) == std::string::npos) {
      result.reason += " (expected it to mention " + c.expect_text + ")";
    } else {
      result.outcome = c.expect == Expect::kInvalid ? Outcome::kPassed : Outcome::kSkipped;
      result.refused_as_expected = true;
    }
  }
  return result;
}

CheckResult check_answer(Answers& answers, fw_device* device, const RunOptions& options) {
  const Geometry& g = answers.geometry();
  const Case& c = g.problem;
  CheckResult result;
  if (fw_kernel_name(device, 0) == nullptr) {  // nothing to check, and not the problem's fault
    result.outcome = Outcome::kSkipped;
    result.reason = std::string("there are no kernels for ") + query_device(device).name;
    return result;
  }
  const bool on_cpu = std::string(query_device(device).kind) == "cpu";
  require_host_memory(g);
  Staged staged(device, g, c.dtype);
  staged.lend_workspace(plan_problem(staged, c.backward, options));
  load_inputs(staged, answers, c.backward);
  result.kernel = run_problem(staged, c.backward, options).kernel;
  const bool no_queries = c.b == 0 || c.sq == 0;  // no attention kernel runs then, and the report names none
  if (!options.kernel.empty() && result.kernel != options.kernel && !(no_queries && result.kernel.empty())) {
    result.reason = "kernel " + options.kernel + " was forced, but " + result.kernel + " ran";
    return result;
  }
  const fw_dtype products = products_of(result.kernel, c.dtype);
  const std::vector<Readback>& reference = answers.reference();
  const std::vector<Readback>& naive = answers.naive(products);
  Geometry rounded = g;  // as results are on their way
  rounded.problem.dtype = products;
  const std::vector<TensorId> ids = judged_tensors(g);
  double largest_gradient = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool main_gradient = ids[i] == kDQ || ids[i] == kDK || ids[i] == kDV;
    if (main_gradient) largest_gradient = std::max(largest_gradient, largest_magnitude(reference[i]));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const Rule rule = rule_of(rounded, ids[i], reference[i], largest_gradient);
    result.tensors.push_back(
        judge(tensor_name(ids[i]), staged.read(ids[i]), reference[i], naive[i], expected_writing(g, ids[i]), rule));
    const Judgement& j = result.tensors.back();
    if (!j.ok) result.reason += (result.reason.empty() ? "" : "; ") + j.tensor + ": " + j.reason;
  }
  if (result.reason.empty()) result.reason = staged.broken_promise();
  staged.lend_workspace(0);  // the library has its own
  if (result.reason.empty()) result.reason = repeat_fault(staged, answers, options, on_cpu);
  if (result.reason.empty()) result.outcome = Outcome::kPassed;
  return result;
}

}  // namespace

CaseCheck::CaseCheck(const Case& c, fw_device* cpu, const CheckSettings& settings)
    : case_(c), settings_(settings), cpu_(cpu) {}
CaseCheck::~CaseCheck() = default;

CheckResult CaseCheck::checked(fw_device* device) {
  if (query_device(device).compute_units < case_.units) {
    CheckResult result;
    result.outcome = Outcome::kSkipped;
    result.reason = "of use on devices with " + std::to_string(case_.units) + " compute units or more";
    return result;
  }
  const RunOptions options{case_.kernel.empty() ? settings_.kernel : case_.kernel,
                           case_.threads ? case_.threads : settings_.threads};
  if (!answers_) answers_ = std::make_unique<Answers>(case_, cpu_);
  return case_.expect == Expect::kOk ? check_answer(*answers_, device, options)
                                     : check_refusal(answers_->geometry(), device, options);
}

CheckResult CaseCheck::on(fw_device* device) {
  const auto start = std::chrono::steady_clock::now();
  CheckResult result;
  try {
    result = checked(device);
  } catch (const LibraryError& error) {
    result.reason = error.what();
    // --kernel runs a suite through one kernel; what that one does not take is no fault of the problem.
    const bool only_this_kernel = !settings_.kernel.empty() && case_.kernel.empty();
    if (error.status == FW_UNSUPPORTED && only_this_kernel) result.outcome = Outcome::kSkipped;
  } catch (const HostMemoryError& error) {
    result.reason = error.what();
  } catch (const std::bad_alloc&) {
    result.reason = "the host's memory does not suffice for its tensors, their reference and copies";
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace flashwave::cli
