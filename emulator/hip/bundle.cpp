#include "hip/bundle.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "hip/devices.h"

namespace emu::hip {
namespace {

constexpr std::string_view kBundleMagic = "__CLANG_OFFLOAD_BUNDLE__";
constexpr std::string_view kCompressedMagic = "CCOB";
constexpr u64 kMostEntries = 1024, kLongestId = 4096, kLargestObject = 1ull << 32;
constexpr u16 kMachineAmdgpu = 224;  // EM_AMDGPU
// e_flags of code object version 4 and later (LLVM "User Guide for AMDGPU Backend", ELF Header).
constexpr u32 kMachMask = 0xff, kXnackMask = 0x300, kXnackOn = 0x300, kSrameccMask = 0xc00, kSrameccOff = 0x800;

// Reads at an offset; knows where the bytes end if anybody does.
class Reader {
 public:
  Reader(const void* bytes, size_t size) : bytes_(static_cast<const u8*>(bytes)), size_(size) {}
  template <class T>
  bool read(u64 offset, T* value) const {
    if (!has(offset, sizeof(T))) return false;
    std::memcpy(value, bytes_ + offset, sizeof(T));
    return true;
  }
  bool has(u64 offset, u64 count) const { return size_ == 0 || (offset <= size_ && count <= size_ - offset); }
  bool starts_with(std::string_view magic) const {
    return has(0, magic.size()) && std::memcmp(bytes_, magic.data(), magic.size()) == 0;
  }
  const u8* at(u64 offset) const { return bytes_ + offset; }

 private:
  const u8* bytes_;
  size_t size_;
};

Image damaged(std::string what) { return {{}, false, std::move(what)}; }

// An ELF file ends where the last of its headers, sections and segments does.
bool elf_bytes(const Reader& in, const Elf64_Ehdr& header, u64* size) {
  u64 end = sizeof header;
  const auto grow = [&](u64 offset, u64 bytes) {
    if (offset > kLargestObject || bytes > kLargestObject) return false;
    end = std::max(end, offset + bytes);
    return in.has(offset, bytes);
  };
  if (!grow(header.e_shoff, u64{header.e_shnum} * sizeof(Elf64_Shdr))) return false;
  if (!grow(header.e_phoff, u64{header.e_phnum} * sizeof(Elf64_Phdr))) return false;
  for (u64 i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    if (!in.read(header.e_shoff + i * sizeof section, &section)) return false;
    if (section.sh_type != SHT_NOBITS && !grow(section.sh_offset, section.sh_size)) return false;
  }
  for (u64 i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!in.read(header.e_phoff + i * sizeof segment, &segment)) return false;
    if (!grow(segment.p_offset, segment.p_filesz)) return false;
  }
  *size = end;
  return true;
}

std::string elf_target_name(u32 flags) {
  const Target* target = find_target_by_elf(flags);
  if (target != nullptr) return target->name;
  return "a GPU that is not emulated (machine number " + std::to_string(flags & kMachMask) + ")";
}

Image find_in_elf(const Reader& in, const Target& target) {
  Elf64_Ehdr header;
  if (!in.read(0, &header)) return damaged("the ELF header is cut off");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kMachineAmdgpu) {
    return damaged("an ELF file, but not one for AMD GPUs");
  }
  u64 size = 0;
  if (!elf_bytes(in, header, &size)) return damaged("the ELF file is cut off or its headers are damaged");
  if (find_target_by_elf(header.e_flags) != &target) {
    return {{}, true, "the code object is for " + elf_target_name(header.e_flags) + ", the device is " + target.name};
  }
  if ((header.e_flags & kXnackMask) == kXnackOn || (header.e_flags & kSrameccMask) == kSrameccOff) {
    return {{}, true, "the code object needs xnack+ or sramecc-; the device is " + target_id(target)};
  }
  return {{in.at(0), size}, false, ""};
}

// "hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-" -> "gfx942:sramecc+:xnack-"; empty for the host's entry.
std::string_view entry_target(std::string_view id) {
  if (!id.starts_with("hip")) return {};
  const size_t at = id.find("gfx");
  return at == std::string_view::npos ? std::string_view() : id.substr(at);
}

// How well an entry suits the device: 0 not at all; the more features it names the better.
int suitability(std::string_view entry, const Target& target) {
  const std::string device = target_id(target);
  if (entry.substr(0, entry.find(':')) != target.name) return 0;
  int named = 1;
  for (size_t at = entry.find(':'); at != std::string_view::npos; at = entry.find(':', at + 1)) {
    const std::string feature(entry.substr(at, entry.find(':', at + 1) - at));
    if (device.find(feature) == std::string::npos) return 0;
    ++named;
  }
  return named;
}

Image find_in_bundle(const Reader& in, const Target& target) {
  u64 count = 0;
  if (!in.read(kBundleMagic.size(), &count) || count > kMostEntries) return damaged("the offload bundle is damaged");
  u64 at = kBundleMagic.size() + sizeof count;
  std::string held;
  int best = 0;
  u64 best_offset = 0, best_bytes = 0;
  for (u64 i = 0; i < count; ++i) {
    u64 offset = 0, bytes = 0, id_bytes = 0;
    if (!in.read(at, &offset) || !in.read(at + 8, &bytes) || !in.read(at + 16, &id_bytes) || id_bytes > kLongestId ||
        !in.has(at + 24, id_bytes) || !in.has(offset, bytes)) {
      return damaged("the offload bundle is damaged");
    }
    const std::string_view id(reinterpret_cast<const char*>(in.at(at + 24)), id_bytes);
    at += 24 + id_bytes;
    const std::string_view entry = entry_target(id);
    if (entry.empty() || bytes == 0) continue;
    held += (held.empty() ? "" : ", ") + std::string(entry);
    if (const int suits = suitability(entry, target); suits > best)
      best = suits, best_offset = offset, best_bytes = bytes;
  }
  if (best == 0) {
    return {{},
            true,
            "the offload bundle holds code for " + (held.empty() ? "no GPU" : held) + "; the device is " +
                target_id(target)};
  }
  return find_in_elf(Reader(in.at(best_offset), best_bytes), target);
}

}  // namespace

Image find_image(const void* bytes, size_t size, const Target& target) {
  const Reader in(bytes, size);
  if (in.starts_with({ELFMAG, SELFMAG})) return find_in_elf(in, target);
  if (in.starts_with(kBundleMagic)) return find_in_bundle(in, target);
  if (in.starts_with(kCompressedMagic)) {
    return damaged("compressed offload bundles are not supported; compile with --no-offload-compress");
  }
  return damaged("neither an ELF file nor an offload bundle");
}

}  // namespace emu::hip
