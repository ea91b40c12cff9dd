// One bar chart as an SVG file: groups of bars with a marker line above each.
#pragma once

#include <string>
#include <vector>

namespace flashwave::cli {

struct BarGroup {
  std::string label;
  std::vector<double> bars;  // one per series; 0 = none
  double marker = 0;         // 0 = none
};

struct BarChart {
  std::string title, subtitle, value_axis, marker_name;
  std::vector<std::string> series;
  std::vector<BarGroup> groups;
};

std::string to_svg(const BarChart& chart);
double axis_step(double largest);  // 1, 2 or 5 times a power of ten, for about six lines

}  // namespace flashwave::cli
