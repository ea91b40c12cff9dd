/* Both forms of run_mha_rocm as builds of candle with AMD tensors call them, on device memory of the HIP driver.
 *
 *   abi_candle DEVICE     "emu:gfx942", with FLASHWAVE_CANDLE_DEVICE set to it; or "hip:0", the current HIP device
 */
#define _POSIX_C_SOURCE 200809L
#include "flashwave/candle.h"

#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { kBatch = 2, kHeads = 4, kDim = 32, kMostRows = 48 };

typedef struct {
  const char *name;
  int bf16, heads_k, causal, left, right, alibi, varlen, paged;
  float softcap;
  int short_form; /* 37 parameters */
} problem;

typedef struct {
  float q[kMostRows * kHeads * kDim], k[kMostRows * kHeads * kDim], v[kMostRows * kHeads * kDim];
  uint16_t bits[kMostRows * kHeads * kDim];
  float lse[kMostRows * kHeads];
} memory;

static memory m;
static const float slopes[kHeads] = {0.5f, 0.25f, 0.125f, 0.0625f};

/* Rounds x to what the 16 bits can hold, and gives them: bf16 by its upper half, fp16 of a multiple of 2^-6 below 4. */
static uint16_t round_to(float *x, int bf16) {
  uint32_t word;
  if (bf16) {
    memcpy(&word, x, sizeof word);
    word &= 0xffff0000u;
    memcpy(x, &word, sizeof word);
    return (uint16_t)(word >> 16);
  }
  *x = roundf(*x * 64) / 64;
  if (*x == 0) return 0;
  memcpy(&word, x, sizeof word);
  return (uint16_t)((word >> 16 & 0x8000) | (((word >> 23 & 0xff) - 127 + 15) << 10) | (word >> 13 & 0x3ff));
}

static float value_of(uint16_t bits, int bf16) {
  uint32_t word = (uint32_t)bits << 16;
  float x;
  if (!bf16) {
    const int exponent = bits >> 10 & 31;
    x = ldexpf((float)((bits & 1023) | (exponent ? 1024 : 0)), (exponent ? exponent : 1) - 25);
    return bits & 0x8000 ? -x : x;
  }
  memcpy(&x, &word, sizeof x);
  return x;
}

static void *upload(fw_device *device, const void *data, size_t bytes) {
  void *there = NULL;
  CHECK(fw_device_alloc(device, bytes, &there) == FW_OK);
  CHECK(fw_device_copy(device, there, data, bytes, FW_HOST_TO_DEVICE, NULL) == FW_OK);
  CHECK(fw_device_synchronize(device, NULL) == FW_OK);
  return there;
}

static void *make(fw_device *device, float *values, int count, int bf16, int seed) {
  int i;
  for (i = 0; i < count; ++i) {
    values[i] = 1.5f * sinf((float)(i * 7 + seed * 131 + i * i % 97));
    m.bits[i] = round_to(&values[i], bf16);
  }
  return upload(device, m.bits, (size_t)count * 2);
}

/* Row i of one head, in double. q_row, k_row: the sequence's first rows. */
static void expect(const problem *p, int q_row, int k_row, int queries, int keys, int i, int h, double *o,
                   double *lse) {
  double sum = 0;
  int d, j;
  const int h_k = h / (kHeads / p->heads_k), place = i + keys - queries;
  for (d = 0; d < kDim; ++d) o[d] = 0;
  for (j = 0; j < keys; ++j) {
    const float *q = m.q + ((q_row + i) * kHeads + h) * kDim, *k = m.k + ((k_row + j) * p->heads_k + h_k) * kDim;
    double s = 0, weight;
    if (p->left >= 0 && j < place - p->left) continue;
    if (p->right >= 0 && j > place + p->right) continue;
    for (d = 0; d < kDim; ++d) s += (double)q[d] * k[d];
    s *= 0.2f;
    if (p->softcap > 0) s = p->softcap * tanh(s / p->softcap);
    if (p->alibi) s -= (double)slopes[h] * abs(place - j);
    weight = exp(s);
    sum += weight;
    for (d = 0; d < kDim; ++d) o[d] += weight * m.v[((k_row + j) * p->heads_k + h_k) * kDim + d];
  }
  for (d = 0; d < kDim; ++d) o[d] = sum > 0 ? o[d] / sum : 0;
  *lse = log(sum);
}

/* Keys in pages of 5 rows; those of sequence b are 4 apart, the last first. */
enum { kPage = 5, kBlocks = 4 };
static uint16_t pages[kBatch * kBlocks * kPage * kHeads * kDim];

