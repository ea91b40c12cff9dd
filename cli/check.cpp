#include "check.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <regex>
#include <sstream>

#include "commands.h"
#include "errors.h"
#include "json.h"
#include "options.h"
#include "progress.h"
#include "suite.h"

namespace flashwave::cli {
namespace {

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed:
      return "passed";
    case Outcome::kFailed:
      return "failed";
    default:
      return "skipped";
  }
}

std::string to_json(const std::string& problem, const std::string& device, const CheckResult& result) {
  std::string tensors;
  for (const Judgement& j : result.tensors) {
    JsonObject tensor;
    tensor.text("tensor", j.tensor).boolean("ok", j.ok).number("error", j.error);
    tensor.number("naive_error", j.naive_error).number("bound", j.bound);
    tensors += (tensors.empty() ? "" : ", ") + tensor.str();
  }
  JsonObject object;
  if (!device.empty()) object.text("device", device);
  object.text("problem", problem).text("outcome", outcome_name(result.outcome)).text("kernel", result.kernel);
  object.text("reason", result.reason).raw("tensors", "[" + tensors + "]").number("seconds", result.seconds);
  return object.str();
}

void print_result(const std::string& problem, const std::string& device, const CheckResult& result) {
  std::printf("%s  %s\n", problem.c_str(), outcome_name(result.outcome));
  if (!device.empty()) std::printf("  device  %s\n", device.c_str());
  if (!result.kernel.empty()) std::printf("  kernel  %s\n", result.kernel.c_str());
  for (const Judgement& j : result.tensors) {
    std::printf("  %-8s error %.3g, allowed %.3g (naive %.3g)\n", j.tensor.c_str(), j.error, j.bound, j.naive_error);
  }
  if (!result.reason.empty()) std::printf("  %s\n", result.reason.c_str());
}

struct Shard {
  int64_t index = 1, count = 1;
};

Shard parse_shard(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos) throw UsageError("--shard takes i/n with 1 <= i <= n, got " + text);
  Shard shard;
  shard.count = parse_integer(text.substr(slash + 1), "--shard", 1, 1000000);
  shard.index = parse_integer(text.substr(0, slash), "--shard", 1, shard.count);
  return shard;
}

std::vector<std::string> choose_problems(const Options& options) {
  const uint64_t seed = parse_unsigned(options.text("--seed", "0"), "--seed");
  if (!options.words().empty()) {
    for (const char* other : {"--suite", "--filter", "--shard"}) {
      if (options.has(other)) throw UsageError(std::string(other) + " cannot be used with a PROBLEM");
    }
    Case c = parse_case(options.words());
    if (options.has("--seed")) c.seed = seed;
    return {format_case(c)};
  }
  const std::vector<std::string> all = load_suite("check", options.text("--suite", "smoke"), seed).problems;
  const Shard shard = parse_shard(options.text("--shard", "1/1"));
  std::regex filter;
  try {
    filter = std::regex(options.text("--filter", ""));
  } catch (const std::regex_error& error) {
    throw UsageError("--filter: " + std::string(error.what()));
  }
  std::vector<std::string> chosen;
  int64_t matched = 0;
  for (const std::string& problem : all) {
    if (!std::regex_search(problem, filter)) continue;
    if (matched++ % shard.count == shard.index - 1) chosen.push_back(problem);
  }
  return chosen;
}

// What is being checked, for those who find the program dead.
char current_problem[2048];

extern "C" void say_current_problem(int signal) {
  constexpr char kBefore[] = "flashwave: died of a signal while checking: ";
  // Nothing can be done if this fails, too. The signal's own action follows.
  if (write(STDERR_FILENO, kBefore, sizeof kBefore - 1) > 0 &&
      write(STDERR_FILENO, current_problem, strnlen(current_problem, sizeof current_problem)) > 0) {
    static_cast<void>(!write(STDERR_FILENO, "\n", 1));
  }
  raise(signal);
}

void name_problem_on_death() {
  struct sigaction action = {};
  action.sa_handler = say_current_problem;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) {
    struct sigaction before = {};
    // A sanitizer's own handler says more.
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) sigaction(signal, &action, nullptr);
  }
}

// A name nobody has would make every problem "skipped", and a run of the suite look good.
void require_kernel(fw_device* device, const std::string& name) {
  for (int32_t i = 0; const char* known = fw_kernel_name(device, i); ++i) {
    if (name == known) return;
  }
  throw UsageError("--kernel " + name + ": " + query_device(device).name +
                   " has no kernel of that name; 'flashwave devices' and 'flashwave explain' list them");
}

// A device, and what came of the problems on it.
struct Checked {
  fw_device* device;
  std::string name;  // where there are several; else nobody asks which one it was
  std::string place() const { return name.empty() ? "" : " on " + name; }

  size_t count[3] = {0, 0, 0};  // by Outcome
  size_t ran_kernel = 0;        // problems that --kernel ran
  bool refused_as_expected = false;
};

std::vector<Checked> open_devices(const std::string& names) {
  std::vector<Checked> devices;
  std::istringstream words(names);
  for (std::string name; std::getline(words, name, ',');) devices.push_back({open_to_run(name), name});
  if (devices.empty()) devices.push_back({open_to_run(names), ""});  // which says what is wrong with it
  if (devices.size() == 1) devices[0].name.clear();
  return devices;
}

