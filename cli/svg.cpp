#include "svg.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "table.h"

namespace flashwave::cli {
namespace {

constexpr const char* kColours[] = {"#2563eb", "#f59e0b", "#10b981", "#8b5cf6"};
constexpr const char* kMarkerColour = "#dc2626";

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string number(double value) { return fixed(value, 1); }

class Drawing {
 public:
  Drawing(double width, double height) {
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(width) + "\" height=\"" + number(height) +
           "\" viewBox=\"0 0 " + number(width) + " " + number(height) +
           "\" font-family=\"Helvetica, Arial, sans-serif\">\n";
    rectangle(0, 0, width, height, "#ffffff");
  }
  void rectangle(double x, double y, double w, double h, const std::string& colour) {
    out_ += "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(w) + "\" height=\"" + number(h) +
            "\" fill=\"" + colour + "\"/>\n";
  }
  void line(double x1, double y1, double x2, double y2, const std::string& colour, double width) {
    out_ += "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" + number(y2) +
            "\" stroke=\"" + colour + "\" stroke-width=\"" + number(width) + "\"/>\n";
  }
  void text(double x, double y, const std::string& content, double size, const std::string& anchor,
            const std::string& extra = "") {
    out_ += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" font-size=\"" + number(size) +
            "\" fill=\"#1f2937\" text-anchor=\"" + anchor + "\"" + (extra.empty() ? "" : " " + extra) + ">" +
            escape(content) + "</text>\n";
  }
  std::string finish() { return out_ + "</svg>\n"; }

 private:
  std::string out_;
};

}  // namespace

double axis_step(double largest) {
  if (!(largest > 0)) return 1;
  const double raw = largest / 6, power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string to_svg(const BarChart& chart) {
  constexpr double kBar = 15, kGap = 22, kLeft = 72, kRight = 28, kTop = 96, kPlot = 300, kCharacter = 6.1;
  const auto series = std::max<size_t>(chart.series.size(), 1);
  const double group = kBar * double(series) + kGap;
  size_t longest = 0;
  double largest = 0;
  for (const BarGroup& g : chart.groups) {
    longest = std::max(longest, g.label.size());
    largest = std::max(largest, g.marker);
    for (const double bar : g.bars) largest = std::max(largest, bar);
  }
  // Labels slope down to the left at 45 degrees; both margins make room for the longest.
  const double reach = double(longest) * kCharacter * 0.71, left = std::max(kLeft, reach + 8 - group / 2);
  const double width = std::max(left + group * double(chart.groups.size()) + kRight, 560.0);
  const double bottom = kTop + kPlot;
  const double step = axis_step(largest), top_value = step * std::max(1.0, std::ceil(largest / step));
  const auto y_of = [&](double value) { return bottom - kPlot * value / top_value; };

  Drawing d(width, bottom + reach + 28);
  d.text(24, 32, chart.title, 19, "start", "font-weight=\"bold\"");
  d.text(24, 53, chart.subtitle, 12.5, "start");
  double legend = 24;
  for (size_t s = 0; s < chart.series.size(); ++s) {
    d.rectangle(legend, 66, 12, 12, kColours[s % 4]);
    d.text(legend + 18, 76, chart.series[s], 12.5, "start");
    legend += 40 + double(chart.series[s].size()) * 7;
  }
  if (!chart.marker_name.empty()) {
    d.line(legend, 72, legend + 18, 72, kMarkerColour, 2.5);
    d.text(legend + 24, 76, chart.marker_name, 12.5, "start");
  }
  const int ticks = static_cast<int>(std::floor(top_value / step * 1.0001));
  for (int tick = 0; tick <= ticks; ++tick) {
    const double value = tick * step;
    d.line(left, y_of(value), width - kRight, y_of(value), value == 0 ? "#6b7280" : "#e5e7eb", 1);
    d.text(left - 8, y_of(value) + 4, fixed(value, step < 1 ? 2 : 0), 12, "end");
  }
  const std::string middle = number((kTop + bottom) / 2);
  d.text(left - 48, (kTop + bottom) / 2, chart.value_axis, 12.5, "middle",
         "transform=\"rotate(-90 " + number(left - 48) + " " + middle + ")\"");
  for (size_t n = 0; n < chart.groups.size(); ++n) {
    const BarGroup& g = chart.groups[n];
    const double x = left + group * double(n) + kGap / 2;
    for (size_t s = 0; s < g.bars.size() && s < series; ++s) {
      if (g.bars[s] > 0) {
        d.rectangle(x + kBar * double(s), y_of(g.bars[s]), kBar - 2, bottom - y_of(g.bars[s]), kColours[s % 4]);
      }
    }
    const double wide = kBar * double(series);
    if (g.marker > 0) d.line(x - 4, y_of(g.marker), x + wide + 2, y_of(g.marker), kMarkerColour, 2.5);
    const double label_x = x + wide / 2;
    d.text(label_x, bottom + 16, g.label, 11, "end",
           "transform=\"rotate(-45 " + number(label_x) + " " + number(bottom + 16) + ")\"");
  }
  return d.finish();
}

}  // namespace flashwave::cli
