// The structs as fw_*_init leaves them, at the size this library knows.
#pragma once

#include "flashwave/flashwave.h"

namespace flashwave::api {

fw_attention default_attention();
fw_gradients default_gradients();
fw_rotary_embedding default_rotary();
fw_merging default_merging();
fw_exec default_exec();

// Sizes of the structs in their first release (0.1). A caller's struct is never smaller.
inline constexpr size_t kAttentionFirstSize = 776;
inline constexpr size_t kGradientsFirstSize = 312;
inline constexpr size_t kRotaryFirstSize = 280;
inline constexpr size_t kMergingFirstSize = 232;
inline constexpr size_t kExecFirstSize = 56;
inline constexpr size_t kReportFirstSize = 128;
inline constexpr size_t kDeviceInfoFirstSize = 232;
inline constexpr size_t kCostFirstSize = 24;

}  // namespace flashwave::api
