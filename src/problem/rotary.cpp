#include "problem/rotary.h"

#include <array>
#include <span>

#include "problem/problem.h"
#include "problem/rules.h"
#include "problem/views.h"

namespace flashwave {
namespace {

std::array<int64_t, 4> shape_of(const Rotary& rotary) {
  const fw_rotary_embedding& r = rotary.r;
  if (rotary.packed()) return {1, r.total, r.heads, r.dim};
  return {r.batch, r.seqlen, r.heads, r.dim};
}

class RotaryViews {
 public:
  explicit RotaryViews(const Rotary& rotary) {
    const fw_rotary_embedding& r = rotary.r;
    const bool in_place = rotary.in_place();
    add(of_tensor("x", r.x, shape_of(rotary), {.required = true, .written = in_place}));
    if (!in_place) add(of_tensor("out", r.out, shape_of(rotary), {.required = true, .written = true}));
    const Role angles{.element = Element::kFloatOrLikeFirst, .dense_dimension = 1, .required = true};
    add(of_tensor("cos", r.cos, {r.rotary_seqlen, r.rotary_dim / 2, 1, 1}, angles));
    add(of_tensor("sin", r.sin, {r.rotary_seqlen, r.rotary_dim / 2, 1, 1}, angles));
    add(of_array("seqlen_offsets", r.seqlen_offsets, Element::kInt32, 1, 0, r.batch));
    add(of_array("cu_seqlens", r.cu_seqlens, Element::kInt32, 1, 0, r.batch + 1));
  }
  std::span<const View> all() const& { return {views_.data(), count_}; }
  std::span<const View> all() && = delete;

 private:
  void add(const View& view) { views_[count_++] = view; }

  std::array<View, 6> views_;
  size_t count_ = 0;
};

Status check_sizes(const Rotary& rotary) {
  const fw_rotary_embedding& r = rotary.r;
  FW_RULE((r.flags & ~uint32_t{FW_ALL_ROTARY_FLAGS}) == 0, "flags has unknown bits, got ", r.flags);
  FW_RULES(validate_extent("batch", r.batch));
  FW_RULES(validate_extent("seqlen", r.seqlen));
  FW_RULES(validate_extent("heads", r.heads, 1));
  FW_RULES(validate_extent("dim", r.dim, 1, kMaxDim));
  FW_RULES(validate_extent("total", r.total));
  FW_RULES(validate_extent("rotary_seqlen", r.rotary_seqlen));
  FW_RULES(validate_extent("seqlen_offset", r.seqlen_offset));
  FW_RULE(r.rotary_dim >= 0 && r.rotary_dim <= r.dim && r.rotary_dim % 2 == 0,
          "rotary_dim must be even and in [0, dim], got ", r.rotary_dim);
  FW_RULE(rotary.packed() || r.total == 0, "total must be 0 without cu_seqlens, got ", r.total);
  if (!rotary.packed() && !rotary.empty()) {
    FW_RULE(r.rotary_seqlen >= r.seqlen_offset + r.seqlen,
            "rotary_seqlen must be at least seqlen_offset + seqlen = ", r.seqlen_offset + r.seqlen,
            ", the positions read, got ", r.rotary_seqlen);
  }
  return {};
}

Status check_positions(const Rotary& rotary) {
  const fw_rotary_embedding& r = rotary.r;
  for (int64_t b = 0; b < r.batch; ++b) {
    const int64_t offset = r.seqlen_offsets != nullptr ? r.seqlen_offsets[b] : 0;
    FW_RULE(offset >= 0, "seqlen_offsets[", b, "] must be at least 0, got ", offset);
    const int64_t length = rotary.packed() ? int64_t{r.cu_seqlens[b + 1]} - r.cu_seqlens[b] : r.seqlen;
    const int64_t positions = length > 0 ? r.seqlen_offset + offset + length : 0;
    FW_RULE(r.rotary_seqlen >= positions, "rotary_seqlen must be at least ", positions,
            ", the positions that sequence ", b, " reads, got ", r.rotary_seqlen);
  }
  return {};
}

}  // namespace

bool Rotary::in_place() const {
  if (r.x.data != r.out.data || r.x.dtype != r.out.dtype || r.x.reserved != r.out.reserved) return false;
  const std::array<int64_t, 4> extent = shape_of(*this);
  for (int i = 0; i < 4; ++i) {
    if (extent[i] > 1 && r.x.stride[i] != r.out.stride[i]) return false;
  }
  return true;
}

double Rotary::bytes() const {
  const double elements = static_cast<double>(rows()) * static_cast<double>(r.heads) * static_cast<double>(r.dim);
  return elements * (r.x.dtype == FW_F32 ? 4 : 2) * 2;
}

Status validate(const Rotary& rotary, bool host_readable) {
  FW_RULES(check_sizes(rotary));
  const RotaryViews views(rotary);
  FW_RULES(validate_layouts(views.all(), "x", rotary.r.x.dtype));
  FW_RULES(validate_addresses(views.all()));
  if (!host_readable) return {};
  const fw_rotary_embedding& r = rotary.r;
  if (rotary.packed()) {
    FW_RULES(validate_offsets("cu_seqlens", r.cu_seqlens, r.batch, r.seqlen, "seqlen", r.total, "total"));
  }
  return check_positions(rotary);
}

void normalize(Rotary& rotary) {
  const bool in_place = rotary.in_place();
  const RotaryViews views(rotary);
  for (const View& view : views.all()) {
    if (view.tensor != nullptr) normalize_tensor(view, const_cast<fw_tensor&>(*view.tensor));  // ours to change
  }
  if (in_place) rotary.r.out = rotary.r.x;
}

std::string describe(const Rotary& rotary) {
  const fw_rotary_embedding& r = rotary.r;
  std::ostringstream words;
  words << "b=" << r.batch << " s=" << r.seqlen << " h=" << r.heads << " d=" << r.dim << " rotary=" << r.rotary_dim
        << " dtype=" << dtype_word(r.x.dtype);
  if (r.flags & FW_ROTARY_INTERLEAVED) words << " interleaved=1";
  if (r.flags & FW_ROTARY_CONJUGATE) words << " conjugate=1";
  if (rotary.packed()) words << " layout=varlen";
  if (rotary.in_place()) words << " inplace=1";
  return words.str();
}

}  // namespace flashwave
