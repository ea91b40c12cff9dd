#pragma once

// Defines the kernel `name` of kernels.def as `function`<storage type>.
#define FW_CPU_ENTRY(name, function)                              \
  void name(const abi::Params& p, const abi::CpuLaunch& launch) { \
    switch (p.q.dtype) {                                          \
      case abi::kF16:                                             \
        return function<Half>(p, launch);                         \
      case abi::kBF16:                                            \
        return function<BFloat16>(p, launch);                     \
      default:                                                    \
        return function<float>(p, launch);                        \
    }                                                             \
  }
