// The archive of code objects: a header, one entry for each, and their packed bytes. Written by
// cmake/pack_code_objects.cpp on the machine that builds, read by the library on the one that runs: both
// little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace flashwave {

struct ArchiveHeader {
  char magic[4];
  uint32_t entries;
};
inline constexpr char kArchiveMagic[4] = {'F', 'W', 'C', 'O'};

struct ArchiveEntry {
  char source[24];  // "cdna_fwd": kernels/cdna/fwd.hip
  char arch[16];    // "gfx942"
  uint64_t offset;  // of the packed bytes, from the start of the archive
  uint32_t packed_bytes, raw_bytes;
};
static_assert(sizeof(ArchiveHeader) == 8 && sizeof(ArchiveEntry) == 56);

const char* code_archive();  // empty (no entries) in a build without kernels of AMD GPUs
std::span<const ArchiveEntry> code_archive_entries();

}  // namespace flashwave
