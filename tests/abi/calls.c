/* A C program against the shared library: what a binding in any language relies on. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "flashwave/flashwave.h"

enum { kRows = 4, kHeads = 2, kDim = 8, kElements = kRows * kHeads * kDim };

typedef struct {
  float q[kElements], k[kElements], v[kElements], o[kElements], lse[kRows * kHeads];
  float d_o[kElements], dq[kElements], dk[kElements], dv[kElements], sinks[kHeads], d_sinks[kHeads];
} memory;

static fw_tensor view(float *data, int64_t dim) {
  fw_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.stride[0] = kRows * kHeads * dim;
  t.stride[1] = kHeads * dim;
  t.stride[2] = dim;
  t.stride[3] = 1;
  t.dtype = FW_F32;
  return t;
}

static fw_attention make_problem(memory *m) {
  fw_attention a;
  int i;
  for (i = 0; i < kElements; ++i) {
    m->q[i] = sinf((float)i), m->k[i] = cosf((float)i), m->v[i] = (float)i, m->d_o[i] = 1;
  }
  fw_attention_init(&a, sizeof a);
  a.batch = 1, a.seqlen_q = a.seqlen_k = kRows, a.heads_q = a.heads_k = kHeads, a.dim_qk = a.dim_v = kDim;
  a.q = view(m->q, kDim), a.k = view(m->k, kDim), a.v = view(m->v, kDim), a.o = view(m->o, kDim);
  a.lse = view(m->lse, 1);
  return a;
}

static void test_defaults(void) {
  fw_attention a;
  fw_gradients g;
  fw_exec e;
  struct {
    fw_attention known;
    unsigned char more[16];
  } newer;
  size_t i;
  memset(&a, 0xAB, sizeof a);
  fw_attention_init(&a, sizeof a);
  CHECK(a.struct_size == sizeof a);
  CHECK(a.softmax_scale == FW_SCALE_AUTO);
  CHECK(a.window_left == -1 && a.window_right == -1);
  CHECK(a.q.data == NULL && a.flags == 0 && a.num_splits == 0 && a.probs.reserved == 0);
  memset(&g, 0xAB, sizeof g);
  fw_gradients_init(&g, sizeof g);
  CHECK(g.struct_size == sizeof g && g.reserved == 0 && g.d_slopes == NULL);
  memset(&e, 0xAB, sizeof e);
  fw_exec_init(&e, sizeof e);
  CHECK(e.struct_size == sizeof e && e.num_threads == 0 && e.report == NULL);
  memset(&newer, 0xAB, sizeof newer);
  fw_attention_init(&newer.known, sizeof newer);
  CHECK(newer.known.struct_size == sizeof newer);
  for (i = 0; i < sizeof newer.more; ++i) CHECK(newer.more[i] == 0);
}

static void test_struct_sizes(fw_device *device) {
  static memory m;
  struct {
    fw_attention known;
    unsigned char more[16];
  } newer;
  fw_attention a = make_problem(&m);
  fw_cost cost;
  fw_device_info info;
  fw_exec e;
  fw_report report;
  memset(&newer, 0, sizeof newer);
  newer.known = a;
  newer.known.struct_size = sizeof newer;
  CHECK(fw_forward(device, &newer.known, NULL) == FW_OK);
  newer.more[3] = 1;
  CHECK_ERROR(fw_forward(device, &newer.known, NULL), FW_INVALID_ARGUMENT, "newer flashwave");
  a.struct_size = 0;
  CHECK_ERROR(fw_forward(device, &a, NULL), FW_INVALID_ARGUMENT, "call fw_attention_init");
  a.struct_size = 776; /* of the first release: it ends before dropout_state */
  a.dropout_state = (const uint64_t *)1;
  CHECK(fw_forward(device, &a, NULL) == FW_OK);
  a.dropout_state = NULL;
  a.struct_size = 768;
  CHECK_ERROR(fw_forward(device, &a, NULL), FW_INVALID_ARGUMENT, "attention.struct_size is 768");
  a.struct_size = sizeof a;
  memset(&cost, 0, sizeof cost);
  CHECK_ERROR(fw_problem_cost(device, &a, NULL, &cost), FW_INVALID_ARGUMENT, "cost.struct_size is 0");
  cost.struct_size = sizeof cost;
  CHECK(fw_problem_cost(device, &a, NULL, &cost) == FW_OK);
  CHECK(cost.flops == 2.0 * (kDim + kDim) * kRows * kRows * kHeads);
  memset(&info, 0, sizeof info);
  CHECK_ERROR(fw_device_query(device, &info), FW_INVALID_ARGUMENT, "sizeof(fw_device_info)");
  fw_exec_init(&e, sizeof e);
  memset(&report, 0, sizeof report);
  e.report = &report;
  CHECK_ERROR(fw_forward(device, &a, &e), FW_INVALID_ARGUMENT, "exec.report.struct_size");
  report.struct_size = sizeof report;
  CHECK(fw_forward(device, &a, &e) == FW_OK);
  CHECK(strcmp(report.device, "cpu") == 0 && report.kernel[0] != '\0' && report.threads == 1);
  CHECK(report.struct_size == sizeof report);
}

