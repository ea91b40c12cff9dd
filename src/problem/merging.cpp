#include "problem/merging.h"

#include <array>
#include <span>
#include <sstream>
#include <utility>

#include "problem/problem.h"
#include "problem/rules.h"
#include "problem/views.h"

namespace flashwave {
namespace {

class MergingViews {
 public:
  explicit MergingViews(const Merging& merging) {
    const fw_merging& m = merging.m;
    const std::array<int64_t, 4> rows{m.batch, m.seqlen, m.heads, m.dim}, lses{m.batch, m.seqlen, m.heads, 1};
    const auto lse = [&](const char* name, const fw_tensor& tensor, bool written) {
      return of_tensor(name, tensor, lses,
                       {.element = Element::kFloat, .dense_dimension = -1, .required = true, .written = written});
    };
    views_ = {of_tensor("o", m.o, rows, {.element = Element::kAny, .required = true, .written = true}),
              lse("lse", m.lse, true),
              of_tensor("o_part", m.o_part, rows, {.element = Element::kAny, .required = true}),
              lse("lse_part", m.lse_part, false)};
  }
  std::span<const View> all() const& { return views_; }
  std::span<const View> all() && = delete;

 private:
  std::array<View, 4> views_;
};

}  // namespace

double Merging::bytes() const {
  const auto size = [](const fw_tensor& t) { return t.dtype == FW_F32 ? 4.0 : 2.0; };
  const double heads = static_cast<double>(rows()) * static_cast<double>(m.heads);
  return heads * (static_cast<double>(m.dim) * (2 * size(m.o) + size(m.o_part)) + 12);
}

Status validate(const Merging& merging) {
  const fw_merging& m = merging.m;
  FW_RULE(m.reserved == 0, "reserved must be 0, got ", m.reserved);
  FW_RULES(validate_extent("batch", m.batch));
  FW_RULES(validate_extent("seqlen", m.seqlen));
  FW_RULES(validate_extent("heads", m.heads, 1));
  FW_RULES(validate_extent("dim", m.dim, 1, kMaxDim));
  FW_RULE(m.batch * m.heads <= kMaxExtent, "batch * heads must be at most ", kMaxExtent, ", got ", m.batch, " * ",
          m.heads);
  const MergingViews views(merging);
  FW_RULES(validate_layouts(views.all(), "o", m.o.dtype));
  return validate_addresses(views.all());
}

void normalize(Merging& merging) {
  const MergingViews views(merging);
  for (const View& view : views.all()) normalize_tensor(view, const_cast<fw_tensor&>(*view.tensor));  // ours to change
}

std::string describe(const Merging& merging) {
  const fw_merging& m = merging.m;
  std::ostringstream words;
  words << "b=" << m.batch << " s=" << m.seqlen << " h=" << m.heads << " d=" << m.dim
        << " dtype=" << dtype_word(m.o.dtype) << " part=" << dtype_word(m.o_part.dtype);
  return words.str();
}

}  // namespace flashwave
