#include "core/target.h"

namespace emu {
namespace {

// Machine numbers: LLVM "User Guide for AMDGPU Backend", e_flags. Register files, LDS and waves: AMD's ISA documents
// of each generation and LLVM's AMDGPU target features.
Target cdna(const char* name, const char* title, int generation, u32 elf_machine, u32 compute_units) {
  Target t;
  t.name = name;
  t.title = title;
  t.cdna = generation;
  t.elf_machine = elf_machine;
  t.compute_units = compute_units;
  t.unified_agprs = generation >= 2;
  t.max_waves_per_simd = generation >= 2 ? 8 : 10;
  t.vgprs_per_simd = generation >= 2 ? 512 : 256;
  t.vgpr_granule = generation >= 2 ? 8 : 4;
  t.architected_flat_scratch = generation >= 3;
  t.flushes_f16_matrix = generation == 2;
  if (generation == 4) {  // CDNA4: 160 KiB of LDS in 64 banks
    t.lds_bytes = 160 * 1024;
    t.lds_banks = 64;
  }
  return t;
}

Target rdna(const char* name, const char* title, Family family, u32 elf_machine, u32 compute_units, u32 registers) {
  Target t;
  t.name = name;
  t.title = title;
  t.family = family;
  t.wave_size = 32;
  t.elf_machine = elf_machine;
  t.compute_units = compute_units;
  t.simds_per_cu = 2;
  t.max_waves_per_simd = 16;
  t.vgprs_per_simd = registers;
  t.vgpr_granule = registers == 1536 ? 24 : 16;
  t.architected_flat_scratch = true;
  t.keeps_high_half = true;
  t.features = "+real-true16";
  return t;
}

}  // namespace

const std::vector<Target>& all_targets() {
  static const std::vector<Target> targets = {
      cdna("gfx908", "AMD Instinct MI100", 1, 0x30, 120),
      cdna("gfx90a", "AMD Instinct MI200", 2, 0x3f, 110),
      cdna("gfx942", "AMD Instinct MI300", 3, 0x4c, 304),
      cdna("gfx950", "AMD Instinct MI350", 4, 0x4f, 256),
      rdna("gfx1100", "AMD Radeon RX 7900", Family::gfx11, 0x41, 96, 1536),
      rdna("gfx1101", "AMD Radeon RX 7800", Family::gfx11, 0x46, 60, 1536),
      rdna("gfx1102", "AMD Radeon RX 7600", Family::gfx11, 0x47, 32, 1024),
      rdna("gfx1200", "AMD Radeon RX 9060", Family::gfx12, 0x48, 32, 1536),
      rdna("gfx1201", "AMD Radeon RX 9070", Family::gfx12, 0x4e, 64, 1536),
  };
  return targets;
}

const Target* find_target(const std::string& name) {
  for (const Target& t : all_targets()) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

const Target* find_target_by_elf(u32 elf_flags) {
  for (const Target& t : all_targets()) {
    if (t.elf_machine == (elf_flags & 0xff)) return &t;
  }
  return nullptr;
}

}  // namespace emu