// "12 skipped: REASON", the most frequent first.
void print_skipped(const std::map<std::string, size_t>& reasons) {
  constexpr size_t kMost = 12;
  std::vector<std::pair<size_t, std::string>> sorted;
  for (const auto& [reason, count] : reasons) sorted.emplace_back(count, reason);
  std::ranges::sort(sorted, [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; i < std::min(sorted.size(), kMost); ++i) {
    std::printf("%zu skipped: %s\n", sorted[i].first, sorted[i].second.c_str());
  }
  if (sorted.size() > kMost) std::printf("... and for %zu other reasons\n", sorted.size() - kMost);
}

}  // namespace

std::string check_help() {
  return "usage: flashwave check [--suite NAME|FILE] [options]\n"
         "       flashwave check PROBLEM [options]\n\n"
         "Runs problems on a device and compares every output with the fp64 reference: first where it is written and\n"
         "where it is NaN or infinite, then max|out - ref| <= 2 max|naive - ref| (gradients 3) plus a small floor, "
         "then\n"
         "that repetitions give the same bits. Ends with 'N passed, N failed, N skipped'; each failure is printed "
         "with\n"
         "the words that run it alone.\n\n"
         "  --suite S     " +
         embedded_suite_names("check") +
         ", or a file (default smoke)\n"
         "  --filter RE   only problems whose words match the regular expression\n"
         "  --shard i/n   every n-th problem, starting with the i-th (1 <= i <= n)\n"
         "  --device D    cpu, cuda[:i], hip[:i], emu:gfxNNN or auto (default); several with commas between them\n"
         "  --kernel K    run this kernel; problems it does not take are skipped, and it must have run some\n"
         "  --seed S      other random data and draws (default 0)\n"
         "  --threads N   CPU threads of the first run (default: all)\n"
         "  --json        one JSON object per problem, the summary on stderr\n"
         "\nPROBLEM is made of these words:\n\n" +
         words_help();
}

int check_command(const Arguments& arguments) {
  const Options options(
      arguments, {"--device=", "--suite=", "--filter=", "--kernel=", "--seed=", "--shard=", "--threads=", "--json"});
  const std::vector<std::string> problems = choose_problems(options);
  CheckSettings settings;
  std::vector<Checked> devices = open_devices(options.text("--device", "auto"));
  fw_device* const cpu = open_device("cpu");
  settings.kernel = options.text("--kernel", "");
  settings.threads = options.integer("--threads", 0, 0, 1024);

  if (!settings.kernel.empty()) {
    for (const Checked& checked : devices) require_kernel(checked.device, settings.kernel);
  }
  const bool json = options.has("--json"), alone = !options.words().empty();
  const bool whole = parse_shard(options.text("--shard", "1/1")).count == 1;
  std::map<std::string, size_t> reasons;  // of skipping
  name_problem_on_death();
  Progress progress(problems.size());
  for (size_t i = 0; i < problems.size(); ++i) {
    progress.show(i, problems[i]);
    CaseCheck check(parse_case(problems[i]), cpu, settings);
    for (Checked& checked : devices) {
      const std::string place = checked.place();
      std::snprintf(current_problem, sizeof current_problem, "%s%s", problems[i].c_str(), place.c_str());
      const CheckResult result = check.on(checked.device);
      ++checked.count[size_t(result.outcome)];
      if (result.outcome == Outcome::kSkipped) ++reasons[result.reason];
      if (result.kernel == settings.kernel) ++checked.ran_kernel;
      checked.refused_as_expected |= result.refused_as_expected;
      if (json) {
        progress.clear();
        std::printf("%s\n", to_json(problems[i], checked.name, result).c_str());
      } else if (alone) {
        print_result(problems[i], checked.name, result);
      } else if (result.outcome == Outcome::kFailed) {
        progress.clear();
        const std::string kernel = result.kernel.empty() ? "" : " [" + result.kernel + "]";
        std::printf("FAILED %s%s%s\n  %s\n", problems[i].c_str(), kernel.c_str(), place.c_str(), result.reason.c_str());
      }
    }
    std::fflush(stdout);
  }
  progress.clear();
  std::FILE* const summary = json ? stderr : stdout;
  if (!json && !alone) print_skipped(reasons);
  size_t count[3] = {0, 0, 0};
  bool ok = true;
  for (const Checked& checked : devices) {
    const std::string place = checked.place();
    // A shard may hold no problem for a kernel; the suite must.
    const bool idle = !settings.kernel.empty() && checked.ran_kernel == 0 && whole;
    if (idle) std::fprintf(stderr, "flashwave: no problem was run by %s%s\n", settings.kernel.c_str(), place.c_str());
    const bool something = checked.count[0] > 0 || (alone && checked.refused_as_expected);
    if (!something && checked.count[1] == 0) std::fprintf(stderr, "flashwave: nothing was checked%s\n", place.c_str());
    ok = ok && checked.count[1] == 0 && something && !idle;
    for (int i = 0; i < 3; ++i) count[i] += checked.count[i];
  }
  std::fprintf(summary, "%zu passed, %zu failed, %zu skipped\n", count[0], count[1], count[2]);
  return ok ? 0 : 1;
}

}  // namespace flashwave::cli
