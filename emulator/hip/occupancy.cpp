#include "hip/occupancy.h"

#include <algorithm>

namespace emu::hip {
namespace {

u32 round_up(u32 value, u32 granule) { return (value + granule - 1) / granule * granule; }

// COMPUTE_PGM_RSRC1 bits 5:0 hold the number of registers in units of the encoding, less one (LLVM "User Guide for
// AMDGPU Backend", Kernel Descriptor); the hardware allocates in units of its own.
u32 allocated_vgprs(const Target& target, const Kernel& kernel) {
  const u32 unit = target.cdna >= 2 || kernel.wave_size == 32 ? 8 : 4;
  return round_up(((kernel.rsrc1 & 63) + 1) * unit, target.vgpr_granule);
}

// GCN and CDNA share 800 SGPRs of a SIMD in units of 16; RDNA gives every wave its own 128.
u32 waves_by_sgprs(const Target& target, const Kernel& kernel) {
  if (target.is_rdna()) return target.max_waves_per_simd;
  return 800 / round_up(std::max(kernel.sgprs, 1u), 16);
}

}  // namespace

Occupancy occupancy(const Target& target, const Kernel& kernel, u32 block_size, size_t dynamic_lds) {
  Occupancy result;
  result.vgprs = allocated_vgprs(target, kernel);
  result.waves_per_simd = target.max_waves_per_simd;
  result.limit = "waves";
  const auto allow = [&](u32 waves, const char* what) {
    if (waves < result.waves_per_simd) result.waves_per_simd = waves, result.limit = what;
  };
  allow(target.vgprs_per_simd / result.vgprs, "vgprs");
  allow(waves_by_sgprs(target, kernel), "sgprs");

  const auto wave_size = static_cast<u32>(kernel.wave_size);
  const u32 waves_per_block = std::max(1u, (block_size + wave_size - 1) / wave_size);
  // A wave stays on one SIMD, so those of a workgroup spread over the SIMDs before they share one.
  const u32 slots = result.waves_per_simd * target.simds_per_cu;
  result.blocks_per_cu = slots / waves_per_block;
  const size_t lds = kernel.lds_bytes + dynamic_lds;
  if (lds > 0) {
    const auto by_lds = static_cast<u32>(target.lds_bytes / lds);
    if (by_lds < result.blocks_per_cu) result.blocks_per_cu = by_lds, result.limit = "lds";
  }
  return result;
}

}  // namespace emu::hip
