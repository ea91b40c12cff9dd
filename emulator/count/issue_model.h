// A model, for ranking only: how one compute unit might issue the instructions of one traced workgroup.
#pragma once

#include "core/launch.h"

namespace emu {

// Clocks, unless said otherwise. Latencies are assumptions; vary them to see which results depend on them.
struct IssueModelOptions {
  double lds_latency = 64;
  double vmem_latency = 800;
  double scalar_load_latency = 200;
  double branch = 0;                   // 0: 16 on CDNA, 8 on RDNA
  double vector_latency = 5;           // RDNA; on CDNA a result is ready when the instruction is done
  double transcendental_latency = 10;  // RDNA
  double matrix_latency = 0;  // after the last pass; 0: 12 on CDNA, 8 on RDNA. Accumulating again does not wait for it.
  int workgroups = 1;         // copies of the traced workgroup on the compute unit
  double skew = 1200;         // between their starts
  bool packed_f32_waits = true;   // CDNA: v_pk_*_f32 does not issue beside a matrix instruction
  bool rotate = false;            // RDNA: waves take turns at going first; else the lowest does
  bool overlap = false;           // RDNA: vector instructions issue beside a matrix instruction
  double from = 0.25, to = 0.85;  // what is measured: the part of wave 0's instructions between these
};

struct IssueModelResult {
  double clocks = 0;                                      // of the measured part
  double matrix_busy = 0, vector_busy = 0, lds_busy = 0;  // shares of it
  std::string text() const;
};

// Needs a launch that was counted and traced; throws std::invalid_argument otherwise.
IssueModelResult model_issue(const Program& program, const LaunchResult& result, const IssueModelOptions& options);

}  // namespace emu
