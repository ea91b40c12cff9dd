// Tensor data of a case: random host values, and their copies on a device in a given element type.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "flashwave/flashwave.h"
#include "geometry.h"

namespace flashwave::cli {

fw_device* open_device(const std::string& name);  // throws LibraryError
fw_device* open_to_run(const std::string& name);  // the same, and for an architecture that only plans are made for
fw_device_info query_device(fw_device* device);

// Inputs as floats that are exact in the case's element type, so that every run sees the same numbers. Rows that no
// sequence owns (past seqused_k, padding, unused pages) are NaN: reading one shows.
struct HostValues {
  std::array<std::vector<float>, kTensorCount> buffer;
};
HostValues make_values(const Geometry& geometry);

// The tensors of a problem may be more than the host holds: throws a HostMemoryError before the system would end the
// process for it.
void require_host_memory(const Geometry& geometry);

// What came back of one tensor, in view order.
struct Readback {
  std::vector<float> value;
  std::vector<uint8_t> untouched;  // still holds the poison it was filled with
};

// The buffers of a case on a device. Outputs are poisoned, every buffer lies between guard bytes.
class Staged {
 public:
  Staged(fw_device* device, const Geometry& geometry, fw_dtype data_dtype);
  ~Staged();
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

  void upload(const HostValues& values);  // inputs as given, outputs poisoned
  void upload_raw(TensorId buffer, const std::vector<std::byte>& bytes);
  std::vector<std::byte> download_raw(TensorId buffer) const;
  Readback read(TensorId tensor) const;
  void poison(TensorId buffer);

  // What the next run is given as its workspace, full of ones: what lies there must not matter. 0: none.
  void lend_workspace(size_t bytes);

  // Empty, or which buffer was written outside its bounds, or which input was changed.
  std::string broken_promise() const;

  const fw_attention& attention() const { return attention_; }
  const fw_gradients& gradients() const { return gradients_; }
  fw_device* device() const { return device_; }
  void* workspace() const { return workspace_.base ? workspace_.base + kGuardBytes : nullptr; }
  size_t workspace_bytes() const { return workspace_.bytes; }
  fw_dtype data_dtype() const { return data_dtype_; }

 private:
  static constexpr size_t kGuardBytes = 256;
  struct Buffer {
    char* base = nullptr;  // device address of the front guard
    size_t bytes = 0;      // between the guards
    std::vector<std::byte> uploaded;
  };
  void allocate(Buffer& buffer, size_t bytes, const std::string& what);
  bool guards_changed(const Buffer& buffer) const;
  template <class T>
  const T* stage_array(const std::vector<T>& values);
  fw_tensor tensor(TensorId id) const;
  void fill_structs();

  fw_device* device_;
  const Geometry& geometry_;
  fw_dtype data_dtype_;
  std::array<Buffer, kTensorCount> buffers_;
  Buffer workspace_;
  std::vector<void*> arrays_;
  fw_attention attention_;
  fw_gradients gradients_;
};

// The structs with every field but the pointers to data set; shared with explain, which has no data.
using AddressOf = void* (*)(void* context, TensorId id);
void describe_problem(const Geometry& geometry, fw_dtype data_dtype, AddressOf address, void* context,
                      fw_attention* attention, fw_gradients* gradients);

struct RunOptions {
  std::string kernel;  // empty = the library chooses
  int64_t threads = 0;
};
// Throws the LibraryError that run_problem would, if the library refuses the problem; touches no data. Returns the
// bytes of workspace that it takes.
size_t plan_problem(const Staged& staged, bool backward, const RunOptions& options);
// Runs fw_forward, or fw_backward if `backward`, and waits. Throws LibraryError. Returns what ran.
fw_report run_problem(const Staged& staged, bool backward, const RunOptions& options);

}  // namespace flashwave::cli
