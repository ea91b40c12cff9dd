// Devices and their memory.
#include <algorithm>
#include <string>

#include "api/defaults.h"
#include "api/guard.h"
#include "api/structs.h"
#include "catalog/catalog.h"
#include "device/code_archive.h"
#include "device/cpu/openmp.h"
#include "plan/plan.h"

namespace flashwave::api {
namespace {

// device, then whatever the body does with it.
template <class Body>
fw_status with_device(fw_device* handle, Body&& body) noexcept {
  return guarded([&]() -> Status {
    if (Status status = check_not_null(handle, "device"); !status.ok()) return status;
    return body(*device_of(handle));
  });
}

bool could_run(const KernelRow& row, const DeviceInfo& info) {
  return can_be_chosen(row.op) && row.device == row_kind(info) && (row.isa & ~info.isa) == 0 &&
         info.code.has(row.source);
}

// "AMD kernels: gfx942 gfx1100", "NVIDIA kernels: left out; nvcc was not found (...)".
std::string build_note(const std::string& maker, const CodeArchive& archive) {
  if (archive.entries.empty()) return maker + " kernels: left out; " + archive.left_out;
  std::vector<std::string> targets;
  for (const ArchiveEntry& entry : archive.entries) {
    if (std::ranges::find(targets, entry.arch) == targets.end()) targets.emplace_back(entry.arch);
  }
  std::string note = maker + " kernels:";
  for (const std::string& target : targets) note += " " + target;
  if (archive.left_out[0] != '\0') note += std::string("; left out: ") + archive.left_out;
  return note;
}

}  // namespace
}  // namespace flashwave::api

using namespace flashwave;
using namespace flashwave::api;

int32_t fw_device_count(void) {
  try {
    return static_cast<int32_t>(present_devices().size());
  } catch (const std::exception& error) {
    report(FW_INTERNAL_ERROR, error.what());
    return 0;
  }
}

fw_status fw_device_at(int32_t index, fw_device** device) {
  return guarded([&]() -> Status {
    if (Status status = check_not_null(device, "device"); !status.ok()) return status;
    *device = nullptr;
    const auto& devices = present_devices();
    if (index < 0 || static_cast<size_t>(index) >= devices.size()) {
      return {FW_NO_DEVICE, "index must be in [0, " + std::to_string(devices.size()) + "), the devices present, got " +
                                std::to_string(index)};
    }
    *device = handle_of(devices[static_cast<size_t>(index)]);
    return {};
  });
}

fw_status fw_device_open(const char* name, fw_device** device) {
  return guarded([&]() -> Status {
    if (Status status = check_not_null(device, "device"); !status.ok()) return status;
    *device = nullptr;
    if (Status status = check_not_null(name, "name"); !status.ok()) return status;
    Device* found = nullptr;
    if (Status status = find_device(name, &found); !status.ok()) return status;
    *device = handle_of(found);
    return {};
  });
}

fw_status fw_device_query(fw_device* device, fw_device_info* info) {
  return with_device(device, [&](Device& d) -> Status {
    if (Status status = check_not_null(info, "info"); !status.ok()) return status;
    const uint32_t size = info->struct_size;
    if (Status status =
            check_struct_size("info", size, kDeviceInfoFirstSize, "set it to sizeof(fw_device_info) before the call");
        !status.ok()) {
      return status;
    }
    const DeviceInfo& facts = d.info();
    fw_device_info filled{};
    filled.index = facts.index;
    put(facts.name, filled.name);
    put(facts.kind, filled.kind);
    put(facts.arch, filled.arch);
    put(facts.description, filled.description);
    filled.compute_units = facts.compute_units;
    filled.memory_bytes = facts.memory_bytes;
    write_struct(filled, size, info);
    return {};
  });
}

fw_status fw_device_alloc(fw_device* device, size_t bytes, void** pointer) {
  return with_device(device, [&](Device& d) -> Status {
    if (Status status = check_not_null(pointer, "pointer"); !status.ok()) return status;
    *pointer = nullptr;
    return bytes == 0 ? Status{} : d.alloc(bytes, pointer);
  });
}

fw_status fw_device_free(fw_device* device, void* pointer) {
  return with_device(device, [&](Device& d) -> Status { return pointer == nullptr ? Status{} : d.free(pointer); });
}

fw_status fw_device_copy(fw_device* device, void* destination, const void* source, size_t bytes, fw_copy_kind kind,
                         void* stream) {
  return with_device(device, [&](Device& d) -> Status {
    if (kind != FW_HOST_TO_DEVICE && kind != FW_DEVICE_TO_HOST && kind != FW_DEVICE_TO_DEVICE) {
      return Status::invalid("kind must be an fw_copy_kind, got " + std::to_string(static_cast<int>(kind)));
    }
    if (bytes == 0) return {};
    if (Status status = check_not_null(destination, "destination"); !status.ok()) return status;
    if (Status status = check_not_null(source, "source"); !status.ok()) return status;
    return d.copy(destination, source, bytes, kind, stream);
  });
}

fw_status fw_device_synchronize(fw_device* device, void* stream) {
  return with_device(device, [&](Device& d) -> Status { return d.synchronize(stream); });
}

fw_status fw_device_counters(fw_device* device, char* buffer, size_t capacity, size_t* needed) {
  return with_device(device, [&](Device& d) -> Status {
    if (capacity > 0) {
      if (Status status = check_not_null(buffer, "buffer"); !status.ok()) return status;
      buffer[0] = '\0';
    }
    if (needed != nullptr) *needed = 0;
    std::string json;
    if (Status status = d.counters(&json); !status.ok()) return status;
    give_text(json, buffer, capacity, needed);
    if (json.size() < capacity) d.reset_counters();
    return {};
  });
}

const char* fw_build_note(int32_t index) {
  try {
    static const auto& notes = *new std::vector<std::string>{build_note("AMD", amd_code_archive()),
                                                             build_note("NVIDIA", nvidia_code_archive())};
    if (index >= 0 && static_cast<size_t>(index) < notes.size()) return notes[static_cast<size_t>(index)].c_str();
  } catch (const std::exception& error) {
    report(FW_INTERNAL_ERROR, error.what());
  }
  return nullptr;
}

const char* fw_kernel_name(fw_device* device, int32_t index) {
  if (device == nullptr || index < 0) return nullptr;
  try {
    const DeviceInfo& info = device_of(device)->info();
    for (const KernelRow& row : catalog()) {
      if (could_run(row, info) && index-- == 0) return row.name;
    }
  } catch (const std::exception& error) {
    report(FW_INTERNAL_ERROR, error.what());
  }
  return nullptr;
}

fw_status fw_openmp_executor(const char* library, const fw_executor** executor) {
  return guarded([&]() -> Status {
    if (Status status = check_not_null(executor, "executor"); !status.ok()) return status;
    *executor = nullptr;
    if (Status status = check_not_null(library, "library"); !status.ok()) return status;
    return openmp_executor(library, executor);
  });
}
