// A list of kernels is compiled in parts, a code object each, so that no compilation takes long. The build names the
// part with -DFW_PART_<source>=1, where <source> is the first column of a row:
//
//   #define FW_AMD_KERNEL(source, ...) FW_IN_PART(source, FW_CDNA_FORWARD)(__VA_ARGS__)
//
// makes FW_CDNA_FORWARD(...) of the rows of that part and nothing of the others.
#pragma once

#define FW_IN_PART(source, macro) FW_PART_SECOND(FW_PART_MARK(FW_PART_##source) macro, FW_PART_NOTHING)
// "~," if the flag is 1, so that the macro is the second of three arguments; else one odd token before it, the first of
// two.
#define FW_PART_MARK(flag) FW_PART_MARK_OF(flag)
#define FW_PART_MARK_OF(flag) FW_PART_MARK_##flag
#define FW_PART_MARK_1 ~,
#define FW_PART_SECOND(...) FW_PART_SECOND_OF(__VA_ARGS__, ~)
#define FW_PART_SECOND_OF(first, second, ...) second
#define FW_PART_NOTHING(...)
