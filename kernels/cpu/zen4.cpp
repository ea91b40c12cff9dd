// AMD's Zen 4 and later multiply pairs of bf16 at the rate of fp32 multiply-adds: forward and backward in bf16, and the
// forward for a handful of query rows of any type, with K and V fetched block by block. The flags are this file's own
// (kernels/cpu/CMakeLists.txt).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "kernels/abi/cpu_launch.h"
#include "kernels/abi/cpu_scratch.h"
#include "kernels/abi/params.h"
#include "kernels/common/dtype.h"
#include "kernels/common/philox.h"
#include "kernels/common/row_end.h"
#include "kernels/common/sequence.h"
#include "kernels/cpu/entry.h"

#define FW_ZEN4

namespace flashwave {
namespace {
// clang-format off: the order is the order of definition
#include "kernels/cpu/vec.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/fwd.h"
#include "kernels/cpu/decode_tasks.h"
#include "kernels/cpu/decode.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/bwd.h"
// clang-format on

template <class T>
void decode(const abi::Params& p, const abi::CpuLaunch& launch) {
  decode_tasks<T, DecodeTask<T>>(p, launch);
}
}  // namespace

FW_CPU_ENTRY(zen4_decode_m32n32, decode)
void zen4_fwd_m32n96(const abi::Params& p, const abi::CpuLaunch& launch) {
  forward_tasks<BFloat16, ForwardTask<BFloat16>>(p, launch);
}
void zen4_bwd_m32n96(const abi::Params& p, const abi::CpuLaunch& launch) { backward_products<BFloat16>(p, launch); }
}  // namespace flashwave
