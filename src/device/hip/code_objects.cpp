#include "device/hip/code_objects.h"

#include <mutex>
#include <vector>

namespace flashwave {
namespace {

// Rows of compiled kernels are added where kernels/<arch>/variants.def are expanded; none are compiled yet.
struct Rows {
  std::mutex mutex;
  std::vector<const CodeObject*> list;
};

Rows& rows() {
  static auto& all = *new Rows;  // never destroyed: a call may still run while the process exits
  return all;
}

template <class Predicate>
const CodeObject* find(Predicate&& matches) {
  Rows& all = rows();
  const std::lock_guard lock(all.mutex);
  for (const CodeObject* row : all.list) {
    if (matches(*row)) return row;
  }
  return nullptr;
}

}  // namespace

const CodeObject* find_code_object(std::string_view kernel, std::string_view arch) {
  return find([&](const CodeObject& row) { return row.kernel == kernel && row.arch == arch; });
}

bool has_code_objects(std::string_view arch) {
  return find([&](const CodeObject& row) { return row.arch == arch; }) != nullptr;
}

void add_code_object_for_test(const CodeObject* row) {
  Rows& all = rows();
  const std::lock_guard lock(all.mutex);
  all.list.push_back(row);
}

}  // namespace flashwave
