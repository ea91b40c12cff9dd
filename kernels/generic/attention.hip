// The complete slow path of every GPU: forward (fwd.h) and the passes of the backward (bwd.h), for
// each storage type.
#include "kernels/generic/bwd.h"
#include "kernels/generic/fwd.h"

namespace flashwave {

#define FW_FORWARD(name, T)                               \
  FW_KERNEL(kThreads) FW_NAME(name)(FW_ARGUMENTS(args)) { \
    FW_SHARED TileMemory memory;                          \
    const int64_t task = task_index();                    \
    if (task >= args.schedule.tasks) return;              \
    GenericForward<T>(args.params, memory, task).run();   \
  }
#define FW_BACKWARD(name, T, pass)                        \
  FW_KERNEL(kThreads) FW_NAME(name)(FW_ARGUMENTS(args)) { \
    FW_SHARED TileMemory memory;                          \
    const int64_t task = task_index();                    \
    if (task >= args.schedule.tasks) return;              \
    GenericBackward<T>(args, memory).pass(task);          \
  }
#define FW_ALL_OF(type, T)                           \
  FW_FORWARD(generic_fwd_##type, T)                  \
  FW_BACKWARD(generic_bwd_##type, T, delta_pass)     \
  FW_BACKWARD(generic_bwd_dq_##type, T, dq_pass)     \
  FW_BACKWARD(generic_bwd_dkdv_##type, T, dkdv_pass) \
  FW_BACKWARD(generic_bwd_dbias_##type, T, d_bias_pass)

FW_ALL_OF(f16, _Float16)
FW_ALL_OF(bf16, BFloat16)
FW_ALL_OF(f32, float)
FW_BACKWARD(generic_bwd_sums, float, sums_pass)  // whatever the type

}  // namespace flashwave