static void *make_pages(fw_device *device, const float *values, const int32_t *at, int heads_k, int bf16) {
  int b, j;
  const int row = heads_k * kDim;
  memset(pages, 0xff, sizeof pages); /* NaN */
  for (b = 0; b < kBatch; ++b) {
    for (j = 0; j < at[b + 1] - at[b]; ++j) {
      const int page = b * kBlocks + kBlocks - 1 - j / kPage;
      int x;
      for (x = 0; x < row; ++x) {
        float value = values[(at[b] + j) * row + x];
        pages[(page * kPage + j % kPage) * row + x] = round_to(&value, bf16);
      }
    }
  }
  return upload(device, pages, sizeof pages);
}

static void test(fw_device *device, const problem *p) {
  /* The first sequence has fewer rows if they may differ. */
  const int32_t at_q[kBatch + 1] = {0, p->varlen ? 7 : 16, p->varlen ? 23 : 32};
  const int32_t at_k[kBatch + 1] = {0, p->varlen ? 11 : 20, p->varlen ? 30 : 40};
  const int32_t table[kBatch * kBlocks] = {3, 2, 1, 0, 7, 6, 5, 4};
  const int rows_q = at_q[kBatch], rows_k = at_k[kBatch], row_q = kHeads * kDim, row_k = p->heads_k * kDim;
  const double tolerance = p->bf16 ? 1e-2 : 1.5e-3;
  void *q = make(device, m.q, rows_q * row_q, p->bf16, 1), *k = make(device, m.k, rows_k * row_k, p->bf16, 2);
  void *v = make(device, m.v, rows_k * row_k, p->bf16, 3);
  void *o, *lse, *dev_slopes = upload(device, slopes, sizeof slopes), *dev_q = upload(device, at_q, sizeof at_q);
  void *dev_k = upload(device, at_k, sizeof at_k), *dev_table = upload(device, table, sizeof table);
  double worst = 0, worst_lse = 0;
  int b, h, i, d;
  memset(m.bits, 0xff, sizeof m.bits);
  memset(m.lse, 0xff, sizeof m.lse);
  o = upload(device, m.bits, (size_t)rows_q * row_q * 2), lse = upload(device, m.lse, (size_t)rows_q * kHeads * 4);
  if (p->paged) {
    CHECK(fw_device_free(device, k) == FW_OK && fw_device_free(device, v) == FW_OK);
    k = make_pages(device, m.k, at_k, p->heads_k, p->bf16), v = make_pages(device, m.v, at_k, p->heads_k, p->bf16);
  }
  {
    const uint32_t q_batch = p->varlen ? 0 : 16u * row_q;
    const uint32_t k_batch = p->paged ? (uint32_t)(kPage * row_k) : p->varlen ? 0 : 20u * row_k;
    if (p->short_form) {
      run_mha_rocm(q, k, v, o, lse, p->alibi ? dev_slopes : NULL, p->varlen ? dev_q : NULL, p->varlen ? dev_k : NULL,
                   q_batch, k_batch, k_batch, q_batch, 0, row_q, row_k, row_k, row_q, kDim, kDim, kDim, kDim, kBatch,
                   kHeads, p->heads_k, kDim, 32, 0.2f, 16, 20, 128, 128, p->bf16, p->causal, p->varlen, p->left,
                   p->right, p->softcap);
    } else {
      CHECK(run_mha_rocm_0_11(q, k, v, o, lse, p->alibi ? dev_slopes : NULL, p->varlen ? dev_q : NULL,
                              p->varlen ? dev_k : NULL, q_batch, k_batch, k_batch, q_batch, 0, row_q, row_k, row_k,
                              row_q, kDim, kDim, kDim, kDim, kBatch, kHeads, p->heads_k, kDim, 32, 0.2f, 16, 20, 128,
                              128, rows_q, p->bf16, p->causal, p->varlen, p->left, p->right, p->softcap,
                              p->paged ? dev_table : NULL, kBlocks, p->paged ? kPage : -1, NULL, 0, 0, NULL) == FW_OK);
    }
  }
  CHECK(fw_device_synchronize(device, NULL) == FW_OK);
  CHECK(fw_device_copy(device, m.bits, o, (size_t)rows_q * row_q * 2, FW_DEVICE_TO_HOST, NULL) == FW_OK);
  CHECK(fw_device_copy(device, m.lse, lse, (size_t)rows_q * kHeads * 4, FW_DEVICE_TO_HOST, NULL) == FW_OK);
  CHECK(fw_device_synchronize(device, NULL) == FW_OK);
  for (b = 0; b < kBatch; ++b) {
    for (i = 0; i < at_q[b + 1] - at_q[b]; ++i) {
      for (h = 0; h < kHeads; ++h) {
        double wanted[kDim], wanted_lse, difference;
        const int row = (at_q[b] + i) * kHeads + h;
        const float got = p->varlen ? m.lse[h * rows_q + at_q[b] + i] : m.lse[(b * kHeads + h) * 16 + i];
        expect(p, at_q[b], at_k[b], at_q[b + 1] - at_q[b], at_k[b + 1] - at_k[b], i, h, wanted, &wanted_lse);
        difference = fabs(got - wanted_lse);
        if (!(difference <= worst_lse)) worst_lse = difference; /* NaN stays */
        for (d = 0; d < kDim; ++d) {
          difference = fabs(value_of(m.bits[row * kDim + d], p->bf16) - wanted[d]);
          if (!(difference <= worst)) worst = difference;
        }
      }
    }
  }
  printf("%-24s %s, %d parameters: o differs by %g, lse by %g\n", p->name, p->bf16 ? "bf16" : "fp16",
         p->short_form ? 37 : 45, worst, worst_lse);
  CHECK(worst < tolerance);
  CHECK(worst_lse < tolerance);
  CHECK(fw_device_free(device, q) == FW_OK && fw_device_free(device, k) == FW_OK && fw_device_free(device, v) == FW_OK);
  CHECK(fw_device_free(device, o) == FW_OK && fw_device_free(device, lse) == FW_OK);
  CHECK(fw_device_free(device, dev_slopes) == FW_OK && fw_device_free(device, dev_table) == FW_OK);
  CHECK(fw_device_free(device, dev_q) == FW_OK && fw_device_free(device, dev_k) == FW_OK);
}

