// Text tables with aligned columns.
#pragma once

#include <string>
#include <vector>

namespace flashwave::cli {

struct Column {
  std::string title;
  bool right = false;  // numbers
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)), width_(columns_.size()) {
    for (size_t i = 0; i < columns_.size(); ++i) width_[i] = columns_[i].title.size();
  }
  // A column known to hold something this wide: lets rows be printed as they come.
  void reserve(size_t column, size_t width) { width_[column] = std::max(width_[column], width); }
  void add(std::vector<std::string> cells);

  std::string header() const;
  std::string line(const std::vector<std::string>& cells) const;
  std::string str() const;  // header and all rows
  std::string markdown() const;

 private:
  std::vector<Column> columns_;
  std::vector<size_t> width_;
  std::vector<std::vector<std::string>> rows_;
};

std::string human_bytes(double bytes);  // "0", "64 KiB", "1.5 GiB"
std::string fixed(double value, int digits);

}  // namespace flashwave::cli
