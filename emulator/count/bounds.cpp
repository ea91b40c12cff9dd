#include "count/bounds.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "core/opcode.h"

namespace emu {
namespace {

constexpr double kBytesPerClock = 64;      // of one compute unit's vector cache
constexpr double kRdnaTranscendental = 4;  // clocks of its own unit; one issue slot besides

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

void add_conflicts(LaunchCounters& c, const Program& program, const LaunchResult& result) {
  const AccessCounter& a = *result.accesses;
  for (u32 i = 0; i < a.lds_cycles.size(); ++i) {
    if (a.lds_cycles[i] <= a.lds_ideal_cycles[i]) continue;
    const Instruction& in = program.code[i];
    LdsConflict conflict;
    conflict.index = i;
    conflict.code_address = in.address;
    if (i < program.text.size()) conflict.instruction = program.text[i];
    conflict.source = program.line_of(in.address);
    conflict.executed = result.executed[i];
    conflict.cycles = a.lds_cycles[i];
    conflict.ideal_cycles = a.lds_ideal_cycles[i];
    c.conflicts.push_back(std::move(conflict));
  }
  std::sort(c.conflicts.begin(), c.conflicts.end(), [](const LdsConflict& x, const LdsConflict& y) {
    return x.cycles - x.ideal_cycles > y.cycles - y.ideal_cycles;
  });
}

template <class... T>
std::string format(const char* text, T... values) {
  char line[512];
  std::snprintf(line, sizeof line, text, values...);
  return line;
}
using Count = unsigned long long;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += format("\\u%04x", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

LaunchCounters launch_counters(const Program& program, const LaunchResult& result) {
  LaunchCounters c;
  const Target& target = *program.target;
  c.target = target.name;
  c.cdna = !target.is_rdna();
  double matrix = 0, vector = 0, transcendental = 0;  // of all SIMDs together
  // A launch executes few of a large program's instructions, and the others are not worth reading from memory.
  for (size_t i = 0; i < result.executed.size(); ++i) {
    const u64 n = result.executed[i];
    if (!n) continue;
    const Instruction& in = program.code[i];
    c.instructions += n;
    c.by_class[static_cast<int>(in.cls)] += n;
    const double times = static_cast<double>(n);
    if (in.second) c.dual_issued += n;
    if (in.opcode && std::string_view(in.opcode->name).starts_with("scratch_")) c.scratch_instructions += n;
    if (in.cls == Class::matrix) matrix += times * in.cycles;
    if (in.cls == Class::transcendental) transcendental += times * (c.cdna ? in.cycles : kRdnaTranscendental);
    if (in.cls == Class::vector || in.cls == Class::transcendental) vector += times * (c.cdna ? in.cycles : 1);
  }
  const double simds = target.simds_per_cu;
  c.matrix_clocks = matrix / simds;
  c.vector_clocks = vector / simds;
  c.transcendental_clocks = transcendental / simds;
  if (result.accesses) {
    const AccessCounter& a = *result.accesses;
    c.accesses_counted = true;
    for (u64 cycles : a.lds_cycles) c.lds_clocks += cycles;
    for (u64 cycles : a.lds_ideal_cycles) c.lds_ideal_clocks += cycles;
    c.vmem_bytes = a.vmem_bytes;
    c.store_bytes = a.store_bytes;
    c.atomic_bytes = a.atomic_bytes;
    c.unique_bytes = a.sectors.bytes();
    c.vmem_clocks = static_cast<double>(a.vmem_bytes) / kBytesPerClock;
    add_conflicts(c, program, result);
  }
  // On CDNA a transcendental holds the vector port for all its clocks; on RDNA it has a unit of its own.
  const double lds = static_cast<double>(c.lds_clocks);
  const double longest = c.cdna ? std::max({c.matrix_clocks, c.vector_clocks, lds, c.vmem_clocks})
                                : std::max({c.matrix_clocks, c.vector_clocks, lds, c.transcendental_clocks});
  c.overlap_bound = share(c.matrix_clocks, longest);
  c.serial_bound = share(c.matrix_clocks, c.matrix_clocks + c.vector_clocks);
  return c;
}

std::string counters_table(const LaunchCounters& c) {
  std::string text = format("counters of %s (clocks of one compute unit; for ranking only)\n", c.target.c_str());
  text += format("  %-28s %16llu\n", "instructions", static_cast<Count>(c.instructions));
  for (int i = 0; i < static_cast<int>(Class::count); ++i) {
    if (c.by_class[i]) {
      text += format("    %-26s %16llu\n", class_name(static_cast<Class>(i)), static_cast<Count>(c.by_class[i]));
    }
  }
  if (c.dual_issued) text += format("    %-26s %16llu\n", "dual issued", static_cast<Count>(c.dual_issued));
  text += format("  %-28s %16llu\n", "scratch instructions", static_cast<Count>(c.scratch_instructions));
  text += format("  %-28s %16.0f\n", "matrix clocks per SIMD", c.matrix_clocks);
  text += format("  %-28s %16.0f\n", "vector clocks per SIMD", c.vector_clocks);
  text += format("  %-28s %16.0f\n", "of transcendentals", c.transcendental_clocks);
  if (c.accesses_counted) {
    text += format("  %-28s %16llu (without conflicts %llu)\n", "LDS clocks", static_cast<Count>(c.lds_clocks),
                   static_cast<Count>(c.lds_ideal_clocks));
    text += format("  %-28s %16llu (distinct %llu, stores %llu, atomics %llu)\n", "memory bytes",
                   static_cast<Count>(c.vmem_bytes), static_cast<Count>(c.unique_bytes),
                   static_cast<Count>(c.store_bytes), static_cast<Count>(c.atomic_bytes));
    text += format("  %-28s %16.0f (64 bytes a clock)\n", "memory clocks", c.vmem_clocks);
  }
  if (c.matrix_clocks > 0) {
    text += format("  %-28s %15.1f%% if all overlaps, %.1f%% if vector and matrix instructions do not\n",
                   "matrix units busy at most", 100 * c.overlap_bound, 100 * c.serial_bound);
  }
  for (const LdsConflict& x : c.conflicts) {
    text += format("  bank conflicts x%.2f at 0x%llx, %llu times: ",
                   static_cast<double>(x.cycles) / static_cast<double>(x.ideal_cycles),
                   static_cast<Count>(x.code_address), static_cast<Count>(x.executed)) +
            x.instruction;
    if (x.source.line) text += " (" + x.source.file + ":" + std::to_string(x.source.line) + ")";
    text += "\n";
  }
  return text;
}

std::string counters_json(const LaunchCounters& c) {
  std::string text = "{\"target\":" + quoted(c.target);
  auto number = [&text](const char* name, double value) { text += format(",\"%s\":%.17g", name, value); };
  auto count = [&text](const char* name, u64 value) {
    text += format(",\"%s\":%llu", name, static_cast<Count>(value));
  };
  count("instructions", c.instructions);
  text += ",\"classes\":{";
  for (int i = 0; i < static_cast<int>(Class::count); ++i) {
    text += format("%s\"%s\":%llu", i ? "," : "", class_name(static_cast<Class>(i)), static_cast<Count>(c.by_class[i]));
  }
  text += "}";
  count("dual_issued", c.dual_issued);
  count("scratch_instructions", c.scratch_instructions);
  number("matrix_clocks", c.matrix_clocks);
  number("vector_clocks", c.vector_clocks);
  number("transcendental_clocks", c.transcendental_clocks);
  if (c.accesses_counted) {
    count("lds_clocks", c.lds_clocks);
    count("lds_ideal_clocks", c.lds_ideal_clocks);
    count("vmem_bytes", c.vmem_bytes);
    count("unique_bytes", c.unique_bytes);
    count("store_bytes", c.store_bytes);
    count("atomic_bytes", c.atomic_bytes);
    number("vmem_clocks", c.vmem_clocks);
    text += ",\"lds_conflicts\":[";
    for (size_t i = 0; i < c.conflicts.size(); ++i) {
      const LdsConflict& x = c.conflicts[i];
      text += std::string(i ? "," : "") + "{\"instruction\":" + quoted(x.instruction);
      count("address", x.code_address);
      count("executed", x.executed);
      count("clocks", x.cycles);
      count("ideal_clocks", x.ideal_cycles);
      if (x.source.line) {
        text += ",\"file\":" + quoted(x.source.file);
        count("line", x.source.line);
      }
      text += "}";
    }
    text += "]";
  }
  number("overlap_bound", c.overlap_bound);
  number("serial_bound", c.serial_bound);
  return text + "}";
}

}  // namespace emu
