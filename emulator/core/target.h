// What differs between the GPUs that are emulated.
#pragma once

#include <string>
#include <vector>

#include "core/bits.h"

namespace emu {

enum class Family : u8 { gfx9, gfx11, gfx12 };  // encodings, wait counters and register files go by family

struct Target {
  std::string name;   // "gfx942"
  std::string title;  // "AMD Instinct MI300 (emulated)"
  Family family = Family::gfx9;
  int cdna = 0;  // 1 gfx908, 2 gfx90a, 3 gfx942, 4 gfx950; 0: not a CDNA part
  int wave_size = 64;
  u32 elf_machine = 0;  // EF_AMDGPU_MACH of e_flags
  u32 lds_bytes = 65536;
  u32 lds_banks = 32;
  u32 compute_units = 0;
  u32 simds_per_cu = 4;
  u32 max_waves_per_simd = 8;
  u32 vgprs_per_simd = 512;    // registers of one lane, AGPRs included where they share the file
  u32 vgpr_granule = 8;        // of allocation
  bool unified_agprs = false;  // gfx90a on: AGPRs are part of the VGPR file
  bool architected_flat_scratch = false;
  bool keeps_high_half = false;     // a 16-bit result leaves bits 31:16 of its register alone
  bool flushes_f16_matrix = false;  // gfx90a: MFMA takes 16-bit denormals as zero
  std::string features;             // for the disassembler

  bool is_rdna() const { return family != Family::gfx9; }
};

// nullptr if there is no such target.
const Target* find_target(const std::string& name);
const Target* find_target_by_elf(u32 elf_flags);
const std::vector<Target>& all_targets();

}  // namespace emu