static void test_arguments(fw_device *device) {
  static memory m;
  fw_attention a = make_problem(&m);
  fw_gradients g;
  fw_exec e;
  fw_executor executor = {NULL, NULL};
  size_t bytes;
  char text[8];
  void *pointer;
  fw_device *other = device;
  CHECK_ERROR(fw_forward(NULL, &a, NULL), FW_INVALID_ARGUMENT, "device must not be NULL");
  CHECK_ERROR(fw_forward(device, NULL, NULL), FW_INVALID_ARGUMENT, "attention must not be NULL");
  CHECK_ERROR(fw_backward(device, &a, NULL, NULL), FW_INVALID_ARGUMENT, "gradients must not be NULL");
  fw_gradients_init(&g, 8);
  CHECK_ERROR(fw_backward(device, &a, &g, NULL), FW_INVALID_ARGUMENT, "call fw_gradients_init");
  fw_exec_init(&e, sizeof e);
  e.num_threads = -1;
  CHECK_ERROR(fw_forward(device, &a, &e), FW_INVALID_ARGUMENT, "exec.num_threads");
  fw_exec_init(&e, sizeof e);
  e.stream = &e;
  CHECK_ERROR(fw_forward(device, &a, &e), FW_INVALID_ARGUMENT, "exec.stream must be NULL on the CPU");
  fw_exec_init(&e, sizeof e);
  e.workspace_size = 64;
  CHECK_ERROR(fw_forward(device, &a, &e), FW_INVALID_ARGUMENT, "exec.workspace must not be NULL");
  e.workspace = (char *)0x1001;
  CHECK_ERROR(fw_forward(device, &a, &e), FW_INVALID_ARGUMENT, "exec.workspace must be aligned to 64 bytes");
  fw_exec_init(&e, sizeof e);
  e.executor = &executor;
  CHECK_ERROR(fw_forward(device, &a, &e), FW_INVALID_ARGUMENT, "exec.executor.run");
  fw_exec_init(&e, sizeof e);
  e.force_kernel = "no_such_kernel";
  CHECK_ERROR(fw_forward(device, &a, &e), FW_UNSUPPORTED, "no_such_kernel");
  CHECK_ERROR(fw_workspace_size(device, &a, NULL, &e, &bytes), FW_UNSUPPORTED, "no_such_kernel");
  e.force_kernel = "";
  CHECK(fw_forward(device, &a, &e) == FW_UNSUPPORTED);
  CHECK_ERROR(fw_workspace_size(device, &a, NULL, NULL, NULL), FW_INVALID_ARGUMENT, "bytes must not be NULL");
  CHECK_ERROR(fw_explain(device, &a, NULL, NULL, FW_TEXT, NULL, 8, NULL), FW_INVALID_ARGUMENT, "buffer");
  CHECK(fw_explain(device, &a, NULL, NULL, FW_TEXT, text, sizeof text, &bytes) == FW_OK);
  CHECK(strlen(text) == sizeof text - 1 && bytes > sizeof text);
  CHECK_ERROR(fw_device_counters(device, text, sizeof text, &bytes), FW_UNSUPPORTED, "cpu has no counters");
  CHECK(text[0] == '\0' && bytes == 0);
  CHECK_ERROR(fw_device_counters(device, NULL, 1, NULL), FW_INVALID_ARGUMENT, "buffer");
  CHECK_ERROR(fw_device_counters(NULL, NULL, 0, NULL), FW_INVALID_ARGUMENT, "device");
  CHECK_ERROR(fw_device_open("warp9", &other), FW_NO_DEVICE, "warp9");
  CHECK(other == NULL);
  CHECK_ERROR(fw_device_open(NULL, &other), FW_INVALID_ARGUMENT, "name must not be NULL");
  CHECK_ERROR(fw_device_at(fw_device_count(), &other), FW_NO_DEVICE, "index must be in");
  CHECK_ERROR(fw_device_at(-1, &other), FW_NO_DEVICE, "index must be in");
  CHECK_ERROR(fw_device_alloc(device, 8, NULL), FW_INVALID_ARGUMENT, "pointer must not be NULL");
  CHECK_ERROR(fw_device_copy(device, NULL, text, 1, FW_HOST_TO_DEVICE, NULL), FW_INVALID_ARGUMENT, "destination");
  CHECK_ERROR(fw_device_copy(device, text, text, 1, (fw_copy_kind)3, NULL), FW_INVALID_ARGUMENT, "kind must be");
  CHECK_ERROR(fw_set_num_threads(-3), FW_INVALID_ARGUMENT, "threads must be at least 0");
  CHECK(fw_device_alloc(device, 0, &pointer) == FW_OK && pointer == NULL);
  CHECK(fw_device_free(device, NULL) == FW_OK);
  CHECK(fw_device_copy(device, NULL, NULL, 0, FW_DEVICE_TO_HOST, NULL) == FW_OK);
}

