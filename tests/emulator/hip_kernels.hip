// Kernels for the tests of the HIP surface.
#define KERNEL extern "C" __attribute__((global))
#define DEVICE __attribute__((device))

namespace {
DEVICE unsigned thread() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE unsigned index() { return __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() + thread(); }
}  // namespace

DEVICE __attribute__((used)) int table[4] = {10, 20, 30, 40};

KERNEL void scale(float* out, const float* in, int count, float factor) {
  if (index() < static_cast<unsigned>(count)) out[index()] = in[index()] * factor;
}

struct Mixed {
  char first;
  double second;
  int third[3];
};
KERNEL void arguments(double* out, char small, Mixed mixed, short tail) {
  if (thread() == 0) out[0] = small, out[1] = mixed.first, out[2] = mixed.second, out[3] = mixed.third[2], out[4] = tail;
}

KERNEL void lookup(int* out) { out[thread()] = table[thread() & 3]; }

KERNEL void past_end(float* out, int count) { out[count + thread()] = 1.0f; }

KERNEL void uninitialised(float* out) {
  float value;
  asm volatile("v_mov_b32 %0, v100" : "=v"(value)::"v100");
  out[thread()] = value;
}

KERNEL __attribute__((amdgpu_flat_work_group_size(1, 64))) void small_groups(int* out) { out[thread()] = 1; }

extern __attribute__((shared)) int dynamic_shared[];
KERNEL void reverse(int* out, int count) {
  dynamic_shared[thread()] = thread();
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  out[thread()] = dynamic_shared[count - 1 - thread()];
}
