// What launches left behind: reports of the checkers, counters.
#pragma once

#include <string>

#include "core/launch.h"
#include "hip/settings.h"

namespace emu::hip {

struct LaunchId {
  int device = 0;
  const Program* program = nullptr;
  const Kernel* kernel = nullptr;
  LaunchShape shape;
};

void keep_results(const LaunchId& launch, const LaunchResult& result, const Settings& settings);

// All reports of one launch as the text of an error; empty if there are none.
std::string reports_text(const LaunchResult& result);

std::string kept_reports();
size_t kept_report_count();
void forget_reports();
std::string kept_counters(int device);  // -1: all
void forget_counters(int device);

}  // namespace emu::hip
