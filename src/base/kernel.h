// A kernel as a device starts it. Every row of the catalog is one, with the conditions under which it is chosen; plans
// hand it to the device, which needs no list of its own.
#pragma once

#include <cstdint>

namespace flashwave {

namespace abi {
struct CpuLaunch;
struct Params;
}  // namespace abi
using CpuFunction = void (*)(const abi::Params&, const abi::CpuLaunch&);

struct Kernel {
  const char* name;        // symbol = catalog row = CLI name = test name
  const char* source;      // GPU: what it is compiled from: "cdna_fwd_d64" is a part of kernels/cdna/fwd.hip
  int32_t threads;         // GPU: of a workgroup; 0 for kernels of CPUs
  int32_t lds_bytes;       // GPU: memory that a workgroup shares, beside what the kernel declares
  CpuFunction function{};  // CPU: nullptr if it is not compiled for this kind of machine
};

}  // namespace flashwave
