// A library with one symbol too many when LEAKY is set, and one it does not define when NEEDY is.
extern "C" __attribute__((visibility("default"))) int fw_answer() { return 42; }
#ifdef LEAKY
__attribute__((visibility("default"))) int helper(int x) { return x + 1; }
#endif
#ifdef NEEDY
extern "C" int somewhere_else(int);
extern "C" __attribute__((visibility("default"))) int fw_needy() { return somewhere_else(1); }
#endif
