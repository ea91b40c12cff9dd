// The fast CPU kernels, for the instruction set this file is compiled with.
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(FLASHWAVE_NEON)
#include <arm_neon.h>
#endif

#include "kernels/abi/cpu_launch.h"
#include "kernels/abi/cpu_scratch.h"
#include "kernels/abi/params.h"
#include "kernels/common/dtype.h"
#include "kernels/common/philox.h"
#include "kernels/common/row_end.h"
#include "kernels/common/sequence.h"
#include "kernels/cpu/entry.h"

namespace flashwave {
namespace {
// clang-format off: the order is the order of definition
#include "kernels/cpu/vec.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/fwd.h"
#include "kernels/cpu/probs.h"
#include "kernels/cpu/decode_tasks.h"
#include "kernels/cpu/decode.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/bwd.h"
#include "kernels/cpu/bias_gradient.h"
#include "kernels/cpu/rotary.h"
// clang-format on

template <class T>
void decode(const abi::Params& p, const abi::CpuLaunch& launch) {
  if (int64_t{p.seqlen_q} * (p.heads_q / p.heads_k) > kDotRows) return forward<T>(p, launch);
  decode_tasks<T, DecodeTask<T>>(p, launch);
}
}  // namespace
}  // namespace flashwave
