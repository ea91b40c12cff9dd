/* How a function of an old version of glibc is asked for, on each kind of machine. */

#if defined(__x86_64__)
#define OLDEST_GLIBC "2.2.5"
#define JUMP_TO(symbol) "jmp *" symbol "@GOTPCREL(%rip)\n"
#elif defined(__aarch64__)
#define OLDEST_GLIBC "2.17"
#define JUMP_TO(symbol) "adrp x16, :got:" symbol "\nldr x16, [x16, :got_lo12:" symbol "]\nbr x16\n"
#endif

/* Defines NAME, for this library, as a jump to the oldest version of OF. */
#define JUMP_TO_OLDEST(name, of)                                                                             \
  __asm__(".text\n.globl " #name "\n.hidden " #name "\n.type " #name ", @function\n.symver old_" #of "," #of \
          "@GLIBC_" OLDEST_GLIBC "\n" #name ":\n" JUMP_TO("old_" #of) ".size " #name ", . - " #name "\n")

#define FROM_GLIBC(name) JUMP_TO_OLDEST(name, name)
