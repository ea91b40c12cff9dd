#include "rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dtype.h"
#include "random.h"

namespace flashwave::cli {
namespace {

double dot(const float* a, const float* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += double(a[i]) * double(b[i]);
  return sum;
}

const float* place_of(const Geometry& g, const HostValues& values, TensorId id, Geometry::Place p, int64_t head) {
  const View& v = g.view[id];
  return &values.buffer[v.buffer][size_t(v.offset + p.first * v.stride[0] + p.row * v.stride[1] + head * v.stride[2])];
}

// Sampled elements of one tensor against the reference.
class Comparison {
 public:
  Comparison(const Geometry& g, const Staged& staged, TensorId id) : geometry_(g), id_(id), all_(staged.read(id)) {}

  void row(Geometry::Place place, int64_t head, const double* expected, int64_t count) {
    const View& v = geometry_.view[id_];
    const int64_t first = ((place.first * v.shape[1] + place.row) * v.shape[2] + head) * v.shape[3];
    for (int64_t i = 0; i < count; ++i) {
      const float value = all_.value[size_t(first + i)];
      if (std::isinf(expected[i]) && double(value) == expected[i]) continue;
      // A NaN (the poison included) never compares as close.
      const double difference = std::fabs(double(value) - expected[i]);
      if (!(difference <= error_)) error_ = std::isnan(difference) ? HUGE_VAL : difference;
      if (std::isfinite(expected[i])) largest_ = std::max(largest_, std::fabs(expected[i]));
    }
  }

  std::string fault() const {
    const fw_dtype type = geometry_.dtype_of(id_, geometry_.problem.dtype);
    double allowed = 1e-5 * (1 + largest_);
    if (type != FW_F32 && largest_ > 0) {
      const double ulp = std::ldexp(1.0, std::ilogb(largest_) - dtype_mantissa_bits(type));
      allowed = id_ >= kDQ ? 2 * ulp : ulp;
    }
    if (error_ <= allowed) return "";
    char text[120];
    std::snprintf(text, sizeof text, "%s: error %.3g in the sampled rows, allowed %.3g", tensor_name(id_), error_,
                  allowed);
    return text;
  }

 private:
  const Geometry& geometry_;
  TensorId id_;
  Readback all_;
  double error_ = 0, largest_ = 0;
};

}  // namespace

bool RowReference::takes(const Case& c) { return c.dropout == 0 && c.append == 0 && !c.probs; }

RowReference::RowReference(const Geometry& g, const HostValues& values)
    : g_(g),
      values_(values),
      scale_(g.problem.scale == FW_SCALE_AUTO ? 1.0 / std::sqrt(double(g.problem.dqk)) : double(g.problem.scale)) {}

const float* RowReference::q_row(TensorId id, int64_t b, int64_t head, int64_t i) const {
  return place_of(g_, values_, id, g_.query_place(b, i), head);
}

const float* RowReference::k_row(TensorId id, int64_t b, int64_t head, int64_t j) const {
  return place_of(g_, values_, id, g_.key_place(b, g_.sequences[size_t(b)].leftpad + j), head);
}

RowReference::Score RowReference::score(int64_t b, int64_t head, int64_t i, int64_t j) const {
  const Case& c = g_.problem;
  const SequenceShape& s = g_.sequences[size_t(b)];
  const int64_t key_head = head / (c.hq / c.hk);
  const double z = scale_ * dot(q_row(kQ, b, head, i), k_row(kK, b, key_head, j), c.dqk);
  Score out{z, 1};
  if (c.softcap > 0) {
    const double t = std::tanh(z / double(c.softcap));
    out = {double(c.softcap) * t, 1 - t * t};
  }
  if (!c.bias.empty()) {
    const View& v = g_.view[kBias];
    out.value +=
        double(values_.buffer[kBias][size_t(b * v.stride[0] + head * v.stride[1] + i * v.stride[2] + j * v.stride[3])]);
  }
  if (c.alibi != Alibi::kNone) {
    const int64_t row = c.alibi == Alibi::kPerBatchHead ? b : 0;
    const double distance = std::fabs(double(i + s.keys(0) - s.queries - j));
    out.value -= double(values_.buffer[kSlopes][size_t(row * c.hq + head)]) * distance;
  }
  return out;
}

RowReference::Query RowReference::query(int64_t b, int64_t head, int64_t i) const {
  const Case& c = g_.problem;
  const int64_t key_head = head / (c.hq / c.hk);
  const VisibleKeys keys = visible_keys(c, g_.sequences[size_t(b)], i);
  Query out{std::vector<double>(size_t(c.dv), 0.0), {}, -HUGE_VAL};
  std::vector<Score> scores;
  double largest = c.sinks ? double(values_.buffer[kSinks][size_t(head)]) : -HUGE_VAL;
  for (int64_t j = keys.first; j < keys.last; ++j) {
    scores.push_back(score(b, head, i, j));
    largest = std::max(largest, scores.back().value);
  }
  if (std::isinf(largest)) {
    if (c.backward) out.dq.assign(size_t(c.dqk), 0.0);
    return out;
  }
  double sum = c.sinks ? std::exp(double(values_.buffer[kSinks][size_t(head)]) - largest) : 0;
  for (const Score& s : scores) sum += std::exp(s.value - largest);
  out.lse = largest + std::log(sum);
  for (size_t n = 0; n < scores.size(); ++n) {
    const double p = std::exp(scores[n].value - out.lse);
    const float* v = k_row(kV, b, key_head, keys.first + int64_t(n));
    for (size_t l = 0; l < out.o.size(); ++l) out.o[l] += p * double(v[l]);
  }
  if (!c.backward) return out;

  out.dq.assign(size_t(c.dqk), 0.0);
  const float* d_o = q_row(kDO, b, head, i);
  double delta = c.d_lse ? -double(*q_row(kDLse, b, head, i)) : 0;
  for (size_t l = 0; l < out.o.size(); ++l) delta += double(d_o[l]) * out.o[l];
  for (size_t n = 0; n < scores.size(); ++n) {
    const int64_t j = keys.first + int64_t(n);
    const double p = std::exp(scores[n].value - out.lse);
    const double dz = p * (dot(d_o, k_row(kV, b, key_head, j), c.dv) - delta) * scores[n].slope_of_z;
    const float* k = k_row(kK, b, key_head, j);
    for (size_t l = 0; l < out.dq.size(); ++l) out.dq[l] += scale_ * dz * double(k[l]);
  }
  return out;
}

RowReference::Key RowReference::key_gradients(int64_t b, int64_t key_head, int64_t j) const {
  const Case& c = g_.problem;
  const SequenceShape& s = g_.sequences[size_t(b)];
  Key out{std::vector<double>(size_t(c.dqk), 0.0), std::vector<double>(size_t(c.dv), 0.0)};
  const int64_t group = c.hq / c.hk;
  for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    for (int64_t i = 0; i < s.queries; ++i) {
      const VisibleKeys keys = visible_keys(c, s, i);
      if (j < keys.first || j >= keys.last) continue;
      const Score z = score(b, head, i, j);
      const double p = std::exp(z.value - double(*q_row(kLse, b, head, i)));
      const float* d_o = q_row(kDO, b, head, i);
      double delta = dot(d_o, q_row(kO, b, head, i), c.dv);
      if (c.d_lse) delta -= double(*q_row(kDLse, b, head, i));
      const double dz = p * (dot(d_o, k_row(kV, b, key_head, j), c.dv) - delta) * z.slope_of_z;
      const float* q = q_row(kQ, b, head, i);
      for (size_t l = 0; l < out.dv.size(); ++l) out.dv[l] += p * double(d_o[l]);
      for (size_t l = 0; l < out.dk.size(); ++l) out.dk[l] += scale_ * dz * double(q[l]);
    }
  }
  return out;
}

