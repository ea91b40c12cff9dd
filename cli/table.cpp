#include "table.h"

#include <algorithm>
#include <cstdio>

namespace flashwave::cli {

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (size_t i = 0; i < cells.size(); ++i) reserve(i, cells[i].size());
  rows_.push_back(std::move(cells));
}

std::string Table::line(const std::vector<std::string>& cells) const {
  std::string text;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const std::string cell = i < cells.size() ? cells[i] : "";
    const std::string fill(cell.size() < width_[i] ? width_[i] - cell.size() : 0, ' ');
    text += (i ? "  " : "") + (columns_[i].right ? fill + cell : cell + fill);
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text + "\n";
}

std::string Table::header() const {
  std::vector<std::string> titles, rules;
  for (size_t i = 0; i < columns_.size(); ++i) {
    titles.push_back(columns_[i].title);
    rules.emplace_back(width_[i], '-');
  }
  return line(titles) + line(rules);
}

std::string Table::str() const {
  std::string text = header();
  for (const auto& row : rows_) text += line(row);
  return text;
}

std::string Table::markdown() const {
  const auto row_of = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += " " + cell + " |";
    return text + "\n";
  };
  std::vector<std::string> titles, rules;
  for (const Column& column : columns_) {
    titles.push_back(column.title);
    rules.emplace_back(column.right ? "---:" : "---");
  }
  std::string text = row_of(titles) + row_of(rules);
  for (const auto& row : rows_) text += row_of(row);
  return text;
}

std::string human_bytes(double bytes) {
  static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) bytes /= 1024, ++unit;
  if (bytes == 0) return "0";
  return fixed(bytes, bytes < 10 && unit > 0 ? 1 : 0) + " " + units[unit];
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace flashwave::cli