static void *allocate(void *context, size_t bytes) {
  void **lent = context;
  CHECK(*lent == NULL && bytes > 0); /* asked once, and only for something */
  return posix_memalign(lent, 64, bytes) == 0 ? *lent : NULL;
}

static void *refuse(void *context, size_t bytes) {
  (void)context, (void)bytes;
  return NULL;
}

static void *shifted(void *context, size_t bytes) {
  (void)bytes;
  return (char *)context + 8;
}

/* The memory of a call from the caller, after it is planned. */
static void test_allocate(fw_device *device) {
  static memory m;
  float expected[kElements];
  void *lent = NULL;
  size_t bytes = 0;
  fw_attention a = make_problem(&m);
  fw_exec e;
  fw_report report;
  fw_exec_init(&e, sizeof e);
  memset(&report, 0, sizeof report);
  report.struct_size = sizeof report;
  e.report = &report;
  CHECK(fw_workspace_size(device, &a, NULL, &e, &bytes) == FW_OK && bytes > 0);
  CHECK(fw_forward(device, &a, &e) == FW_OK && report.workspace_size == bytes);
  memcpy(expected, m.o, sizeof expected);
  memset(m.o, 0, sizeof m.o);
  e.allocate = allocate, e.allocate_context = &lent;
  CHECK(fw_forward(device, &a, &e) == FW_OK && lent != NULL);
  CHECK(memcmp(expected, m.o, sizeof expected) == 0);
  e.workspace = lent, e.workspace_size = bytes; /* given: nobody is asked */
  CHECK(fw_forward(device, &a, &e) == FW_OK);
  free(lent);
  e.workspace = NULL, e.workspace_size = 0;
  e.allocate = refuse;
  CHECK_ERROR(fw_forward(device, &a, &e), FW_OUT_OF_MEMORY, "bytes of workspace");
  static _Alignas(64) char aligned[128];
  e.allocate = shifted, e.allocate_context = aligned;
  CHECK_ERROR(fw_forward(device, &a, &e), FW_INVALID_ARGUMENT, "exec.allocate must return memory that is aligned");
}

static void test_exec_flags(fw_device *device) {
  static memory m;
  fw_attention a = make_problem(&m);
  fw_exec e;
  fw_exec_init(&e, sizeof e);
  e.flags = 2;
  CHECK_ERROR(fw_forward(device, &a, &e), FW_INVALID_ARGUMENT, "exec.flags has unknown bits");
  e.flags = FW_NO_SLOW_PATH;
  CHECK(fw_forward(device, &a, &e) == FW_OK);
  e.force_kernel = "reference_fwd"; /* who names it wants it */
  CHECK(fw_forward(device, &a, &e) == FW_OK);
  fw_exec_init(&e, sizeof e);
  e.reserved = 1;
  CHECK_ERROR(fw_forward(device, &a, &e), FW_INVALID_ARGUMENT, "exec.reserved must be 0");
}

