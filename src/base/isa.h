// Instruction sets a kernel may require and a device may offer, as bits: those that the lists of kernels name.
#pragma once

#include <cstdint>

namespace flashwave {

enum class IsaNumber : uint8_t {
#define FW_ISA(name, words) name,
#include "kernels/registry.def"
  kCount
};
static_assert(static_cast<int>(IsaNumber::kCount) <= 32);

enum Isa : uint32_t {
  kIsaNone = 0,
#define FW_ISA(name, words) name = 1u << static_cast<int>(IsaNumber::name),
#include "kernels/registry.def"
};

// Those whose kernels use tiles, which the operating system has to grant.
inline constexpr uint32_t kIsaTiles = kIsaAmx | kIsaAmxFp16;

// Those that kernels of CPUs are compiled for, on this kind of machine.
#if defined(__x86_64__)
inline constexpr uint32_t kCompiledCpuIsa = kIsaAvx2 | kIsaAvx512 | kIsaZen4 | kIsaTiles;
#elif defined(__aarch64__)
inline constexpr uint32_t kCompiledCpuIsa = kIsaNeon;
#else
inline constexpr uint32_t kCompiledCpuIsa = kIsaNone;
#endif

}  // namespace flashwave
