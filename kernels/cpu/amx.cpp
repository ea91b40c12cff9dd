// The bf16 and fp16 kernels on AMX tiles, with AVX-512 between the products; the flags are this file's own
// (kernels/cpu/CMakeLists.txt).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "kernels/abi/amx_scratch.h"
#include "kernels/abi/cpu_launch.h"
#include "kernels/abi/params.h"
#include "kernels/common/dtype.h"
#include "kernels/common/philox.h"
#include "kernels/common/row_end.h"
#include "kernels/common/sequence.h"

namespace flashwave {
namespace {
// clang-format off: the order is the order of definition
#include "kernels/cpu/vec.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/parts.h"
#if defined(FLASHWAVE_TILE_MODEL)  // tests/amx_model
#include FLASHWAVE_TILE_MODEL
#else
#include "kernels/cpu/amx_isa.h"
#endif
#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/amx_fwd.h"
#include "kernels/cpu/decode_tasks.h"
#include "kernels/cpu/amx_decode.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/amx_fetch.h"
#include "kernels/cpu/amx_bwd.h"
// clang-format on
}  // namespace

void amx_fwd_m32n128(const abi::Params& p, const abi::CpuLaunch& launch) {
  forward_tasks<BFloat16, AmxForwardTask<BFloat16>>(p, launch);
}
void amx_decode_m16n64(const abi::Params& p, const abi::CpuLaunch& launch) {
  decode_tasks<BFloat16, AmxDecodeTask<BFloat16>>(p, launch);
}
void amx_bwd_m256n128(const abi::Params& p, const abi::CpuLaunch& launch) { amx_backward<BFloat16>(p, launch); }

void amx_fp16_fwd_m32n128(const abi::Params& p, const abi::CpuLaunch& launch) {
  forward_tasks<Half, AmxForwardTask<Half>>(p, launch);
}
void amx_split_fwd_m32n128(const abi::Params& p, const abi::CpuLaunch& launch) {
  forward_tasks<Half, AmxForwardTask<SplitHalf>>(p, launch);
}
void amx_split_bwd_m256n128(const abi::Params& p, const abi::CpuLaunch& launch) { amx_backward<SplitHalf>(p, launch); }
void amx_fp16_decode_m16n64(const abi::Params& p, const abi::CpuLaunch& launch) {
  decode_tasks<Half, AmxDecodeTask<Half>>(p, launch);
}
void amx_fp16_bwd_m256n128(const abi::Params& p, const abi::CpuLaunch& launch) { amx_backward<Half>(p, launch); }
}  // namespace flashwave
