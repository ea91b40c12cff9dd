// The archives of machine code that the library carries, one for each maker of GPUs: a header, one entry for each code
// object, and their packed bytes. Written by cmake/pack_code_objects.cpp on the machine that builds, read by the
// library on the one that runs: both little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace flashwave {

struct ArchiveHeader {
  char magic[4];
  uint32_t entries;
};
inline constexpr char kArchiveMagic[4] = {'F', 'W', 'C', '2'};

struct ArchiveEntry {
  char source[40];  // "cdna_fwd_d64": a part of kernels/cdna/fwd.hip
  char arch[16];    // "gfx942", "sm_90a", "compute_80" (PTX)
  uint64_t offset;  // of the packed bytes, from the start of the archive
  uint32_t packed_bytes, raw_bytes;
};
static_assert(sizeof(ArchiveHeader) == 8 && sizeof(ArchiveEntry) == 72);

struct CodeArchive {
  const char* data = nullptr;
  std::span<const ArchiveEntry> entries;  // none in a build without kernels of that maker's GPUs
  const char* left_out = "";              // why there are none, or which are missing

  // The bytes of an entry, and one 0 after them (PTX is a C string); null if they are damaged.
  std::unique_ptr<char[]> unpack(const ArchiveEntry& entry) const;
};

// The archive that begins at data, which must live as long as it is used and be aligned to 8 bytes.
CodeArchive read_archive(const char* data);

CodeArchive amd_code_archive();
CodeArchive nvidia_code_archive();

}  // namespace flashwave
