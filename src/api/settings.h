// What the environment and the process decide for every call. The environment is read at each call.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "catalog/catalog.h"

namespace flashwave::api {

inline constexpr int32_t kMostThreads = 1024;

// Threads a call may use when it does not say: fw_set_num_threads, else FLASHWAVE_NUM_THREADS, else all cores that
// this process may use.
Status default_threads(int32_t* threads);

// The name in FLASHWAVE_FORCE_KERNEL (one, or several with commas between them) that is a kernel for the operation;
// empty if the variable is not set. FW_UNSUPPORTED if it is set and none is.
Status forced_kernel(Op op, std::string* name);

// Whether any variable is set that the functions below or forced_kernel read. One look at the environment in place of
// one for each: with 35 variables in it those take as long as planning a small call.
bool environment_steers();

// Switches are on for 1, true, on and yes, in any case.
bool debug_wanted();          // FLASH_ATTENTION_DEBUG
bool index_checks_wanted();   // FLASHWAVE_CHECK_INDEXES: lengths and places in a GPU's memory are read and checked
bool deterministic_wanted();  // FLASH_ATTENTION_INTERNAL_DETERMINISTIC: as if every call had FW_DETERMINISTIC
// As if every call had FW_FAST_ROUNDING: FLASHWAVE_FAST_ROUNDING; on AMD GPUs FLASH_ATTENTION_INTERNAL_USE_RTZ too or,
// where that is not set, FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE.
bool fast_rounding_wanted(bool on_amd);
bool bf16_products_wanted(bool on_amd);  // FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE: fp16 is multiplied as bf16

}  // namespace flashwave::api
