#include "core/report.h"

#include <cstdio>

namespace emu {
namespace {

// Reports of one instruction are the same if they differ in numbers only.
std::string without_numbers(const std::string& message) {
  std::string rule;
  for (size_t i = 0; i < message.size(); ++i) {
    const bool digit = message[i] >= '0' && message[i] <= '9';
    if (!digit) {
      rule += message[i];
    } else if (rule.empty() || rule.back() != '#') {
      rule += '#';
    }
  }
  return rule;
}

std::string hex(u64 value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

const char* check_name(Check check) {
  switch (check) {
    case Check::wait:
      return "wait";
    case Check::lds_race:
      return "lds_race";
    case Check::uninitialised:
      return "uninitialised";
    case Check::bounds:
      return "bounds";
    case Check::misaligned:
      return "misaligned";
    case Check::barrier:
      return "barrier";
    case Check::replication:
      return "replication";
    case Check::hazard:
      return "hazard";
    case Check::order:
      return "order";
    case Check::trap:
      return "trap";
    case Check::count:
      break;
  }
  return "?";
}

std::string Report::text() const {
  std::string line = std::string(check_name(check)) + ": " + message + " [" + kernel;
  if (wave >= 0) {
    line += " at " + hex(code_address) + ": " + instruction;
    if (source.line) line += ", " + source.file + ":" + std::to_string(source.line);
    line += "] workgroup (" + std::to_string(workgroup[0]) + "," + std::to_string(workgroup[1]) + "," +
            std::to_string(workgroup[2]) + ") wave " + std::to_string(wave);
  } else {
    line += "]";
  }
  if (lane >= 0) line += " lane " + std::to_string(lane);
  if (has_address) line += " address " + hex(address);
  if (count > 1) line += ", " + std::to_string(count) + " times";
  return line;
}

void LaunchLog::add(Check check, const Wave& wave, const Instruction& at, const std::string& message, int lane) {
  Report report;
  report.check = check;
  report.message = message;
  report.wave = wave.id;
  report.lane = lane;
  for (int axis = 0; axis < 3; ++axis) report.workgroup[axis] = wave.group->id[axis];
  insert(std::move(report), at);
}

void LaunchLog::add_at(Check check, const Wave& wave, const Instruction& at, const std::string& message, int lane,
                       u64 address) {
  Report report;
  report.check = check;
  report.message = message;
  report.wave = wave.id;
  report.lane = lane;
  report.address = address;
  report.has_address = true;
  for (int axis = 0; axis < 3; ++axis) report.workgroup[axis] = wave.group->id[axis];
  insert(std::move(report), at);
}

void LaunchLog::insert(Report report, const Instruction& at) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto key = std::make_pair(at.index, check_name(report.check) + (":" + without_numbers(report.message)));
  const auto found = reports_.find(key);
  if (found != reports_.end()) {
    ++found->second.count;
    return;
  }
  report.kernel = kernel_.name;
  report.code_address = at.address;
  if (at.index < program_.text.size()) report.instruction = program_.text[at.index];
  report.source = program_.line_of(at.address);
  reports_.emplace(key, std::move(report));
}

std::vector<Report> LaunchLog::reports() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Report> all;
  for (const auto& [key, report] : reports_) all.push_back(report);
  return all;
}

bool LaunchLog::empty() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reports_.empty();
}

}  // namespace emu
