#include "load/elf.h"

#include <elf.h>
#include <sys/mman.h>

#include <algorithm>

#include "core/errors.h"
#include "load/msgpack.h"

namespace emu {
namespace {

// LLVM "User Guide for AMDGPU Backend": relocation records, note records, kernel descriptor.
constexpr u16 kMachineAmdGpu = 224;
constexpr u32 kNoteMetadata = 32;
enum Relocation : u32 { kAbs32Lo = 1, kAbs32Hi = 2, kAbs64 = 3, kRel32 = 4, kRel64 = 5, kAbs32 = 6, kRelative64 = 13 };
constexpr size_t kDescriptorBytes = 64;

class File {
 public:
  explicit File(const std::vector<u8>& bytes) : bytes_(bytes) {}
  template <class T>
  T at(u64 offset) const {
    T value;
    std::memcpy(&value, range(offset, sizeof(T)), sizeof(T));
    return value;
  }
  const u8* range(u64 offset, u64 size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) {
      throw LoadError("code object is damaged: it refers to bytes past its end");
    }
    return bytes_.data() + offset;
  }
  std::string text(u64 offset) const {
    std::string s;
    for (u64 i = offset;; ++i) {
      const char c = static_cast<char>(at<u8>(i));
      if (!c) return s;
      s += c;
    }
  }

 private:
  const std::vector<u8>& bytes_;
};

void map_image(Program& program, const File& file, const Elf64_Ehdr& header) {
  u64 bytes = 0;
  std::vector<Elf64_Phdr> segments;
  for (int i = 0; i < header.e_phnum; ++i) {
    auto segment = file.at<Elf64_Phdr>(header.e_phoff + static_cast<u64>(i) * sizeof(Elf64_Phdr));
    if (segment.p_type != PT_LOAD) continue;
    if (segment.p_filesz > segment.p_memsz || segment.p_vaddr + segment.p_memsz > (1ull << 32)) {
      throw LoadError("code object is damaged: a segment has an impossible size");
    }
    bytes = std::max(bytes, segment.p_vaddr + segment.p_memsz);
    segments.push_back(segment);
  }
  if (segments.empty()) throw LoadError("code object has nothing to load: is it linked?");
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw LoadError("no memory for the code object");
  program.image = static_cast<u8*>(memory);
  program.image_bytes = bytes;
  for (const Elf64_Phdr& segment : segments) {
    if (!segment.p_filesz) continue;
    std::memcpy(program.image + segment.p_vaddr, file.range(segment.p_offset, segment.p_filesz), segment.p_filesz);
  }
}

void check_inside(const Program& program, u64 address, u64 bytes) {
  if (address > program.image_bytes || bytes > program.image_bytes - address) {
    throw LoadError("code object is damaged: an address lies outside its image");
  }
}

void relocate(Program& program, const File& file, const std::vector<Elf64_Shdr>& sections) {
  const u64 base = reinterpret_cast<u64>(program.image);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_RELA || !(section.sh_flags & SHF_ALLOC)) continue;
    const Elf64_Shdr* symbols = section.sh_link < sections.size() ? &sections[section.sh_link] : nullptr;
    for (u64 at = 0; at + sizeof(Elf64_Rela) <= section.sh_size; at += sizeof(Elf64_Rela)) {
      const auto entry = file.at<Elf64_Rela>(section.sh_offset + at);
      const u32 type = ELF64_R_TYPE(entry.r_info);
      u64 value = base + static_cast<u64>(entry.r_addend);
      if (type != kRelative64) {
        if (!symbols) throw LoadError("code object is damaged: a relocation without symbols");
        const auto symbol = file.at<Elf64_Sym>(symbols->sh_offset + ELF64_R_SYM(entry.r_info) * sizeof(Elf64_Sym));
        if (symbol.st_shndx == SHN_UNDEF) {
          throw LoadError("code object needs the symbol " +
                          file.text(sections.at(symbols->sh_link).sh_offset + symbol.st_name) +
                          ", which nothing defines");
        }
        value += symbol.st_value;
      }
      const bool wide = type == kRelative64 || type == kAbs64 || type == kRel64;
      check_inside(program, entry.r_offset, wide ? 8 : 4);
      u8* place = program.image + entry.r_offset;
      if (type == kRel32 || type == kRel64) value -= base + entry.r_offset;
      const u32 low = static_cast<u32>(type == kAbs32Hi ? value >> 32 : value);
      switch (type) {
        case kRelative64:
        case kAbs64:
        case kRel64:
          std::memcpy(place, &value, 8);
          break;
        case kAbs32:
        case kAbs32Lo:
        case kAbs32Hi:
        case kRel32:
          std::memcpy(place, &low, 4);
          break;
        default:
          throw LoadError("code object has a relocation of unknown type " + std::to_string(type));
      }
    }
  }
}

Kernel read_descriptor(const Program& program, const std::string& name, u64 address) {
  check_inside(program, address, kDescriptorBytes);
  const u8* d = program.image + address;
  auto field = [d](size_t offset, auto& out) { std::memcpy(&out, d + offset, sizeof out); };
  Kernel k;
  k.name = name;
  i64 entry;
  field(0, k.lds_bytes);
  field(4, k.scratch_bytes);
  field(8, k.kernarg_bytes);
  field(16, entry);
  field(44, k.rsrc3);
  field(48, k.rsrc1);
  field(52, k.rsrc2);
  field(56, k.properties);
  field(58, k.preload);
  k.entry = address + static_cast<u64>(entry);
  k.uses_dynamic_stack = k.properties >> 11 & 1;
  k.wave_size = program.target->is_rdna() && (k.properties >> 10 & 1) ? 32 : 64;
  return k;
}

