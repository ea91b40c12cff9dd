// Source lines of instructions, from DWARF.
#include <llvm/DebugInfo/DWARF/DWARFContext.h>
#include <llvm/Object/ObjectFile.h>

#include "core/program.h"

namespace emu {

SourceLine Program::line_of(u64 address) const {
  const llvm::StringRef bytes(reinterpret_cast<const char*>(file.data()), file.size());
  auto object = llvm::object::ObjectFile::createObjectFile(llvm::MemoryBufferRef(bytes, "code object"));
  if (!object) {
    llvm::consumeError(object.takeError());
    return {};
  }
  // Damaged debug information must not spoil a report: errors and warnings are dropped.
  auto drop = [](llvm::Error error) { llvm::consumeError(std::move(error)); };
  auto context = llvm::DWARFContext::create(**object, llvm::DWARFContext::ProcessDebugRelocations::Process, nullptr, "",
                                            drop, drop);
  const auto found = context->getLineInfoForAddress({address, llvm::object::SectionedAddress::UndefSection});
  if (!found || found->Line == 0) return {};
  return {found->FileName, found->Line};
}

}  // namespace emu
