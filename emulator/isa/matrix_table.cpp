// The rows of matrix instructions, compiled for the CPU at hand.
#include <cstdlib>
#include <cstring>
#include <vector>

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

bool cpu_is_wide() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vbmi");
#else
  return false;
#endif
}

// FLASHWAVE_EMU_AVX512=0: as on a CPU without it.
bool use_wide() {
  const char* value = std::getenv("FLASHWAVE_EMU_AVX512");
  return cpu_is_wide() && !(value && std::strcmp(value, "0") == 0);
}

template <class... Rows>
std::vector<Opcode> joined(const Rows&... rows) {
  std::vector<Opcode> all;
  (all.insert(all.end(), rows.begin(), rows.end()), ...);
  return all;
}

}  // namespace

std::span<const Opcode> mfma_opcodes() {
  static const std::vector<Opcode> all =
      use_wide() ? joined(matrix::wide::dense_mfma_opcodes(), matrix::wide::sparse_mfma_opcodes(),
                          matrix::wide::scaled_mfma_opcodes())
                 : joined(matrix::narrow::dense_mfma_opcodes(), matrix::narrow::sparse_mfma_opcodes(),
                          matrix::narrow::scaled_mfma_opcodes());
  return all;
}

std::span<const Opcode> wmma_opcodes() {
  return use_wide() ? matrix::wide::all_wmma_opcodes() : matrix::narrow::all_wmma_opcodes();
}

}  // namespace emu
