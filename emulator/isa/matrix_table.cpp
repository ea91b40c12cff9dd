// The rows of matrix instructions, compiled for the CPU at hand.
#include <vector>

#include "core/cpu.h"
#include "core/opcode.h"

namespace emu {

#define EMU_MATRIX_ROWS                          \
  std::span<const Opcode> dense_mfma_opcodes();  \
  std::span<const Opcode> sparse_mfma_opcodes(); \
  std::span<const Opcode> scaled_mfma_opcodes(); \
  std::span<const Opcode> all_wmma_opcodes();
namespace matrix::narrow {
EMU_MATRIX_ROWS
}
namespace matrix::wide {
EMU_MATRIX_ROWS
}
#undef EMU_MATRIX_ROWS

namespace {

template <class... Rows>
std::vector<Opcode> joined(const Rows&... rows) {
  std::vector<Opcode> all;
  (all.insert(all.end(), rows.begin(), rows.end()), ...);
  return all;
}

}  // namespace

std::span<const Opcode> mfma_opcodes() {
  static const std::vector<Opcode> all =
      cpu_has_avx512() ? joined(matrix::wide::dense_mfma_opcodes(), matrix::wide::sparse_mfma_opcodes(),
                                matrix::wide::scaled_mfma_opcodes())
                       : joined(matrix::narrow::dense_mfma_opcodes(), matrix::narrow::sparse_mfma_opcodes(),
                                matrix::narrow::scaled_mfma_opcodes());
  return all;
}

std::span<const Opcode> wmma_opcodes() {
  return cpu_has_avx512() ? matrix::wide::all_wmma_opcodes() : matrix::narrow::all_wmma_opcodes();
}

}  // namespace emu
