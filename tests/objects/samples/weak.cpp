// An inline function kept out of line: every object that uses it brings a copy, and the linker keeps one.
[[gnu::noinline]] inline float scale(float x) { return 2.0f * x; }

extern "C" float use_scale(float x) { return scale(x) + 1.0f; }
