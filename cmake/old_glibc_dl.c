/* As old_glibc.c, for libflashwave_torch.so (x86-64): the C++ runtime is not in it, so that this is all it asks for. */
#pragma GCC visibility push(hidden)

#define FROM_GLIBC(name, version)                                                                                \
  __asm__(".text\n.globl " #name "\n.hidden " #name "\n.type " #name ", @function\n.symver old_" #name "," #name \
          "@GLIBC_" version "\n" #name ": jmp *old_" #name "@GOTPCREL(%rip)\n.size " #name ", . - " #name "\n")

/* 2.34: moved from libdl to libc. */
FROM_GLIBC(dlopen, "2.2.5");
FROM_GLIBC(dlsym, "2.2.5");