/* The same numbers by value and in memory drop the same. */
static void test_dropout_state(fw_device *device) {
  static memory m;
  float expected[kElements];
  uint64_t state[3] = {7, 9, 0};
  fw_attention a = make_problem(&m);
  a.dropout_p = 0.5f, a.dropout_seed = 7, a.dropout_offset = 9;
  CHECK(fw_forward(device, &a, NULL) == FW_OK);
  memcpy(expected, m.o, sizeof expected);
  a.dropout_seed = a.dropout_offset = 1;
  a.dropout_state = state;
  CHECK(fw_forward(device, &a, NULL) == FW_OK);
  CHECK(memcmp(expected, m.o, sizeof expected) == 0);
  state[1] = 8;
  CHECK(fw_forward(device, &a, NULL) == FW_OK);
  CHECK(memcmp(expected, m.o, sizeof expected) != 0);
  a.dropout_state = (const uint64_t *)((const char *)state + 4);
  CHECK_ERROR(fw_forward(device, &a, NULL), FW_INVALID_ARGUMENT, "dropout_state must be aligned to 8 bytes");
}

static void test_attention(fw_device *device) {
  static memory m;
  int i;
  fw_attention a = make_problem(&m);
  fw_gradients g;
  a.flags = FW_CAUSAL;
  for (i = 0; i < kElements; ++i) m.o[i] = NAN;
  CHECK(fw_forward(device, &a, NULL) == FW_OK);
  for (i = 0; i < kHeads * kDim; ++i) CHECK(m.o[i] == m.v[i]); /* the first query sees the first key alone */
  for (i = 0; i < kElements; ++i) CHECK(isfinite(m.o[i]));
  fw_gradients_init(&g, sizeof g);
  g.d_o = view(m.d_o, kDim), g.dq = view(m.dq, kDim), g.dk = view(m.dk, kDim), g.dv = view(m.dv, kDim);
  CHECK(fw_backward(device, &a, &g, NULL) == FW_OK);
  float sum = 0;
  for (i = 0; i < kElements; ++i) sum += m.dv[i];
  CHECK(fabsf(sum - kElements) < 1e-3f); /* each softmax row sums to 1, each d_o is 1 */
}

static void test_rotary(fw_device *device) {
  static memory m;
  struct {
    fw_rotary_embedding known;
    unsigned char more[16];
  } newer;
  const float cosine = 0, sine = 1; /* a quarter turn of every row */
  int i;
  fw_rotary_embedding r;
  memset(&r, 0xAB, sizeof r);
  fw_rotary_embedding_init(&r, sizeof r);
  CHECK(r.struct_size == sizeof r && r.flags == 0 && r.seqlen_offset == 0 && r.cu_seqlens == NULL && r.x.data == NULL);
  for (i = 0; i < kElements; ++i) m.q[i] = (float)i, m.o[i] = NAN;
  r.batch = 1, r.seqlen = kRows, r.heads = kHeads, r.dim = kDim, r.rotary_dim = 2, r.rotary_seqlen = kRows;
  r.x = view(m.q, kDim), r.out = view(m.o, kDim);
  r.cos.data = (void *)&cosine, r.sin.data = (void *)&sine;
  r.cos.dtype = r.sin.dtype = FW_F32;
  CHECK(fw_rotary(device, &r, NULL) == FW_OK);
  for (i = 0; i < kElements; ++i) CHECK(m.o[i] == (i % kDim == 0 ? -m.q[i + 1] : i % kDim == 1 ? m.q[i - 1] : m.q[i]));
  r.x = r.out, r.flags = FW_ROTARY_CONJUGATE; /* in place, back again */
  CHECK(fw_rotary(device, &r, NULL) == FW_OK);
  for (i = 0; i < kElements; ++i) CHECK(m.o[i] == m.q[i]);

  memset(&newer, 0, sizeof newer);
  newer.known = r;
  newer.known.struct_size = sizeof newer;
  CHECK(fw_rotary(device, &newer.known, NULL) == FW_OK);
  newer.more[0] = 1;
  CHECK_ERROR(fw_rotary(device, &newer.known, NULL), FW_INVALID_ARGUMENT, "newer flashwave");
  CHECK_ERROR(fw_rotary(NULL, &r, NULL), FW_INVALID_ARGUMENT, "device must not be NULL");
  CHECK_ERROR(fw_rotary(device, NULL, NULL), FW_INVALID_ARGUMENT, "rotary must not be NULL");
  r.rotary_dim = 3;
  CHECK_ERROR(fw_rotary(device, &r, NULL), FW_INVALID_ARGUMENT, "rotary_dim must be even and in [0, dim], got 3");
  r.struct_size = 0;
  CHECK_ERROR(fw_rotary(device, &r, NULL), FW_INVALID_ARGUMENT, "call fw_rotary_embedding_init");
}

