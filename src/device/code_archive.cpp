#include "device/code_archive.h"

#include <cstring>

#include "base/lz.h"

// The bytes of a file of the build, as a symbol of the library.
#define FW_EMBED(symbol, file)                                                                               \
  asm(".section .rodata\n.balign 64\n.hidden " #symbol "\n.globl " #symbol "\n" #symbol ":\n.incbin \"" file \
      "\"\n"                                                                                                 \
      ".byte 0\n.text\n");                                                                                   \
  extern "C" __attribute__((visibility("hidden"))) const char symbol[];

#if FLASHWAVE_AMD_KERNELS
FW_EMBED(flashwave_amd_code, FLASHWAVE_AMD_CODE)
#endif
#if FLASHWAVE_NVIDIA_KERNELS
FW_EMBED(flashwave_nvidia_code, FLASHWAVE_NVIDIA_CODE)
#endif

namespace flashwave {

CodeArchive read_archive(const char* data) {
  ArchiveHeader header;
  std::memcpy(&header, data, sizeof header);
  if (std::memcmp(header.magic, kArchiveMagic, sizeof header.magic) != 0) return {};
  return {data, {reinterpret_cast<const ArchiveEntry*>(data + sizeof header), header.entries}, ""};
}

CodeArchive amd_code_archive() {
#if FLASHWAVE_AMD_KERNELS
  CodeArchive archive = read_archive(flashwave_amd_code);
  archive.left_out = FLASHWAVE_AMD_LEFT_OUT;
  return archive;
#else
  return {nullptr, {}, FLASHWAVE_AMD_LEFT_OUT};
#endif
}

CodeArchive nvidia_code_archive() {
#if FLASHWAVE_NVIDIA_KERNELS
  return read_archive(flashwave_nvidia_code);
#else
  return {nullptr, {}, FLASHWAVE_NVIDIA_LEFT_OUT};
#endif
}

std::unique_ptr<char[]> CodeArchive::unpack(const ArchiveEntry& entry) const {
  auto bytes = std::make_unique<char[]>(size_t{entry.raw_bytes} + 1);
  if (!lz::unpack(data + entry.offset, entry.packed_bytes, bytes.get(), entry.raw_bytes)) return nullptr;
  return bytes;
}

}  // namespace flashwave
