// Build tool: packs code objects into the archive that the library carries (src/device/code_archive.h).
//
//   pack_code_objects ARCHIVE [SOURCE ARCH FILE]...
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/lz.h"
#include "device/code_archive.h"

using namespace flashwave;

namespace {

bool set_name(char* field, size_t size, const char* name) {
  if (std::strlen(name) >= size) return false;
  std::strncpy(field, name, size);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || (argc - 2) % 3 != 0) {
    std::fprintf(stderr, "usage: pack_code_objects ARCHIVE [SOURCE ARCH FILE]...\n");
    return 2;
  }
  std::vector<ArchiveEntry> entries;
  std::string packed;
  const size_t count = static_cast<size_t>(argc - 2) / 3;
  const size_t first = sizeof(ArchiveHeader) + count * sizeof(ArchiveEntry);
  for (int i = 2; i < argc; i += 3) {
    std::ifstream file(argv[i + 2], std::ios::binary);
    const std::string raw{std::istreambuf_iterator<char>(file), {}};
    ArchiveEntry entry{};
    if (raw.empty() || !set_name(entry.source, sizeof entry.source, argv[i]) ||
        !set_name(entry.arch, sizeof entry.arch, argv[i + 1])) {
      std::fprintf(stderr, "pack_code_objects: %s %s %s: cannot be read, or a name is too long\n", argv[i], argv[i + 1],
                   argv[i + 2]);
      return 1;
    }
    const std::string one = lz::pack(raw);
    std::string back(raw.size(), '\0');
    if (!lz::unpack(one.data(), one.size(), back.data(), back.size()) || back != raw) {
      std::fprintf(stderr, "pack_code_objects: %s does not unpack to itself\n", argv[i + 2]);
      return 1;
    }
    entry.offset = first + packed.size();
    entry.packed_bytes = static_cast<uint32_t>(one.size());
    entry.raw_bytes = static_cast<uint32_t>(raw.size());
    entries.push_back(entry);
    packed += one;
  }
  ArchiveHeader header{{}, static_cast<uint32_t>(entries.size())};
  std::memcpy(header.magic, kArchiveMagic, sizeof header.magic);
  std::ofstream archive(argv[1], std::ios::binary);
  archive.write(reinterpret_cast<const char*>(&header), sizeof header);
  archive.write(reinterpret_cast<const char*>(entries.data()),
                static_cast<std::streamsize>(entries.size() * sizeof(ArchiveEntry)));
  archive.write(packed.data(), static_cast<std::streamsize>(packed.size()));
  archive.close();
  return archive ? 0 : 1;
}
