#include "text_kernel.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace emu_test {
namespace {

using emu::Family;
using emu::Target;
using emu::u32;
using emu::u64;

std::string prologue(const Target& target) {
  std::string text =
      target.family == Family::gfx9 ? "s_load_dwordx2 s[4:5], s[0:1], 0x0\n" : "s_load_b64 s[4:5], s[0:1], 0x0\n";
  text += target.family == Family::gfx12 ? "s_wait_kmcnt 0x0\n" : "s_waitcnt lgkmcnt(0)\n";
  return text +
         "v_and_b32 v0, 0x3ff, v0\nv_lshlrev_b32 v1, 2, v0\nv_mov_b32 v2, s4\nv_mov_b32 v3, s5\n"
         "s_mov_b32 s6, 0\ns_mov_b32 s7, 0\ns_nop 7\ns_nop 7\ns_nop 7\n";
}

std::string source_of(const TextKernel& kernel, const Target& target) {
  std::string text = ".text\n.globl kernel\n.type kernel,@function\n.p2align 8\nkernel:\n" + prologue(target) +
                     kernel.body +
                     "\ns_endpgm\n.rodata\n.p2align 6\n.amdhsa_kernel kernel\n.amdhsa_next_free_sgpr 100\n"
                     ".amdhsa_user_sgpr_kernarg_segment_ptr 1\n.amdhsa_kernarg_size 8\n.amdhsa_float_denorm_mode_32 3\n"
                     ".amdhsa_group_segment_fixed_size " +
                     std::to_string(kernel.lds_bytes) + "\n";
  text += target.cdna >= 2 ? ".amdhsa_next_free_vgpr 512\n.amdhsa_accum_offset 256\n" : ".amdhsa_next_free_vgpr 256\n";
  if (target.is_rdna()) text += ".amdhsa_wavefront_size32 1\n";
  return text + ".end_amdhsa_kernel\n";
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string build(const TextKernel& kernel, const Target& target) {
  std::string folder = (std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + std::string("/kernelXXXXXX");
  if (!mkdtemp(folder.data())) throw std::runtime_error("cannot make a folder for the assembler's files");
  std::ofstream(folder + "/text.s") << source_of(kernel, target);
  const std::string features = target.features.empty() ? "" : " -mattr=" + target.features;
  const std::string command =
      "cd '" + folder + "' && " + FLASHWAVE_LLVM_MC " -triple=amdgcn-amd-amdhsa -mcpu=" + target.name + features +
      " -filetype=obj text.s -o text.o 2>errors && " FLASHWAVE_LLD " -shared text.o -o text.so 2>>errors";
  const bool built = std::system(command.c_str()) == 0;
  const std::string object = built ? contents(folder + "/text.so") : contents(folder + "/errors");
  for (const char* file : {"/text.s", "/text.o", "/text.so", "/errors"}) unlink((folder + file).c_str());
  rmdir(folder.c_str());
  if (!built) throw std::runtime_error(object);
  return object;
}

}  // namespace

const emu::Program& program_of(const TextKernel& kernel) {
  static std::map<std::string, std::unique_ptr<emu::Program>> programs;
  const std::string key = kernel.target + " " + std::to_string(kernel.lds_bytes) + "\n" + kernel.body;
  std::unique_ptr<emu::Program>& program = programs[key];
  if (!program) {
    const std::string object = build(kernel, *emu::find_target(kernel.target));
    program = emu::load_program(object.data(), object.size());
  }
  return *program;
}

emu::LaunchResult launch(const TextKernel& kernel, emu::RunOptions options) {
  static std::vector<u32> buffer(16384);
  const emu::Program& program = program_of(kernel);
  emu::LaunchShape shape;
  const emu::Kernel& entry = program.kernels.at("kernel");
  shape.block[0] = static_cast<u32>(kernel.waves * entry.wave_size);
  const u64 address = reinterpret_cast<u64>(buffer.data());
  options.threads = 1;
  return emu::run_kernel(program, entry, shape, &address, sizeof address,
                         {{address, address + buffer.size() * 4, "the buffer", true, false}}, options);
}

}  // namespace emu_test
