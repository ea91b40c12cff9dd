// One call's arguments, read from the caller's structs and checked, on their way to a plan.
#pragma once

#include "base/status.h"
#include "device/driver.h"
#include "flashwave/flashwave.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace flashwave::api {

struct Call {
  Device* device = nullptr;
  Problem problem;
  fw_exec exec{};
  int32_t threads = 1;  // at most this many

  const DeviceInfo& info() const { return device->info(); }
  Op op() const { return problem.backward ? Op::kBackward : Op::kForward; }
};

enum class Check { kStructs, kEverything };  // kStructs: the problem's memory is not looked at

// Copies the caller's structs and checks them. backward: gradients are given. exec may be nullptr.
Status read_call(fw_device* device, const fw_attention* attention, const fw_gradients* gradients, bool backward,
                 const fw_exec* exec, Check check, Call* call);

// With the kernel that the caller or the environment forces.
Status plan_call(const Call& call, Plan* plan);

// Sets the outputs of a backward that has no query to 0: the gradients of everything that is still there.
Status clear_outputs(const Call& call);

}  // namespace flashwave::api