/* A call whose only fault is in these arguments. */
static fw_status call_with(void *data, int heads_k, int varlen, int unpadded_lse, const int32_t *ranges) {
  const int32_t *at = varlen ? data : NULL;
  return run_mha_rocm_0_11(data, data, data, (char *)data + 512, (char *)data + 1024, NULL, at, at, 0, 0, 0, 0, 0, 96,
                           64, 64, 96, 32, 32, 32, 32, 1, 3, heads_k, 32, 32, 1, 1, 1, 128, 128, 1, 0, 0, unpadded_lse,
                           -1, -1, 0, NULL, 0, -1, ranges, 0, 0, NULL);
}

static void test_errors(fw_device *device) {
  void *data;
  CHECK(fw_device_alloc(device, 4096, &data) == FW_OK);
  CHECK(call_with(data, 2, 0, 0, NULL) == FW_INVALID_ARGUMENT);
  CHECK(strstr(fw_last_error(), "heads_q must be a multiple of heads_k") != NULL);
  CHECK(call_with(data, 1, 1, 0, NULL) == FW_INVALID_ARGUMENT && strstr(fw_last_error(), "unpadded_lse") != NULL);
  CHECK(call_with(data, 1, 0, 0, data) == FW_UNSUPPORTED && strstr(fw_last_error(), "mm_prefix_ranges_ptr") != NULL);
  CHECK(fw_device_free(device, data) == FW_OK);
}

/* The form without a status must not return from a failure as if there were an output: a child process ends in it. */
static void test_loud_failure(void) {
  static uint16_t data[256]; /* not read: the heads are refused before */
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    run_mha_rocm(data, data, data, data, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 96, 64, 64, 96, 32, 32, 32, 32, 1, 3, 2,
                 32, 32, 1, 1, 1, 128, 128, 0, 0, 0, -1, -1, 0);
    _exit(0);
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(int argc, char **argv) {
  static const problem problems[] = {
      {"plain", 0, 4, 0, -1, -1, 0, 0, 0, 0, 0},
      {"one key head, causal", 0, 1, 1, 20, 0, 0, 0, 0, 0, 0}, /* as candle says causal: no limit on the left */
      {"grouped, window", 0, 2, 0, 4, 2, 0, 0, 0, 0, 0},
      {"ALiBi", 0, 4, 1, 20, 0, 1, 0, 0, 0, 0},
      {"softcap", 0, 4, 0, -1, -1, 0, 0, 0, 1.5f, 0},
      {"varlen, causal", 0, 2, 1, 20, 0, 0, 1, 0, 0, 0},
      {"varlen, everything", 0, 2, 0, 6, 3, 1, 1, 0, 1.5f, 0},
      {"paged, causal", 0, 2, 1, 20, 0, 0, 1, 1, 0, 0},
  };
  fw_device *device = NULL;
  size_t n;
  if (argc != 2 || fw_device_open(argv[1], &device) != FW_OK) {
    fprintf(stderr, "usage: abi_candle DEVICE (%s)\n", fw_last_error());
    return 2;
  }
  for (n = 0; n < sizeof problems / sizeof *problems; ++n) {
    problem p = problems[n];
    test(device, &p);
    p.bf16 = 1;
    test(device, &p);
    if (p.paged) continue;
    p.short_form = 1;
    test(device, &p);
    p.bf16 = 0;
    test(device, &p);
  }
  test_errors(device);
  test_loud_failure();
  printf("%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}
