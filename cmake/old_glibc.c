/* Lets a library linked on a new Linux run on an old one (x86-64 or aarch64): the Python wheel, see wheel.cmake, and
 * the emulator. The linker binds each function of glibc at the newest version it finds; where a function got a new
 * version for reasons that do not concern us (it moved to another library, it stopped setting errno), the older one is
 * asked for here, and what the static C++ runtime takes from the newest glibc alone is defined here. Nothing of this is
 * exported.
 */
#define _GNU_SOURCE
#include "old_glibc.h"

#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/random.h>
#include <sys/stat.h>

#pragma GCC visibility push(hidden)

/* 2.29: no longer calls the error handler of System V. */
FROM_GLIBC(exp);
FROM_GLIBC(log);
FROM_GLIBC(pow);

/* 2.32 and 2.34: moved from libpthread and libdl to libc. */
FROM_GLIBC(pthread_create);
FROM_GLIBC(pthread_detach);
FROM_GLIBC(pthread_getspecific);
FROM_GLIBC(pthread_join);
FROM_GLIBC(pthread_key_create);
FROM_GLIBC(pthread_key_delete);
FROM_GLIBC(__pthread_key_create);
FROM_GLIBC(pthread_once);
FROM_GLIBC(pthread_rwlock_rdlock);
FROM_GLIBC(pthread_rwlock_unlock);
FROM_GLIBC(pthread_rwlock_wrlock);
FROM_GLIBC(pthread_setspecific);
FROM_GLIBC(pthread_sigmask);
FROM_GLIBC(dladdr);
FROM_GLIBC(dlclose);
FROM_GLIBC(dlerror);
FROM_GLIBC(dlopen);
FROM_GLIBC(dlsym);

/* 2.33: functions of their own; before, the header turned them into these. struct stat is struct stat64 here. */
__asm__(".symver old_fxstat64,__fxstat64@GLIBC_" OLDEST_GLIBC);
__asm__(".symver old_xstat64,__xstat64@GLIBC_" OLDEST_GLIBC);
extern int old_fxstat64(int version, int descriptor, struct stat64 *status) __attribute__((visibility("default")));
extern int old_xstat64(int version, const char *path, struct stat64 *status) __attribute__((visibility("default")));
#if defined(__x86_64__)
enum { kStatVersion = 1 };
#else
enum { kStatVersion = 0 };
#endif
int fstat64(int descriptor, struct stat64 *status) { return old_fxstat64(kStatVersion, descriptor, status); }
int fstat(int descriptor, struct stat *status) {
  return old_fxstat64(kStatVersion, descriptor, (struct stat64 *)status);
}
int stat(const char *restrict path, struct stat *restrict status) {
  return old_xstat64(kStatVersion, path, (struct stat64 *)status);
}

/* 2.38: numbers may begin with 0b, which nobody here asks for. Not by a call: its headers would call these again. */
#define WITHOUT_BINARY(name) JUMP_TO_OLDEST(__isoc23_##name, name)
WITHOUT_BINARY(strtol);
WITHOUT_BINARY(strtoll);
WITHOUT_BINARY(strtoul);
WITHOUT_BINARY(strtoull);
WITHOUT_BINARY(sscanf);
WITHOUT_BINARY(fscanf);

/* 2.32: lets the C++ runtime count references without atomic instructions. Never, here. */
char __libc_single_threaded = 0;

/* 2.36: what std::random_device takes its numbers from. */
uint32_t arc4random(void) {
  uint32_t number = 0;
  while (getrandom(&number, sizeof number, 0) != sizeof number) {
  }
  return number;
}

/* 2.35: how the C++ runtime finds the unwind tables of a program counter. Only on the way of an exception, so that
 * looking through the loaded objects is fast enough. */
struct search {
  uintptr_t address;
  struct dl_find_object *found;
};

static int covers_address(struct dl_phdr_info *object, size_t size, void *context) {
  struct search *search = context;
  const void *unwind_tables = NULL;
  int covered = 0;
  (void)size;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr) *header = &object->dlpi_phdr[i];
    const uintptr_t start = object->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_LOAD && search->address - start < header->p_memsz) {
      covered = 1;
      search->found->dlfo_map_start = (void *)start;
      search->found->dlfo_map_end = (void *)(start + header->p_memsz);
    }
    if (header->p_type == PT_GNU_EH_FRAME) {
      unwind_tables = (const void *)start;
    }
  }
  if (covered == 0 || unwind_tables == NULL) {
    return 0;
  }
  search->found->dlfo_eh_frame = (void *)unwind_tables;
  return 1;
}

int _dl_find_object(void *address, struct dl_find_object *found) {
  struct search search = {(uintptr_t)address, found};
  *found = (struct dl_find_object){0};
  return dl_iterate_phdr(covers_address, &search) == 1 ? 0 : -1;
}
