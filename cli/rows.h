// Single rows of attention in fp64, for shapes too large to run the whole reference on.
#pragma once

#include <string>
#include <vector>

#include "geometry.h"
#include "tensors.h"

namespace flashwave::cli {

class RowReference {
 public:
  // False for what a single row cannot tell (dropout, append).
  static bool takes(const Case& c);

  // `values` needs o and lse as well for key_gradients.
  RowReference(const Geometry& geometry, const HostValues& values);

  struct Query {
    std::vector<double> o, dq;  // dq: backward only
    double lse;
  };
  Query query(int64_t b, int64_t head, int64_t i) const;

  struct Key {
    std::vector<double> dk, dv;
  };
  Key key_gradients(int64_t b, int64_t key_head, int64_t j) const;  // j-th attended key

 private:
  struct Score {
    double value, slope_of_z;  // s, and ds/dz (below 1 with softcap)
  };
  const float* q_row(TensorId id, int64_t b, int64_t head, int64_t i) const;
  const float* k_row(TensorId id, int64_t b, int64_t head, int64_t j) const;
  Score score(int64_t b, int64_t head, int64_t i, int64_t j) const;

  const Geometry& g_;
  const HostValues& values_;
  double scale_;
};

// Compares sampled rows of every output of `staged` (already run) with RowReference. Empty if they agree, else what
// does not. Tolerance: 1e-5 * (1 + max|ref|) for F32; one unit in the last place of max|ref| for 16-bit types, two for
// gradients.
std::string sampled_rows_fault(const Geometry& geometry, const HostValues& values, const Staged& staged);

}  // namespace flashwave::cli
