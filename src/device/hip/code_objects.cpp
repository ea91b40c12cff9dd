// The build packs every code object into one archive (cmake/pack_code_objects.cpp), which lies in the library as
// bytes; what is used is unpacked once and kept.
#include "device/hip/code_objects.h"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/code_archive.h"
#include "device/hip/architectures.h"

namespace flashwave {
namespace {

struct Kernel {
  const char *name, *source;
  int32_t threads;
};

constexpr Kernel kKernels[] = {
#define FW_AMD_KERNEL(source, name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, ...) \
  {#name, #source, threads},
#if FLASHWAVE_AMD_KERNELS
#include "kernels/amd/decode.def"
#include "kernels/amd/generic.def"
#include "kernels/amd/tiny.def"
#include "kernels/cdna/variants.def"
#include "kernels/rdna/variants.def"
#endif
#undef FW_AMD_KERNEL
    {nullptr, nullptr, 0},
};

const Kernel* find_kernel(std::string_view name) {
  for (const Kernel& kernel : kKernels) {
    if (kernel.name != nullptr && name == kernel.name) return &kernel;
  }
  return nullptr;
}

const ArchiveEntry* find_entry(std::string_view source, std::string_view arch) {
  for (const ArchiveEntry& entry : amd_code_archive().entries) {
    if (source == entry.source && arch == entry.arch) return &entry;
  }
  return nullptr;
}

// e_flags of a 64-bit ELF header; its low byte says for which GPU the code is.
constexpr size_t kElfFlags = 48;

using Image = std::unique_ptr<char[]>;

// The bytes as the GPU's own loader wants them, or null.
Image unpack_image(const ArchiveEntry& entry, const Architecture& arch) {
  auto image = amd_code_archive().unpack(entry);
  if (image == nullptr) return nullptr;
  if (entry.raw_bytes > kElfFlags + 4) {
    uint32_t flags;
    std::memcpy(&flags, image.get() + kElfFlags, sizeof flags);
    flags = (flags & ~uint32_t{0xff}) | arch.elf_machine;
    std::memcpy(image.get() + kElfFlags, &flags, sizeof flags);
  }
  return image;
}

struct Unpacked {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, Image> images;        // by source and architecture
  std::map<std::pair<std::string, std::string>, CodeObject> kernels;  // by name and architecture
  std::vector<const CodeObject*> of_tests;
};

Unpacked& unpacked() {
  static auto& all = *new Unpacked;  // never destroyed: a call may still run while the process exits
  return all;
}

}  // namespace

const CodeObject* find_code_object(std::string_view kernel, std::string_view arch) {
  Unpacked& all = unpacked();
  const std::lock_guard lock(all.mutex);
  for (const CodeObject* row : all.of_tests) {
    if (row->kernel == kernel && row->arch == arch) return row;
  }
  const Kernel* row = find_kernel(kernel);
  const Architecture* device = find_architecture(arch);
  if (row == nullptr || device == nullptr) return nullptr;
  const ArchiveEntry* entry = find_entry(row->source, device->code);
  if (entry == nullptr) return nullptr;
  CodeObject& known = all.kernels[{row->name, device->name}];
  if (known.image == nullptr) {
    Image& image = all.images[{row->source, device->name}];
    if (image == nullptr) image = unpack_image(*entry, *device);
    known = {row->name, device->name, image.get(), entry->raw_bytes, row->threads, 0};
  }
  return known.image != nullptr ? &known : nullptr;
}

bool has_code_objects(std::string_view arch) {
  Unpacked& all = unpacked();
  const std::lock_guard lock(all.mutex);
  for (const CodeObject* row : all.of_tests) {
    if (row->arch == arch) return true;
  }
  const Architecture* device = find_architecture(arch);
  if (device == nullptr) return false;
  for (const ArchiveEntry& entry : amd_code_archive().entries) {
    if (std::string_view(device->code) == entry.arch) return true;
  }
  return false;
}

void add_code_object_for_test(const CodeObject* row) {
  Unpacked& all = unpacked();
  const std::lock_guard lock(all.mutex);
  all.of_tests.push_back(row);
}

}  // namespace flashwave