static void test_empty(fw_device *device) {
  static memory m;
  int i;
  fw_attention a = make_problem(&m);
  fw_gradients g;
  fw_exec e;
  fw_report report;
  char text[512];
  size_t bytes = 99;
  memset(&report, 0x55, sizeof report);
  report.struct_size = sizeof report;
  fw_exec_init(&e, sizeof e);
  e.report = &report;
  a.seqlen_q = 0;
  a.sinks = m.sinks;
  m.o[0] = 7;
  CHECK(fw_forward(device, &a, &e) == FW_OK);
  CHECK(m.o[0] == 7);
  CHECK(strcmp(report.device, "cpu") == 0 && report.kernel[0] == '\0' && report.workspace_size == 0);
  CHECK(fw_workspace_size(device, &a, NULL, NULL, &bytes) == FW_OK && bytes == 0);
  CHECK(fw_explain(device, &a, NULL, NULL, FW_JSON, text, sizeof text, NULL) == FW_OK);
  CHECK(strstr(text, "\"kernel\": null") != NULL);
  /* Keys that no query sees still get their gradient, 0. */
  fw_gradients_init(&g, sizeof g);
  g.dk = view(m.dk, kDim), g.dv = view(m.dv, kDim);
  g.d_o = view(m.d_o, kDim);
  g.d_sinks = m.d_sinks;
  g.dv.stride[2] = kRows * kDim, g.dv.stride[1] = kDim;
  for (i = 0; i < kElements; ++i) m.dk[i] = m.dv[i] = NAN;
  for (i = 0; i < kHeads; ++i) m.d_sinks[i] = NAN;
  CHECK(fw_backward(device, &a, &g, NULL) == FW_OK);
  for (i = 0; i < kElements; ++i) CHECK(m.dk[i] == 0 && m.dv[i] == 0);
  for (i = 0; i < kHeads; ++i) CHECK(m.d_sinks[i] == 0);
}

static void test_environment(fw_device *device) {
  static memory m;
  fw_attention a = make_problem(&m);
  fw_gradients g;
  fw_exec e;
  fw_report report;
  memset(&report, 0, sizeof report);
  report.struct_size = sizeof report;
  fw_exec_init(&e, sizeof e);
  e.report = &report;
  fw_gradients_init(&g, sizeof g);
  g.d_o = view(m.d_o, kDim), g.dq = view(m.dq, kDim);
  setenv("FLASHWAVE_FORCE_KERNEL", "reference_bwd,reference_fwd", 1);
  CHECK(fw_forward(device, &a, &e) == FW_OK && strcmp(report.kernel, "reference_fwd") == 0);
  CHECK(fw_backward(device, &a, &g, &e) == FW_OK && strcmp(report.kernel, "reference_bwd") == 0);
  e.force_kernel = "naive_fwd"; /* the caller goes before the environment */
  CHECK(fw_forward(device, &a, &e) == FW_OK && strcmp(report.kernel, "naive_fwd") == 0);
  e.force_kernel = NULL;
  setenv("FLASHWAVE_FORCE_KERNEL", "reference_fwd", 1);
  CHECK_ERROR(fw_backward(device, &a, &g, &e), FW_UNSUPPORTED,
              "FLASHWAVE_FORCE_KERNEL=reference_fwd names no backward");
  setenv("FLASHWAVE_FORCE_KERNEL", "referense_fwd", 1);
  CHECK_ERROR(fw_forward(device, &a, &e), FW_UNSUPPORTED, "referense_fwd");
  unsetenv("FLASHWAVE_FORCE_KERNEL");

  setenv("FLASHWAVE_NUM_THREADS", "3", 1);
  CHECK(fw_get_num_threads() == 3);
  CHECK(fw_set_num_threads(5) == FW_OK && fw_get_num_threads() == 5);
  CHECK(fw_set_num_threads(0) == FW_OK && fw_get_num_threads() == 3);
  setenv("FLASHWAVE_NUM_THREADS", "many", 1);
  CHECK_ERROR(fw_forward(device, &a, &e), FW_INVALID_ARGUMENT, "FLASHWAVE_NUM_THREADS must be a whole number");
  unsetenv("FLASHWAVE_NUM_THREADS");
  CHECK(fw_get_num_threads() >= 1);
}

