// The commands. Each takes the arguments behind its name and returns the exit status; wrong usage throws UsageError.
#pragma once

#include <string>
#include <vector>

namespace flashwave::cli {

using Arguments = std::vector<std::string>;

int devices_command(const Arguments& arguments);
int explain_command(const Arguments& arguments);
int check_command(const Arguments& arguments);
int bench_command(const Arguments& arguments);
int support_command(const Arguments& arguments);

std::string devices_help();
std::string explain_help();
std::string check_help();
std::string bench_help();
std::string support_help();

}  // namespace flashwave::cli
