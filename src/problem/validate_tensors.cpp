// The rules on tensors: presence, dtype, strides, alignment, and that nothing written shares memory with anything else.
#include <algorithm>
#include <array>
#include <cstdint>

#include "problem/overlap.h"
#include "problem/rules.h"

namespace flashwave {
namespace {

const char* dtype_name(int64_t dtype) {
  switch (dtype) {
    case FW_DTYPE_NONE:
      return "FW_DTYPE_NONE";
    case FW_F16:
      return "FW_F16";
    case FW_BF16:
      return "FW_BF16";
    case FW_F32:
      return "FW_F32";
    default:
      return "an unknown value";
  }
}

Status check_dtype(const View& view, const char* first, int32_t first_dtype) {
  const int32_t dtype = view.tensor->dtype;
  const bool like_first = dtype == first_dtype, is_float = dtype == FW_F32;
  switch (view.element) {
    case Element::kLikeFirst:
      FW_RULE(like_first, view.name, ".dtype must be that of ", first, ", ", dtype_name(first_dtype), ", got ",
              dtype_name(dtype), " (", dtype, ")");
      break;
    case Element::kAny:
      FW_RULE(view.element_bytes() > 0, view.name, ".dtype must be FW_F16, FW_BF16 or FW_F32, got ", dtype_name(dtype),
              " (", dtype, ")");
      break;
    case Element::kFloat:
      FW_RULE(is_float, view.name, ".dtype must be FW_F32, got ", dtype_name(dtype), " (", dtype, ")");
      break;
    default:
      FW_RULE(is_float || like_first, view.name, ".dtype must be FW_F32 or that of ", first, ", ",
              dtype_name(first_dtype), ", got ", dtype_name(dtype), " (", dtype, ")");
  }
  return {};
}

// Bytes from the first element to the end of the last; -1 if that does not fit.
int64_t byte_span(const View& view) {
  int64_t last = 0;
  for (int i = 0; i < 4; ++i) {
    int64_t reach;
    if (__builtin_mul_overflow(view.extent[i] - 1, view.stride[i], &reach)) return -1;
    if (view.extent[i] > 1 && __builtin_add_overflow(last, reach, &last)) return -1;
  }
  int64_t bytes;
  if (__builtin_add_overflow(last, int64_t{1}, &bytes)) return -1;
  if (__builtin_mul_overflow(bytes, view.element_bytes(), &bytes)) return -1;
  return bytes;
}

Status check_strides(const View& view) {
  for (int i = 0; i < 4; ++i) {
    if (view.extent[i] <= 1) continue;
    FW_RULE(i != view.dense_dimension || view.stride[i] == 1, view.name, ".stride[", i, "] must be 1 (the ",
            i == 3 ? "head dimension is" : "columns are", " contiguous), got ", view.stride[i]);
    FW_RULE(view.stride[i] >= 0, view.name, ".stride[", i, "] must not be negative, got ", view.stride[i]);
  }
  FW_RULE(byte_span(view) >= 0, view.name, ".stride: the offset of the last element does not fit in 64 bits");
  return {};
}

// Two index tuples of an output must not name one element. Sufficient and, for every layout in use, necessary: in
// order of size, each stride steps over all that the smaller ones reach.
Status check_distinct_elements(const View& view) {
  std::array<int, 4> order;
  int count = 0;
  for (int i = 0; i < 4; ++i) {
    if (view.extent[i] > 1) order[count++] = i;
  }
  std::sort(order.begin(), order.begin() + count, [&](int x, int y) { return view.stride[x] < view.stride[y]; });
  int64_t reach = 0;
  for (int n = 0; n < count; ++n) {
    const int i = order[n];
    FW_RULE(view.stride[i] > reach, view.name, ".stride[", i, "] must be at least ", reach + 1,
            " so that no two elements that are written overlap, got ", view.stride[i]);
    reach += (view.extent[i] - 1) * view.stride[i];
  }
  return {};
}

}  // namespace

Status validate_layouts(std::span<const View> views, const char* first, int32_t dtype) {
  FW_RULE(dtype == FW_F16 || dtype == FW_BF16 || dtype == FW_F32, first,
          ".dtype must be FW_F16, FW_BF16 or FW_F32, got ", dtype_name(dtype), " (", dtype, ")");
  for (const View& view : views) {
    const bool optional_and_absent = !view.required && view.data == nullptr;
    FW_RULE(view.data != nullptr || !view.required || !view.has_elements(), view.name,
            ".data must not be NULL: ", view.name, " has elements");
    if (view.tensor != nullptr) {
      FW_RULE(view.tensor->reserved == 0, view.name, ".reserved must be 0, got ", view.tensor->reserved);
      if (!optional_and_absent) FW_RULES(check_dtype(view, first, dtype));
    }
    if (!view.present()) continue;
    FW_RULES(check_strides(view));
    if (view.written) FW_RULES(check_distinct_elements(view));
  }
  return {};
}

Status validate_addresses(std::span<const View> views) {
  std::array<Footprint, 32> footprints;
  size_t count = 0;
  for (const View& view : views) {
    if (!view.present()) continue;
    const uintptr_t address = reinterpret_cast<uintptr_t>(view.data);
    const int64_t bytes = byte_span(view);
    FW_RULE(address % view.element_bytes() == 0, view.name, view.tensor != nullptr ? ".data" : "",
            " must be aligned to its element size of ", view.element_bytes(), " bytes, got address ", view.data);
    FW_RULE(address <= UINTPTR_MAX - static_cast<uintptr_t>(bytes), view.name,
            ".stride: the last element lies past the end of the address space");
    footprints[count++] = {&view, address, address + static_cast<uintptr_t>(bytes)};
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = i + 1; j < count; ++j) {
      const View& x = *footprints[i].view;
      const View& y = *footprints[j].view;
      if (!x.written && !y.written) continue;
      const Overlap overlap = overlap_of(footprints[i], footprints[j]);
      FW_RULE(overlap != Overlap::kShared, y.written ? y.name : x.name, " overlaps ", y.written ? x.name : y.name,
              ": what is written may not share memory with another tensor");
      FW_RULE(overlap != Overlap::kUndecided, y.written ? y.name : x.name, " overlaps ", y.written ? x.name : y.name,
              " in address range, and their strides do not show that they share no element");
    }
  }
  return {};
}

}  // namespace flashwave
