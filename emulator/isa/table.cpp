// All instructions by name.
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "core/opcode.h"

namespace emu {
namespace {

using Table = std::unordered_map<std::string, std::vector<const Opcode*>>;

void add(Table& table, std::span<const Opcode> rows) {
  for (const Opcode& row : rows) {
    for (const Opcode* other : table[row.name]) {
      if (!other->families || !row.families || (other->families & row.families)) {
        throw std::logic_error(std::string("instruction ") + row.name + " is in the table twice");
      }
    }
    table[row.name].push_back(&row);
  }
}

const Table& table() {
  static const Table all = [] {
    Table t;
    for (auto rows : {scalar_opcodes(), control_opcodes(), vector_int_opcodes(), vector_float_opcodes(),
                      vector_f64_opcodes(), vector_16_opcodes(), packed_opcodes(), convert_opcodes(), compare_opcodes(),
                      cross_lane_opcodes(), mfma_opcodes(), wmma_opcodes(), lds_opcodes(), lds_atomic_opcodes(),
                      global_opcodes(), buffer_opcodes(), vmem_atomic_opcodes(), scalar_load_opcodes()}) {
      add(t, rows);
    }
    return t;
  }();
  return all;
}

}  // namespace

const Opcode* find_opcode(const std::string& name, Family family) {
  const auto found = table().find(name);
  if (found == table().end()) return nullptr;
  for (const Opcode* row : found->second) {
    if (!row->families || (row->families >> static_cast<int>(family) & 1)) return row;
  }
  return nullptr;
}

const char* class_name(Class cls) {
  static const char* const names[] = {
      "scalar",     "vector",      "transcendental", "matrix", "lds_read", "lds_write", "lds_atomic", "vmem_load",
      "vmem_store", "vmem_atomic", "scalar_load",    "branch", "wait",     "barrier",   "other",      "end"};
  static_assert(sizeof names / sizeof *names == static_cast<size_t>(Class::count));
  return names[static_cast<int>(cls)];
}

}  // namespace emu
