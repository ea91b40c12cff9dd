// The complete slow path of every AMD GPU: forward (generic_fwd.h) and the passes of the backward (generic_bwd.h), for
// each storage type.
#include "kernels/amd/generic_bwd.h"
#include "kernels/amd/generic_fwd.h"

namespace flashwave {

#define FW_FORWARD(name, T)                             \
  FW_KERNEL(kThreads) name(GpuArguments args) {         \
    FW_SHARED TileMemory memory;                        \
    const int64_t task = task_index();                  \
    if (task >= args.schedule.tasks) return;            \
    GenericForward<T>(args.params, memory, task).run(); \
  }
#define FW_BACKWARD(name, T, pass)               \
  FW_KERNEL(kThreads) name(GpuArguments args) {  \
    FW_SHARED TileMemory memory;                 \
    const int64_t task = task_index();           \
    if (task >= args.schedule.tasks) return;     \
    GenericBackward<T>(args, memory).pass(task); \
  }
#define FW_ALL_OF(type, T)                               \
  FW_FORWARD(amd_generic_fwd_##type, T)                  \
  FW_BACKWARD(amd_generic_bwd_##type, T, delta_pass)     \
  FW_BACKWARD(amd_generic_bwd_dq_##type, T, dq_pass)     \
  FW_BACKWARD(amd_generic_bwd_dkdv_##type, T, dkdv_pass) \
  FW_BACKWARD(amd_generic_bwd_dbias_##type, T, d_bias_pass)

FW_ALL_OF(f16, _Float16)
FW_ALL_OF(bf16, BFloat16)
FW_ALL_OF(f32, float)
FW_BACKWARD(amd_generic_bwd_sums, float, sums_pass)  // whatever the type

}  // namespace flashwave
