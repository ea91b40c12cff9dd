#include <cstdio>
#include <vector>

#include "commands.h"
#include "errors.h"
#include "json.h"
#include "options.h"
#include "table.h"
#include "tensors.h"

namespace flashwave::cli {
namespace {

std::vector<std::string> kernels_of(fw_device* device) {
  std::vector<std::string> names;
  for (int32_t i = 0;; ++i) {
    const char* name = fw_kernel_name(device, i);
    if (!name) return names;
    names.emplace_back(name);
  }
}

// Opened by name only, and only if the emulator is installed.
constexpr const char* kEmulated[] = {"emu:gfx908",  "emu:gfx90a",  "emu:gfx942",  "emu:gfx950", "emu:gfx1100",
                                     "emu:gfx1101", "emu:gfx1102", "emu:gfx1200", "emu:gfx1201"};

// Those that this build has kernels for; else why there are none.
std::string emulated_devices() {
  std::string names, reason = "this build has no kernels for them";
  for (const char* name : kEmulated) {
    fw_device* device = nullptr;
    if (fw_device_open(name, &device) != FW_OK) {
      reason = fw_last_error();
    } else if (fw_kernel_name(device, 0) != nullptr) {
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
  }
  return names.empty() ? "none: " + reason : names;
}

std::string kernel_list(const std::string& device, const std::vector<std::string>& kernels) {
  if (kernels.empty()) return "\nthere are no kernels for " + device + " yet\n";
  std::string text = "\nkernels of " + device + ", in the order they are tried:\n";
  for (const std::string& kernel : kernels) text += "  " + kernel + "\n";
  return text;
}

}  // namespace

std::string devices_help() {
  return "usage: flashwave devices [--json]\n\n"
         "Lists the real devices present on this machine and the kernels each can run, in the order they are tried.\n"
         "Below the table: emulated GPUs, if the emulator is installed, and which GPUs this build has kernels for, or\n"
         "why it has none. --json leaves that out.\n";
}

int devices_command(const Arguments& arguments) {
  const Options options(arguments, {"--json"});
  options.no_words();
  Table table({{"device", false}, {"arch", false}, {"units", true}, {"memory", true}, {"description", false}});
  std::string kernels_text;
  for (int32_t i = 0; i < fw_device_count(); ++i) {
    fw_device* device = nullptr;
    require(fw_device_at(i, &device), "fw_device_at");
    const fw_device_info info = query_device(device);
    std::string list;
    for (const std::string& kernel : kernels_of(device)) list += (list.empty() ? "" : ", ") + json_quote(kernel);
    if (options.has("--json")) {
      JsonObject object;
      object.text("device", info.name).text("kind", info.kind).integer("index", info.index).text("arch", info.arch);
      object.text("description", info.description).integer("compute_units", info.compute_units);
      object.integer("memory_bytes", info.memory_bytes).raw("kernels", "[" + list + "]");
      std::printf("%s\n", object.str().c_str());
      continue;
    }
    table.add({info.name, info.arch, std::to_string(info.compute_units), human_bytes(double(info.memory_bytes)),
               info.description});
    kernels_text += kernel_list(info.name, kernels_of(device));
  }
  if (options.has("--json")) return 0;
  std::printf("%s%s", table.str().c_str(), kernels_text.c_str());
  std::printf("\nemulated AMD GPUs, for --device: %s\n\n", emulated_devices().c_str());
  for (int32_t i = 0; const char* note = fw_build_note(i); ++i) std::printf("%s\n", note);
  return 0;
}

}  // namespace flashwave::cli
