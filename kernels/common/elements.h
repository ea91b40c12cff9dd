// Elements of the storage types in memory of any alignment, to and from fp32.
#pragma once

#include "kernels/common/dtype.h"
#include "kernels/common/gpu.h"

namespace flashwave {

FW_DEVICE float load(const _Float16* x) { return float(*x); }
FW_DEVICE float load(const BFloat16* x) { return to_float(*x); }
FW_DEVICE float load(const float* x) { return *x; }
FW_DEVICE void store(_Float16* out, float x) { *out = _Float16(x); }
FW_DEVICE void store(BFloat16* out, float x) { *out = from_float<BFloat16>(x); }
FW_DEVICE void store(float* out, float x) { *out = x; }

template <class T>
FW_DEVICE T* elements(const abi::Tensor& t) {
  return static_cast<T*>(t.data);
}

// Four neighbours, aligned as one: global memory takes any alignment, so this is one load or store.
template <class T>
struct __attribute__((packed, aligned(alignof(T)))) Four {
  T x[4];
};

// The first `count` of four elements; zeros from there on.
template <class T>
FW_DEVICE F32x4 load_four(const T* x, int count) {
  F32x4 result = 0.f;
  if (count >= 4) {
    const Four<T> four = *reinterpret_cast<const Four<T>*>(x);
    FW_UNROLL for (int e = 0; e < 4; ++e) result[e] = load(&four.x[e]);
  } else {
    if (count > 0) result[0] = load(x);
    if (count > 1) result[1] = load(x + 1);
    if (count > 2) result[2] = load(x + 2);
  }
  return result;
}

template <class T>
FW_DEVICE void store_four(T* out, F32x4 x, int count) {
  if (count >= 4) {
    Four<T> four;
    FW_UNROLL for (int e = 0; e < 4; ++e) store(&four.x[e], x[e]);
    *reinterpret_cast<Four<T>*>(out) = four;
  } else {
    if (count > 0) store(out, x[0]);
    if (count > 1) store(out + 1, x[1]);
    if (count > 2) store(out + 2, x[2]);
  }
}

// As they are, bit by bit.
template <class T>
FW_DEVICE void copy_four(T* out, const T* x, int count) {
  if (count >= 4) {
    *reinterpret_cast<Four<T>*>(out) = *reinterpret_cast<const Four<T>*>(x);
  } else {
    if (count > 0) out[0] = x[0];
    if (count > 1) out[1] = x[1];
    if (count > 2) out[2] = x[2];
  }
}

}  // namespace flashwave
