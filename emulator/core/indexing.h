// Register numbers that count on from M0: gfx9's indexing mode, and relative moves.
#pragma once

#include <string_view>

#include "core/opcode.h"
#include "core/wave.h"

namespace emu {

struct Indexing {
  u32 index = 0;
  u32 operands = 0;  // bits 1 << operand: those it is added to

  // CDNA3 ISA "VGPR indexing": M0[15:12] = {DST, SRC2, SRC1, SRC0}, M0[7:0] is added to the VGPRs of those operands.
  static Indexing of_mode(const Wave& wave, const Instruction& in) {
    const u32 m0 = wave.sgpr[kM0], mode = m0 >> 12 & 15;
    Indexing indexing{m0 & 0xff, 0};
    for (int i = 0; i < in.operand_count; ++i) {
      const bool applies = i < in.dest_count ? mode & 8 : mode >> (i - in.dest_count) & 1;
      if (applies && in.operand[i].is_vgpr()) indexing.operands |= 1u << i;
    }
    return indexing;
  }
  // v_movrels, v_movreld, s_movrels, s_movreld: the source or the destination.
  static Indexing of_move(const Wave& wave, const Instruction& in) {
    const bool dest = std::string_view(in.opcode->name).find("_movreld") != std::string_view::npos;
    return {wave.sgpr[kM0], dest ? 1u : 1u << in.dest_count};
  }

  // The instruction with the registers it means.
  Instruction apply(const Instruction& in) const {
    Instruction shifted = in;
    for (int i = 0; i < in.operand_count; ++i) {
      if (!(operands >> i & 1)) continue;
      Operand& o = shifted.operand[i];
      o.reg = static_cast<u16>((o.reg + static_cast<u64>(index)) % (o.is_vgpr() ? kFirstAgpr : kVcc));
    }
    return shifted;
  }
};

// Vector memory and LDS instructions, and those of the matrix cores, name their registers as ever.
inline bool is_indexed(const Wave& wave, const Instruction& in) {
  return wave.indexing && (in.cls == Class::vector || in.cls == Class::transcendental);
}

}  // namespace emu
