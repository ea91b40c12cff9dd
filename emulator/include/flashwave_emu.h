/* The emulator's own switches and results. libflashwave_emu.so is loaded in place of libamdhip64.so and exports its
 * hip* functions; these functions come in addition. All are safe to call from any number of threads.
 *
 * Options, each also an environment variable FLASHWAVE_EMU_NAME that is read when the library is first used:
 *   check     1 (default): a launch in which a checker finds a mistake fails with hipErrorLaunchFailure;
 *             report: such mistakes are only collected; 0: no checking. An access outside of every allocation always
 *             fails with hipErrorIllegalAddress.
 *   checks    which checkers are on: names with commas between them, or all (default)
 *   strict    1: also demand that a wave's reads of LDS have been waited for before a barrier after which another wave
 *             overwrites them with LDS instructions, although the LDS unit works in order; 0 (default)
 *   hazards   compiler (default): all wait states that LLVM keeps between instructions; assembly: not those between
 *             neighbouring vector instructions, which hand-written kernels often leave out
 *   barriers  same (default): the waves of a workgroup must meet at one barrier instruction; counted: at any, as on the
 *             hardware, which counts arrivals
 *   count     1: also count bank conflicts and bytes (slower); 0 (default): instructions only
 *   model     1: also model how the first workgroup's instructions issue (implies count); 0 (default)
 *   order     of the waves of a workgroup: waves (default): one after the other, each up to its next barrier; lockstep:
 *             every wave one instruction in turn, whatever seed says; compare: both, from the same memory and with one
 *             workgroup at a time. A launch whose memory differs afterwards is reported, and a report of a race says
 *             whether it does. What the first order leaves is kept
 *   seed      0 (default): waves and workgroups in order; else a random interleaving of both
 *   reverse   1: workgroups from last to first; 0 (default)
 *   threads   workgroups that run at a time; 0 (default): one per core
 *   numerics  how matrix instructions round sums: chain (default: one multiply-add after the other), or hardware (bit
 *             for bit as real ones do, where that has been published; slower)
 *   log       1: reports are also written to stderr; 0 (default)
 * And FLASHWAVE_EMU_ARCH: the GPUs that hipGetDeviceCount counts, with commas between them (default gfx942);
 * FLASHWAVE_EMU_AVX512=0: as on a CPU without AVX-512 (slower, with the same results).
 */
#ifndef FLASHWAVE_EMU_H
#define FLASHWAVE_EMU_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FWEMU_API __attribute__((visibility("default")))

FWEMU_API const char* fwemu_version(void);
FWEMU_API const char* fwemu_architectures(void); /* "gfx90a, gfx942, ..." */

/* 0, or a hipError_t; what is wrong is then in fwemu_last_error(). */
FWEMU_API int fwemu_set_option(const char* name, const char* value);

/* The index of the device of that architecture; the first call for one adds it. 0, or a hipError_t. */
FWEMU_API int fwemu_open(const char* architecture, int* index);
/* Always adds one. Its index, or -1. */
FWEMU_API int fwemu_add_device(const char* architecture);

/* The detail behind the calling thread's latest failed hip* or fwemu_* call; "" if there was none. Valid until the next
 * call of this thread. */
FWEMU_API const char* fwemu_last_error(void);

/* What the checkers found since the last fwemu_clear_reports, as text. Writes at most capacity bytes including the
 * final 0 and returns how many there are, the 0 included. */
FWEMU_API size_t fwemu_reports(char* buffer, size_t capacity);
FWEMU_API size_t fwemu_report_count(void);
FWEMU_API void fwemu_clear_reports(void);

/* The launches on a device (-1: on all) since fwemu_reset_counters, as a JSON array; the buffer as in fwemu_reports.
 * An element has "kernel", "device", "arch", "grid", "block", "dynamic_lds", "counters" and, with the option model,
 * "model". The latest 1024 launches are kept. */
FWEMU_API size_t fwemu_counters_json(int device, char* buffer, size_t capacity);
FWEMU_API void fwemu_reset_counters(int device);

#ifdef __cplusplus
}
#endif
#endif
