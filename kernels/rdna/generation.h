// A row of kernels.def is of one generation, and nothing to the other: FW_FOR_kIsaRdna3(...) is its argument or
// nothing.
#pragma once

#if defined(__GFX12__)
#define FW_FOR_kIsaRdna3(...)
#define FW_FOR_kIsaRdna4(...) __VA_ARGS__
#else
#define FW_FOR_kIsaRdna3(...) __VA_ARGS__
#define FW_FOR_kIsaRdna4(...)
#endif