static void test_debug_line(fw_device *device, const char *path) {
  static memory m;
  char line[1024];
  FILE *file;
  fw_attention a = make_problem(&m);
  fflush(stderr);
  CHECK(freopen(path, "w", stderr) != NULL);
  setenv("FLASH_ATTENTION_DEBUG", " True", 1);
  CHECK(fw_forward(device, &a, NULL) == FW_OK);
  {
    static const char *const off[] = {"0", "false", "off", "no", "", "2"};
    size_t i;
    for (i = 0; i < sizeof off / sizeof *off; ++i) {
      setenv("FLASH_ATTENTION_DEBUG", off[i], 1);
      CHECK(fw_forward(device, &a, NULL) == FW_OK);
    }
  }
  unsetenv("FLASH_ATTENTION_DEBUG");
  fflush(stderr);
  file = fopen(path, "r");
  CHECK(file != NULL && fgets(line, sizeof line, file) != NULL);
  CHECK(strstr(line, "flashwave: fwd b=1 sq=4 sk=4 hq=2 hk=2 d=8 dtype=f32") != NULL);
  CHECK(strstr(line, " device=cpu kernel=") != NULL && strstr(line, " workspace=") != NULL);
  CHECK(file != NULL && fgets(line, sizeof line, file) == NULL); /* one line for one call */
  if (file != NULL) fclose(file);
}

static void *fail_elsewhere(void *device) {
  fw_device *none;
  (void)device;
  CHECK(strcmp(fw_last_error(), "") == 0);
  CHECK(fw_device_open("elsewhere", &none) == FW_NO_DEVICE);
  CHECK(strstr(fw_last_error(), "elsewhere") != NULL);
  return NULL;
}

static void test_errors_per_thread(fw_device *device) {
  pthread_t thread;
  fw_device *none;
  CHECK(fw_device_open("here", &none) == FW_NO_DEVICE);
  CHECK(pthread_create(&thread, NULL, fail_elsewhere, device) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(strstr(fw_last_error(), "here") != NULL && strstr(fw_last_error(), "elsewhere") == NULL);
  CHECK(fw_set_num_threads(0) == FW_OK);
  CHECK(strstr(fw_last_error(), "here") != NULL); /* kept until the next failure */
}

int main(int argc, char **argv) {
  fw_device *device = NULL, *same = NULL;
  fw_device_info info;
  int32_t kernels = 0;
  CHECK(strcmp(fw_last_error(), "") == 0);
  CHECK(fw_version() == (FW_VERSION_MAJOR << 16 | FW_VERSION_MINOR << 8 | FW_VERSION_PATCH));
  CHECK(strcmp(fw_version_string(), "0.1.0") == 0);
  CHECK(strcmp(fw_status_name(FW_WORKSPACE_TOO_SMALL), "FW_WORKSPACE_TOO_SMALL") == 0);
  CHECK(fw_device_count() >= 1);
  CHECK(fw_device_at(0, &device) == FW_OK && fw_device_open("cpu", &same) == FW_OK && same == device);
  info.struct_size = sizeof info;
  CHECK(fw_device_query(device, &info) == FW_OK && strcmp(info.name, "cpu") == 0 && info.compute_units >= 1);
  while (fw_kernel_name(device, kernels) != NULL) ++kernels;
  CHECK(kernels >= 4);
  CHECK(strncmp(fw_build_note(0), "AMD kernels: ", 13) == 0 && strncmp(fw_build_note(1), "NVIDIA kernels: ", 16) == 0);
  CHECK(fw_build_note(2) == NULL && fw_build_note(-1) == NULL);
  CHECK(fw_kernel_name(device, -1) == NULL && fw_kernel_name(NULL, 0) == NULL);
  test_defaults();
  test_struct_sizes(device);
  test_arguments(device);
  test_allocate(device);
  test_exec_flags(device);
  test_dropout_state(device);
  test_attention(device);
  test_rotary(device);
  test_empty(device);
  test_environment(device);
  test_errors_per_thread(device);
  if (argc > 1) test_debug_line(device, argv[1]);
  printf("%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}
