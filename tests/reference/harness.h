// Runs a kernel on an oracle case: the numbers laid out in their storage types, outputs poisoned, every input position
// that the problem has no business reading set to NaN.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/abi/cpu_launch.h"
#include "tests/reference/oracle.h"

namespace flashwave {
void reference_fwd(const abi::Params&, const abi::CpuLaunch&);
void reference_bwd(const abi::Params&, const abi::CpuLaunch&);
void naive_fwd(const abi::Params&, const abi::CpuLaunch&);
void naive_bwd(const abi::Params&, const abi::CpuLaunch&);
void append_kv(const abi::Params&, const abi::CpuLaunch&);
}  // namespace flashwave

namespace oracle {

namespace abi = flashwave::abi;

// A tensor's memory in its own type.
class Buffer {
 public:
  Buffer() = default;
  Buffer(size_t size, abi::DType dtype);  // all NaN
  void set(const std::vector<Real>& numbers);
  std::vector<Real> get() const;
  void* data() { return bytes_.data(); }
  bool operator==(const Buffer&) const = default;

 private:
  abi::DType dtype_ = abi::kF32;
  std::vector<unsigned char> bytes_;
};

class Problem {
 public:
  explicit Problem(const Case& c);
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  abi::Params params{};  // points into the buffers; tests change it to see that the change is noticed

  void run(abi::CpuKernel kernel, int32_t threads = 1) const;
  void append_then(abi::CpuKernel kernel);  // the pre-pass, then the kernel on the rotated q
  // Every output and, after an append, k and v: "o", "lse", "probs", "dq", ..., "d_slopes".
  std::vector<Real> get(const std::string& name) const { return buffers_.at(name).get(); }
  const Buffer& buffer(const std::string& name) const { return buffers_.at(name); }

 private:
  abi::Tensor tensor(const std::string& name, const Array& layout, abi::DType dtype);
  std::map<std::string, Buffer> buffers_;
  Case case_;
};

// The largest error in units of its tolerance: `relative` times the number plus `absolute`. Infinite where a NaN (a
// position that must keep its poison) or an infinity stands on one side only.
double worst(const std::vector<Real>& expected, const std::vector<Real>& actual, double relative, double absolute);

// Half the distance between numbers of the type, relative: what rounding an exact result may lose.
double half_ulp(Type type);

}  // namespace oracle
