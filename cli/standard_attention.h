// Attention as it is written without flash kernels, on the CPU in fp32: S = Q K^T, softmax, O = P V, with the whole
// matrix of a head in memory. What the bench compares with.
#pragma once

#include <cstddef>
#include <vector>

#include "geometry.h"
#include "tensors.h"

namespace flashwave::cli {

class StandardAttention {
 public:
  // Dense batches with causal or window masks and GQA; other features have no plain counterpart to time.
  static bool takes(const Case& c);
  // Bytes of the matrices held at once: one head's scores, and in the backward their gradient too.
  static double matrix_bytes(const Case& c);

  StandardAttention(const Geometry& geometry, const HostValues& values, int threads);

  // Seconds. The backward starts from the softmax a forward left behind; making that is not timed.
  double forward();
  double backward();

  const std::vector<float>& o() const { return o_; }  // (batch, head, query, dim)
  const std::vector<float>& dq() const { return dq_; }
  const std::vector<float>& dk() const { return dk_; }  // (batch, key head, key, dim)
  const std::vector<float>& dv() const { return dv_; }

 private:
  void scores_and_softmax(int64_t b, int64_t h);
  void output(int64_t b, int64_t h);
  void gradients(int64_t b, int64_t h);
  template <class Body>
  void over_rows(Body&& body);

  Case case_;
  float scale_;
  int threads_;
  std::vector<float> q_, k_, v_, o_, d_o_, dq_, dk_, dv_;
  std::vector<float> matrix_, gradient_;
};

// Softmax of row[first, last), zeros elsewhere.
void softmax_row(float* row, int64_t count, int64_t first, int64_t last);

}  // namespace flashwave::cli
