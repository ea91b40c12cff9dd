#include "verdict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dtype.h"

namespace flashwave::cli {
namespace {

const char* value_class(float value, bool untouched) {
  if (untouched) return "never written";
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+inf" : "-inf";
  return "finite";
}

bool is_filled(const Readback& out, size_t i, Writing writing) {
  return !out.untouched[i] && out.value[i] == (writing == Writing::kZero ? 0.f : -INFINITY);
}

std::string at(size_t index) { return "element " + std::to_string(index) + " "; }

// First broken expectation about what is written and what is finite; empty if none.
std::string pattern_fault(const Readback& out, const Readback& reference, const std::vector<Writing>& writing) {
  for (size_t i = 0; i < out.value.size(); ++i) {
    if (writing[i] == Writing::kMust && reference.untouched[i]) return at(i) + "was not written by the reference";
    if (writing[i] == Writing::kMust && out.untouched[i]) return at(i) + "was never written";
    if (writing[i] == Writing::kMustNot && !out.untouched[i]) return at(i) + "belongs to no sequence but was written";
    if (writing[i] == Writing::kZero || writing[i] == Writing::kMinusInfinity) {
      if (!is_filled(reference, i, writing[i]))
        return at(i) + "belongs to no sequence and was not filled by the reference";
      if (!is_filled(out, i, writing[i])) return at(i) + "belongs to no sequence and was not filled";
    }
    const char* ours = value_class(out.value[i], out.untouched[i]);
    const char* theirs = value_class(reference.value[i], reference.untouched[i]);
    if (writing[i] != Writing::kMustNot && ours != theirs && std::string(ours) != theirs) {
      return at(i) + "is " + ours + ", the reference " + theirs;
    }
  }
  return "";
}

double largest_difference(const Readback& a, const Readback& b, size_t* where) {
  double largest = 0;
  for (size_t i = 0; i < a.value.size(); ++i) {
    if (!std::isfinite(a.value[i]) || !std::isfinite(b.value[i])) continue;
    const double difference = std::fabs(double(a.value[i]) - double(b.value[i]));
    if (difference > largest) largest = difference, *where = i;
  }
  return largest;
}

}  // namespace

double tolerance_floor(fw_dtype storage, double largest, double units) {
  if (storage == FW_F32) return 1e-6 * (1 + largest);
  if (largest == 0) return 0;
  return std::ldexp(units, std::ilogb(largest) - dtype_mantissa_bits(storage));
}

double largest_magnitude(const Readback& reference) {
  double largest = 0;
  for (const float value : reference.value) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(double(value)));
  }
  return largest;
}

double rows_summed(const Geometry& geometry, TensorId id) {
  if (id != kDBias && id != kDSinks && id != kDSlopes) return 1;
  const Case& c = geometry.problem;
  const View& v = geometry.view[id];
  const int64_t apart = id == kDBias ? v.shape[0] * v.shape[1] * v.shape[2] : v.count();
  return std::max(1.0, double(c.b * c.hq * c.sq) / double(std::max<int64_t>(apart, 1)));
}

Rule rule_of(const Geometry& geometry, TensorId id, const Readback& reference, double largest_gradient) {
  const double largest = largest_magnitude(reference);
  const fw_dtype own = geometry.dtype_of(id, geometry.problem.dtype);
  if (id < kDQ) return {2.0, tolerance_floor(own, largest, 0.5)};
  if (own != FW_F32) return {3.0, tolerance_floor(own, largest, 1.0)};
  // A backward reads o rounded to the case's type, so even its F32 results carry that rounding: delta, a sum of dim_v
  // products with o, in each row they add up. The terms may cancel (over a whole softmax row they do exactly), so the
  // noise is judged by what is summed.
  const fw_dtype storage = geometry.problem.dtype;
  const double terms = rows_summed(geometry, id) * (storage == FW_F32 ? 1.0 : double(geometry.problem.dv));
  return {3.0, tolerance_floor(storage, std::max(largest, largest_gradient), 0.25) * std::sqrt(terms)};
}

std::vector<Writing> expected_writing(const Geometry& g, TensorId id) {
  const View& v = g.view[id];
  const bool by_query = id == kO || id == kLse || id == kDQ, by_key = id == kDK || id == kDV;
  const bool whole = id == kDSinks || id == kDSlopes;
  std::vector<Writing> row(size_t(v.shape[0] * v.shape[1]), Writing::kAsReference);
  if (whole) std::fill(row.begin(), row.end(), Writing::kMust);
  if (g.is_updated(id)) return std::vector<Writing>(size_t(v.count()), Writing::kAsReference);
  const Writing unused = !g.problem.fill ? Writing::kMustNot : id == kLse ? Writing::kMinusInfinity : Writing::kZero;
  if (by_query) std::fill(row.begin(), row.end(), unused);
  if (by_key && !g.cu_seqlens_k.empty()) {
    // Spare rows at the end belong to no sequence. Rows inside one but past seqused_k follow the reference.
    std::fill(row.begin() + g.cu_seqlens_k.back(), row.end(), unused);
  }
  for (int64_t b = 0; b < g.problem.b && (by_query || by_key); ++b) {
    const SequenceShape& s = g.sequences[size_t(b)];
    const int64_t first = by_query ? 0 : s.leftpad, last = by_query ? s.queries : s.stored;
    for (int64_t i = first; i < last; ++i) {
      const auto place = by_query ? g.query_place(b, i) : g.key_place(b, i);
      row[size_t(place.first * v.shape[1] + place.row)] = Writing::kMust;
    }
  }
  std::vector<Writing> all;
  all.reserve(size_t(v.count()));
  for (const Writing w : row) all.insert(all.end(), size_t(v.shape[2] * v.shape[3]), w);
  return all;
}

Judgement judge(const std::string& tensor, const Readback& out, const Readback& reference, const Readback& naive,
                const std::vector<Writing>& writing, const Rule& rule) {
  Judgement j;
  j.tensor = tensor;
  if (out.value.size() != reference.value.size() || naive.value.size() != reference.value.size() ||
      writing.size() != reference.value.size()) {
    j.reason = "sizes differ";
    return j;
  }
  j.reason = pattern_fault(out, reference, writing);
  if (!j.reason.empty()) return j;
  size_t where = 0, unused = 0;
  j.error = largest_difference(out, reference, &where);
  j.naive_error = largest_difference(naive, reference, &unused);
  j.bound = rule.factor * j.naive_error + rule.atol;
  j.ok = j.error <= j.bound;
  if (!j.ok) {
    char text[200];
    std::snprintf(text, sizeof text, "error %.3g at element %zu (%.9g, the reference %.9g), allowed %.3g (naive %.3g)",
                  j.error, where, double(out.value[where]), double(reference.value[where]), j.bound, j.naive_error);
    j.reason = text;
  }
  return j;
}

}  // namespace flashwave::cli
