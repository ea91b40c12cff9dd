// The rows of matrix instructions, as compiled for the CPU at hand.
#include <vector>

#include "core/cpu.h"
#include "core/opcode.h"

#define EMU_MATRIX_ROWS                          \
  std::span<const Opcode> dense_mfma_opcodes();  \
  std::span<const Opcode> sparse_mfma_opcodes(); \
  std::span<const Opcode> scaled_mfma_opcodes(); \
  std::span<const Opcode> all_wmma_opcodes();
namespace emu::matrix::narrow {
EMU_MATRIX_ROWS
}
#ifdef __x86_64__
namespace emu::matrix::wide {
EMU_MATRIX_ROWS
}
#endif
#undef EMU_MATRIX_ROWS

namespace emu {
namespace {

#ifdef __x86_64__
namespace wide = matrix::wide;
#else
namespace wide = matrix::narrow;
#endif
namespace narrow = matrix::narrow;

std::vector<Opcode> joined(std::initializer_list<std::span<const Opcode>> parts) {
  std::vector<Opcode> all;
  for (const std::span<const Opcode> part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace

std::span<const Opcode> mfma_opcodes() {
  static const std::vector<Opcode> all =
      cpu_has_avx512()
          ? joined({wide::dense_mfma_opcodes(), wide::sparse_mfma_opcodes(), wide::scaled_mfma_opcodes()})
          : joined({narrow::dense_mfma_opcodes(), narrow::sparse_mfma_opcodes(), narrow::scaled_mfma_opcodes()});
  return all;
}

std::span<const Opcode> wmma_opcodes() {
  return cpu_has_avx512() ? wide::all_wmma_opcodes() : narrow::all_wmma_opcodes();
}

}  // namespace emu
