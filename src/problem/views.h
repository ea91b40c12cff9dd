// Every array a problem names, with its shape and what may stand in it: one table that the argument rules, the cost
// and the clearing of outputs all read.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "problem/problem.h"

namespace flashwave {

// kLikeFirst: that of the first tensor, q. kAny: fp16, bf16 or fp32.
enum class Element : uint8_t { kLikeFirst, kFloat, kFloatOrLikeFirst, kAny, kInt32 };

struct View {
  const char* name;
  const void* data;
  const fw_tensor* tensor;        // nullptr for a plain array (cu_seqlens_q, sinks, ...)
  std::array<int64_t, 4> extent;  // 1 where a dimension does not exist
  std::array<int64_t, 4> stride;  // in elements
  Element element;
  int8_t dense_dimension;  // the one whose stride must be 1; -1 if none
  bool required;           // must be there if it has elements
  bool written;

  int64_t element_bytes() const;  // 0 if the dtype is not one of ours
  bool has_elements() const { return extent[0] > 0 && extent[1] > 0 && extent[2] > 0 && extent[3] > 0; }
  bool present() const { return data != nullptr && has_elements(); }
};

// How a tensor's elements are used.
struct Role {
  Element element = Element::kLikeFirst;
  int8_t dense_dimension = 3;
  bool required = false;
  bool written = false;
};
View of_tensor(const char* name, const fw_tensor& tensor, const std::array<int64_t, 4>& extent, const Role& role);
// rows by columns numbers of 4 bytes, the columns side by side.
View of_array(const char* name, const void* array, Element element, int64_t rows, int64_t row_stride, int64_t columns,
              bool written = false);

// Clears what a valid view leaves open, in the tensor it is of: see normalize().
void normalize_tensor(const View& view, fw_tensor& tensor);

class Views {
 public:
  explicit Views(const Problem& problem);  // sizes must have been checked; the problem must stay
  std::span<const View> all() const& { return {views_.data(), count_}; }
  std::span<const View> all() && = delete;

 private:
  void tensors(const Problem& problem);
  void gradients(const Problem& problem);
  void arrays(const Problem& problem);
  void add(const View& view) { views_[count_++] = view; }

  std::array<View, 32> views_;
  size_t count_ = 0;
};

}  // namespace flashwave
