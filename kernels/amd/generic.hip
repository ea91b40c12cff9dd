// The complete slow path of every AMD GPU: see generic_fwd.h and generic_bwd.h.
#include "kernels/amd/generic_fwd.h"

namespace flashwave {

template <class T>
FW_DEVICE void generic_forward(const GpuArguments& args) {
  FW_SHARED static TileMemory memory;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  GenericForward<T>(args.params, memory, task).run();
}

FW_KERNEL(kThreads) amd_generic_fwd_f16(GpuArguments args) { generic_forward<_Float16>(args); }
FW_KERNEL(kThreads) amd_generic_fwd_bf16(GpuArguments args) { generic_forward<BFloat16>(args); }
FW_KERNEL(kThreads) amd_generic_fwd_f32(GpuArguments args) { generic_forward<float>(args); }

}  // namespace flashwave
