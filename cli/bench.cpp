#include <cstdio>
#include <new>

#include "commands.h"
#include "counters.h"
#include "errors.h"
#include "json.h"
#include "measure.h"
#include "options.h"
#include "output_file.h"
#include "progress.h"
#include "sgemm.h"
#include "suite.h"
#include "svg.h"
#include "table.h"
#include "tensors.h"

namespace flashwave::cli {
namespace {

std::string to_json(const Measurement& m) {
  const auto or_null = [](JsonObject& object, const char* name, double value) {
    value > 0 ? object.number(name, value) : object.null(name);
  };
  JsonObject object;
  object.text("problem", m.problem).text("kernel", m.kernel).boolean("ok", m.fault.empty()).text("fault", m.fault);
  object.integer("threads", m.threads).integer("samples", m.samples).number("flops", m.flops);
  object.number("ms_p50", m.ms_p50).number("ms_p75", m.ms_p75).number("gflops", m.gflops);
  or_null(object, "cpu_ms", m.cpu_ms);
  object.text("unit", width_name(m.width));
  or_null(object, "peak_gflops", m.peak);
  or_null(object, "ratio_p50", m.ratio_p50);
  or_null(object, "ratio_p75", m.ratio_p75);
  object.integer("throttled_samples", m.throttled_samples);
  or_null(object, "standard_ms", m.standard_ms);
  or_null(object, "speedup", m.standard_ms > 0 ? m.standard_ms / m.ms_p50 : 0);
  object.number("workspace_bytes", m.workspace_bytes);
  or_null(object, "standard_bytes", m.standard_bytes);
  or_null(object, "kv_gbs", m.kv_gbs);
  or_null(object, "read_gbs", m.read_gbs);
  return object.str();
}

std::string counts_to_json(const Measurement& m) {
  JsonObject object;
  object.text("problem", m.problem).text("kernel", m.kernel).boolean("ok", m.fault.empty()).text("fault", m.fault);
  object.number("flops", m.flops).number("workspace_bytes", m.workspace_bytes);
  object.raw("launches", m.counters.empty() ? "[]" : m.counters);
  return object.str();
}

std::vector<std::string> counted_cells(const Measurement& m, const std::string& label) {
  if (!m.fault.empty()) return {label, m.kernel, "FAIL"};
  std::vector<std::string> row = {label, m.kernel};
  const std::vector<std::string> counts = counter_cells(sum_counters(m.counters));
  row.insert(row.end(), counts.begin(), counts.end());
  return row;
}

std::vector<std::string> cells(const Measurement& m, const std::string& label, bool decoding) {
  if (!m.fault.empty()) return {label, m.kernel, std::to_string(m.threads), "FAIL"};
  const auto or_dash = [](double value, int digits) { return value > 0 ? fixed(value, digits) : std::string("-"); };
  std::vector<std::string> row = {label,
                                  m.kernel,
                                  std::to_string(m.threads),
                                  fixed(m.ms_p50, m.ms_p50 < 10 ? 3 : 1),
                                  or_dash(m.cpu_ms, m.cpu_ms < 10 ? 3 : 1),
                                  fixed(m.gflops, 1),
                                  or_dash(m.ratio_p50, 3) + (m.throttled_samples > 0 ? "*" : ""),
                                  or_dash(m.ratio_p75, 3),
                                  or_dash(m.standard_ms, m.standard_ms < 10 ? 3 : 1)};
  row.push_back(m.standard_ms > 0 ? fixed(m.standard_ms / m.ms_p50, 2) + "x" : "-");
  row.push_back(human_bytes(m.workspace_bytes));
  row.push_back(m.standard_bytes > 0 ? human_bytes(m.standard_bytes) : "-");
  if (decoding) {
    row.push_back(or_dash(m.kv_gbs, 1));
    row.push_back(m.read_gbs > 0 && m.kv_gbs > 0 ? fixed(m.kv_gbs / m.read_gbs, 2) : "-");
  }
  return row;
}

Table make_counter_table(size_t label_width, size_t kernel_width) {
  std::vector<Column> columns = {{"problem", false}, {"kernel", false}};
  const std::vector<Column> counted = counter_columns();
  columns.insert(columns.end(), counted.begin(), counted.end());
  Table table(columns);
  table.reserve(0, label_width);
  table.reserve(1, kernel_width);
  for (size_t i = 2; i < columns.size(); ++i) table.reserve(i, 8);
  return table;
}

Table make_table(bool decoding, size_t label_width, size_t kernel_width) {
  std::vector<Column> columns = {{"problem", false},    {"kernel", false},  {"thr", true},        {"ms", true},
                                 {"cpu ms", true},      {"GFLOP/s", true},  {"of peak", true},    {"p75", true},
                                 {"standard ms", true}, {"speed-up", true}, {"our memory", true}, {"standard's", true}};
  if (decoding) {
    columns.push_back({"K/V GB/s", true});
    columns.push_back({"of read", true});
  }
  Table table(columns);
  const std::string number = "12345.678";
  table.reserve(0, label_width);
  table.reserve(1, kernel_width);
  table.reserve(3, number.size());
  table.reserve(4, number.size());
  table.reserve(7, 5);
  return table;
}

std::string caption(bool decoding) {
  return std::string(
             "\nms: median. cpu ms: of all threads, on a core. of peak: GFLOP/s over an in-process multiply-add loop "
             "of the\n"
             "kernel's unit, run before and after each sample on as many threads (median and 75th percentile; one\n"
             "thread: in its own time). * the host slowed the tile unit down beside some samples. standard: S = QK^T,\n"
             "softmax, PV with the full matrix in fp32 by ") +
         sgemm_name() +
         ", one head at a time on as many threads;\nits memory is the matrices of one head. our memory: workspace.\n" +
         (decoding ? "K/V GB/s: keys and values streamed; of read: over a loop that only reads memory.\n" : "");
}

std::vector<Case> choose_cases(const Options& options, Suite* suite) {
  const std::string op = options.text("--op", "all");
  if (op != "fwd" && op != "bwd" && op != "all") throw UsageError("--op takes fwd, bwd or all, got " + op);
  if (!options.words().empty()) {
    if (options.has("--suite")) throw UsageError("--suite cannot be used with a PROBLEM");
    suite->name = "problem";
    suite->problems = {options.words()};
  } else {
    *suite = load_suite("bench", options.text("--suite", "quick"), 0);
  }
  std::vector<Case> cases;
  for (const std::string& problem : suite->problems) {
    const Case c = parse_case(problem);
    require_checkable(c);
    if (op == "all" || c.backward == (op == "bwd")) cases.push_back(c);
  }
  if (cases.empty()) throw UsageError("suite " + suite->name + " has no problem with --op " + op);
  return cases;
}

// Words that are the same in every row tell nothing there.
std::vector<std::string> short_labels(const std::vector<Case>& cases) {
  std::vector<std::string> labels;
  for (const Case& c : cases) {
    Case shown = c;
    shown.kernel.clear();
    std::string label = label_case(shown);
    // sk, hk and dv are only worth a word where they differ from sq, hq and d.
    const auto drop = [&](const std::string& word) {
      const size_t at = label.find(" " + word + " ");
      if (at != std::string::npos) label.erase(at, word.size() + 1);
    };
    if (c.sk == c.sq) drop("sk=" + std::to_string(c.sk));
    if (c.hk == c.hq) drop("hk=" + std::to_string(c.hk));
    labels.push_back(label);
  }
  return labels;
}

void write_plot(const std::string& path, const std::string& device, const Suite& suite,
                const std::vector<std::string>& labels, const std::vector<Measurement>& all) {
  BarChart chart;
  chart.title = "flashwave: " + suite.name;
  chart.subtitle = "on " + device + "; standard attention by " + sgemm_name() + "; higher is better";
  chart.value_axis = "GFLOP/s";
  chart.series = {"flashwave", "standard attention"};
  for (size_t i = 0; i < all.size(); ++i) {
    const Measurement& m = all[i];
    const double standard = m.standard_ms > 0 ? m.flops / m.standard_ms * 1e-6 : 0;
    chart.groups.push_back({labels[i], {m.gflops, standard}, m.peak});
    if (m.peak > 0) chart.marker_name = "multiply-add peak";
  }
  write_file("--plot", path, to_svg(chart));
}

}  // namespace

std::string bench_help() {
  return "usage: flashwave bench [--suite NAME|FILE] [options]\n"
         "       flashwave bench PROBLEM [options]\n\n"
         "Checks sampled rows of every output against fp64, then times the problems (a wrong one prints FAIL and the\n"
         "exit status is 1). On the CPU each is compared with standard attention and with the multiply-add peak. On\n"
         "an emulated device instructions and bytes are counted instead of time.\n\n"
         "  --suite S     " +
         embedded_suite_names("bench") +
         ", or a file (default quick)\n"
         "  --op OP       fwd, bwd or all (default)\n"
         "  --device D    cpu, cuda[:i], hip[:i], emu:gfxNNN or auto (default)\n"
         "  --samples N   samples per problem (default: the suite's, else 7)\n"
         "  --rounds N    go through the suite N times, taking samples in each (default: the suite's, else 1)\n"
         "  --threads N   CPU threads where the problem does not say (default: all)\n"
         "  --kernel K    run this kernel or fail\n"
         "  --json        one JSON object per problem\n"
         "  --plot F      also write an SVG chart\n"
         "\nPROBLEM is made of the words that 'flashwave explain --help' lists.\n";
}

int bench_command(const Arguments& arguments) {
  const Options options(arguments, {"--device=", "--suite=", "--op=", "--json",
                                    "--plot=", "--samples=", "--rounds=", "--threads=", "--kernel="});
  Suite suite;
  const std::vector<Case> cases = choose_cases(options, &suite);
  if (options.has("--plot")) require_writable("--plot", options.text("--plot", ""));
  MeasureSettings settings;
  settings.device = open_to_run(options.text("--device", "auto"));
  const fw_device_info info = query_device(settings.device);
  settings.on_cpu = std::string(info.kind) == "cpu";
  settings.samples = options.integer("--samples", suite.samples ? suite.samples : 7, 1, 100000);
  settings.threads = options.integer("--threads", 0, 0, 1024);
  settings.kernel = options.text("--kernel", "");
  settings.counting = start_counters(settings.device);
  if (settings.counting) {
    for (const char* option : {"--samples", "--rounds", "--plot"}) {
      if (options.has(option))
        throw UsageError(std::string(option) + " is about times, which " + info.name + " has not");
    }
  }

  const bool json = options.has("--json");
  const std::vector<std::string> labels = short_labels(cases);
  bool decoding = false;
  size_t label_width = 0, kernel_width = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    decoding |= is_decoding(cases[i]);
    label_width = std::max(label_width, labels[i].size());
  }
  for (int32_t i = 0; const char* name = fw_kernel_name(settings.device, i); ++i) {
    kernel_width = std::max(kernel_width, std::string(name).size());
  }
  const Table table = settings.counting ? make_counter_table(label_width, kernel_width)
                                        : make_table(decoding, label_width, kernel_width);
  const auto line_of = [&](const Measurement& m, const std::string& label) {
    if (json) return (settings.counting ? counts_to_json(m) : to_json(m)) + "\n";
    return table.line(settings.counting ? counted_cells(m, label) : cells(m, label, decoding));
  };
  if (!json) {
    std::printf("%s on %s (%s, %s)\n\n%s", suite.name.c_str(), info.name, info.arch, info.description,
                table.header().c_str());
  }
  // With rounds, a problem's samples are spread over the whole run: a slow minute of the machine meets all problems.
  const auto rounds = settings.counting ? 1 : size_t(options.integer("--rounds", suite.rounds, 1, 1000));
  bool all_good = true;
  std::vector<Measurement> all(cases.size());
  {
    Progress progress(cases.size() * rounds);
    for (size_t n = 0; n < cases.size() * rounds; ++n) {
      const size_t i = n % cases.size();
      progress.show(n, labels[i]);
      Measurement& m = all[i];
      try {
        const Measurement round = measure(cases[i], settings);
        n < cases.size() ? void(m = round) : merge(m, round);
      } catch (const LibraryError& error) {
        m.problem = format_case(cases[i]);
        m.fault = error.what();
      } catch (const HostMemoryError& error) {
        m.problem = format_case(cases[i]);
        m.fault = error.what();
      } catch (const std::bad_alloc&) {
        m.problem = format_case(cases[i]);
        m.fault = "the host's memory does not suffice for its tensors and standard attention";
      }
      if (n < cases.size() * (rounds - 1)) continue;
      progress.clear();
      std::fputs(line_of(m, labels[i]).c_str(), stdout);
      if (!m.fault.empty()) {
        all_good = false;
        if (!json) std::printf("  %s\n  %s\n", m.fault.c_str(), m.problem.c_str());
      }
      std::fflush(stdout);
    }
  }
  if (!json) std::fputs((settings.counting ? counter_caption() : caption(decoding)).c_str(), stdout);
  if (options.has("--plot")) write_plot(options.text("--plot", ""), info.name, suite, labels, all);
  return all_good ? 0 : 1;
}

}  // namespace flashwave::cli