void read_symbols(Program& program, const File& file, const std::vector<Elf64_Shdr>& sections) {
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_DYNSYM && section.sh_type != SHT_SYMTAB) continue;
    if (section.sh_link >= sections.size()) throw LoadError("code object is damaged: symbols without names");
    for (u64 at = 0; at + sizeof(Elf64_Sym) <= section.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = file.at<Elf64_Sym>(section.sh_offset + at);
      const std::string name = file.text(sections[section.sh_link].sh_offset + symbol.st_name);
      if (symbol.st_shndx == SHN_UNDEF || name.empty()) continue;
      if (name.size() > 3 && name.ends_with(".kd")) {
        const std::string kernel = name.substr(0, name.size() - 3);
        program.kernels.emplace(kernel, read_descriptor(program, kernel, symbol.st_value));
      } else if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT) {
        check_inside(program, symbol.st_value, symbol.st_size);
        program.globals[name] = {symbol.st_value, symbol.st_size};
      }
    }
  }
}

void apply_metadata(Program& program, const MsgValue& metadata) {
  const MsgValue* kernels = metadata.get("amdhsa.kernels");
  if (!kernels) return;
  for (const MsgValue& entry : kernels->array) {
    std::string name = entry.text_at(".symbol");
    if (name.ends_with(".kd")) name.resize(name.size() - 3);
    auto found = program.kernels.find(name);
    if (found == program.kernels.end()) continue;
    Kernel& k = found->second;
    k.vgprs = static_cast<u32>(entry.integer_at(".vgpr_count", 0));
    k.agprs = static_cast<u32>(entry.integer_at(".agpr_count", 0));
    k.sgprs = static_cast<u32>(entry.integer_at(".sgpr_count", 0));
    k.vgpr_spills = static_cast<u32>(entry.integer_at(".vgpr_spill_count", 0));
    k.sgpr_spills = static_cast<u32>(entry.integer_at(".sgpr_spill_count", 0));
    k.max_workgroup = static_cast<u32>(entry.integer_at(".max_flat_workgroup_size", 1024));
    k.kernarg_bytes = std::max(k.kernarg_bytes, static_cast<u32>(entry.integer_at(".kernarg_segment_size", 0)));
    k.wave_size = static_cast<int>(entry.integer_at(".wavefront_size", k.wave_size));
    if (const MsgValue* arguments = entry.get(".args")) {
      for (const MsgValue& argument : arguments->array) {
        k.arguments.push_back({argument.text_at(".name"), argument.text_at(".value_kind"),
                               static_cast<u32>(argument.integer_at(".offset", 0)),
                               static_cast<u32>(argument.integer_at(".size", 0))});
      }
    }
  }
}

void read_notes(Program& program, const File& file, const std::vector<Elf64_Shdr>& sections) {
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_NOTE) continue;
    for (u64 at = section.sh_offset; at + 12 <= section.sh_offset + section.sh_size;) {
      const u32 name_bytes = file.at<u32>(at), bytes = file.at<u32>(at + 4), type = file.at<u32>(at + 8);
      const u64 name_at = at + 12, content = name_at + ((name_bytes + 3ull) & ~3ull);
      if (type == kNoteMetadata && file.text(name_at) == "AMDGPU") {
        apply_metadata(program, read_msgpack(file.range(content, bytes), bytes));
      }
      at = content + ((bytes + 3ull) & ~3ull);
    }
  }
}

}  // namespace

std::vector<CodeRange> read_elf(Program& program) {
  const File file(program.file);
  if (program.file.size() < sizeof(Elf64_Ehdr) || std::memcmp(program.file.data(), ELFMAG, SELFMAG) != 0) {
    throw LoadError("not a code object: it is no ELF file");
  }
  const auto header = file.at<Elf64_Ehdr>(0);
  if (header.e_machine != kMachineAmdGpu) throw LoadError("not a code object for AMD GPUs");
  program.target = find_target_by_elf(header.e_flags);
  if (!program.target) {
    throw LoadError("code object is for a GPU that is not emulated (machine number " +
                    std::to_string(header.e_flags & 0xff) + ")");
  }
  std::vector<Elf64_Shdr> sections;
  for (int i = 0; i < header.e_shnum; ++i) {
    sections.push_back(file.at<Elf64_Shdr>(header.e_shoff + static_cast<u64>(i) * sizeof(Elf64_Shdr)));
  }
  map_image(program, file, header);
  relocate(program, file, sections);
  read_symbols(program, file, sections);
  read_notes(program, file, sections);
  std::vector<CodeRange> code;
  for (const Elf64_Shdr& section : sections) {
    if (!(section.sh_flags & SHF_EXECINSTR) || section.sh_type != SHT_PROGBITS) continue;
    check_inside(program, section.sh_addr, section.sh_size);
    code.push_back({section.sh_addr, section.sh_addr + section.sh_size});
  }
  return code;
}

Program::~Program() {
  if (image) munmap(image, image_bytes);
}

}  // namespace emu
