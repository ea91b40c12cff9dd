// One instruction where the CPU has atomic additions, a loop where it has not.
extern "C" long count(long* p) { return __atomic_fetch_add(p, 1, __ATOMIC_RELAXED); }
