#include "device/hip/code_archive.h"

#include <cstring>

#if FLASHWAVE_AMD_KERNELS
asm(R"(
  .section .rodata
  .balign 64
  .hidden flashwave_code_archive
  .globl flashwave_code_archive
flashwave_code_archive:
  .incbin ")" FLASHWAVE_CODE_ARCHIVE R"("
  .byte 0
  .text
)");
extern "C" __attribute__((visibility("hidden"))) const char flashwave_code_archive[];
#endif

namespace flashwave {

const char* code_archive() {
#if FLASHWAVE_AMD_KERNELS
  return flashwave_code_archive;
#else
  return "";
#endif
}

std::span<const ArchiveEntry> code_archive_entries() {
#if FLASHWAVE_AMD_KERNELS
  ArchiveHeader header;
  std::memcpy(&header, flashwave_code_archive, sizeof header);
  if (std::memcmp(header.magic, kArchiveMagic, sizeof header.magic) != 0) return {};
  return {reinterpret_cast<const ArchiveEntry*>(flashwave_code_archive + sizeof header), header.entries};
#else
  return {};
#endif
}

}  // namespace flashwave
