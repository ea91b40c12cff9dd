/* Training by the C header alone: gradient descent on q, k and v, so that causal attention gives what is wanted of it.
 * The numbers live in fp32 on the host; the device gets them in bf16 and computes outputs and gradients.
 *
 *   abi_training DEVICE     "emu:gfx942", "hip:0", ...: the losses are those of the CPU, and fall
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "flashwave/flashwave.h"

enum { kRows = 40, kHeads = 2, kDim = 32, kCount = kRows * kHeads * kDim, kSteps = 5 };

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, fw_last_error());
  return 1;
}

static uint16_t to_bf16(float x) {
  uint32_t word;
  memcpy(&word, &x, sizeof word);
  return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
static float from_bf16(uint16_t x) {
  const uint32_t word = (uint32_t)x << 16;
  float result;
  memcpy(&result, &word, sizeof result);
  return result;
}

/* One of q, k, v, o, d_o, dq, dk, dv in the memory of the device. */
static fw_tensor tensor(void *data) {
  return (fw_tensor){.data = data, .stride = {kCount, kHeads * kDim, kDim, 1}, .dtype = FW_BF16, .reserved = 0};
}
static int write_to(fw_device *device, const fw_tensor *to, const float *numbers) {
  uint16_t bits[kCount];
  for (int i = 0; i < kCount; ++i) bits[i] = to_bf16(numbers[i]);
  return fw_device_copy(device, to->data, bits, sizeof bits, FW_HOST_TO_DEVICE, NULL) == FW_OK
             ? 0
             : failed("fw_device_copy");
}
static int read_from(fw_device *device, const fw_tensor *from, float *numbers) {
  uint16_t bits[kCount];
  if (fw_device_copy(device, bits, from->data, sizeof bits, FW_DEVICE_TO_HOST, NULL) != FW_OK ||
      fw_device_synchronize(device, NULL) != FW_OK) {
    return failed("fw_device_copy");
  }
  for (int i = 0; i < kCount; ++i) numbers[i] = from_bf16(bits[i]);
  return 0;
}

static int train(const char *name, float *losses) {
  fw_device *device;
  if (fw_device_open(name, &device) != FW_OK) return failed(name);
  fw_attention a;
  fw_gradients g;
  fw_attention_init(&a, sizeof a);
  fw_gradients_init(&g, sizeof g);
  a.batch = 1, a.seqlen_q = a.seqlen_k = kRows, a.heads_q = a.heads_k = kHeads, a.dim_qk = a.dim_v = kDim;
  a.flags = FW_CAUSAL;
  fw_tensor *const tensors[] = {&a.q, &a.k, &a.v, &a.o, &g.d_o, &g.dq, &g.dk, &g.dv};
  for (int i = 0; i < 8; ++i) {
    void *data;
    if (fw_device_alloc(device, kCount * sizeof(uint16_t), &data) != FW_OK) return failed("fw_device_alloc");
    *tensors[i] = tensor(data);
  }
  void *lse;
  if (fw_device_alloc(device, kRows * kHeads * sizeof(float), &lse) != FW_OK) return failed("fw_device_alloc");
  a.lse = (fw_tensor){.data = lse, .stride = {kRows * kHeads, kHeads, 1, 1}, .dtype = FW_F32, .reserved = 0};

  static float weights[3][kCount], o[kCount], d_o[kCount], gradient[kCount];
  for (int t = 0; t < 3; ++t) {
    for (int i = 0; i < kCount; ++i) weights[t][i] = sinf((float)(7 * i + 131 * t + i * i % 97));
  }
  for (int step = 0; step < kSteps; ++step) {
    for (int t = 0; t < 3; ++t) {
      if (write_to(device, tensors[t], weights[t])) return 1;
    }
    if (fw_forward(device, &a, NULL) != FW_OK) return failed("fw_forward");
    if (read_from(device, &a.o, o)) return 1;
    losses[step] = 0;
    for (int i = 0; i < kCount; ++i) {
      d_o[i] = o[i] - cosf((float)(i % 61)) / 2;
      losses[step] += d_o[i] * d_o[i] / 2 / kCount;
    }
    if (write_to(device, &g.d_o, d_o)) return 1;
    if (fw_backward(device, &a, &g, NULL) != FW_OK) return failed("fw_backward");
    for (int t = 0; t < 3; ++t) {
      if (read_from(device, tensors[5 + t], gradient)) return 1;
      for (int i = 0; i < kCount; ++i) weights[t][i] -= 0.3f * gradient[i];
    }
  }
  for (int i = 0; i < 8; ++i) fw_device_free(device, tensors[i]->data);
  fw_device_free(device, lse);
  return 0;
}

int main(int count, char **words) {
  float there[kSteps], here[kSteps];
  if (count != 2) return failed("abi_training DEVICE");
  if (train(words[1], there) || train("cpu", here)) return 1;
  for (int step = 0; step < kSteps; ++step) {
    printf("step %d: loss %.5f, on the CPU %.5f\n", step, there[step], here[step]);
    if (!(fabsf(there[step] - here[step]) <= 0.01f * here[step])) return failed("the losses differ");
  }
  if (!(there[kSteps - 1] < 0.7f * there[0])) return failed("the loss does not fall");
  return 0;
}
