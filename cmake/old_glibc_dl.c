/* As old_glibc.c, for libflashwave_torch.so: the C++ runtime is not in it, so that this is all it asks for. */
#include "old_glibc.h"

#pragma GCC visibility push(hidden)

/* 2.34: moved from libdl to libc. */
FROM_GLIBC(dlopen);
FROM_GLIBC(dlsym);