std::string sampled_rows_fault(const Geometry& g, const HostValues& values, const Staged& staged) {
  constexpr int kRows = 16;
  const Case& c = g.problem;
  const RowReference reference(g, values);
  Random random(mix(c.seed, hash_text("sampled rows")));
  std::string faults;
  const auto note = [&](const Comparison& comparison) {
    const std::string fault = comparison.fault();
    if (!fault.empty()) faults += (faults.empty() ? "" : "; ") + fault;
  };
  if (c.b == 0) return "";
  {
    Comparison first(g, staged, c.backward ? kDQ : kO);
    Comparison lse(g, staged, g.view[kLse].present ? kLse : kO);
    for (int n = 0; n < kRows; ++n) {
      const int64_t b = random.integer(0, c.b - 1), head = random.integer(0, c.hq - 1);
      const SequenceShape& s = g.sequences[size_t(b)];
      if (s.queries == 0) continue;
      const int64_t i = n == 0 ? 0 : n == 1 ? s.queries - 1 : random.integer(0, s.queries - 1);
      const RowReference::Query row = reference.query(b, head, i);
      first.row(g.query_place(b, i), head, c.backward ? row.dq.data() : row.o.data(), c.backward ? c.dqk : c.dv);
      if (g.view[kLse].present) lse.row(g.query_place(b, i), head, &row.lse, 1);
    }
    note(first);
    if (g.view[kLse].present) note(lse);
  }
  if (!c.backward) return faults;
  Comparison dk(g, staged, kDK), dv(g, staged, kDV);
  for (int n = 0; n < kRows / 2; ++n) {
    const int64_t b = random.integer(0, c.b - 1), head = random.integer(0, c.hk - 1);
    const SequenceShape& s = g.sequences[size_t(b)];
    const int64_t keys = s.keys(0);
    if (keys == 0) continue;
    const int64_t j = n == 0 ? 0 : n == 1 ? keys - 1 : random.integer(0, keys - 1);
    const RowReference::Key row = reference.key_gradients(b, head, j);
    const auto place = g.key_place(b, s.leftpad + j);
    dk.row(place, head, row.dk.data(), c.dqk);
    dv.row(place, head, row.dv.data(), c.dv);
  }
  note(dk);
  note(dv);
  return faults;
}

}  // namespace flashwave::cli
