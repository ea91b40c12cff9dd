#include <array>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <utility>

#include "ask.h"
#include "commands.h"
#include "errors.h"
#include "json.h"
#include "options.h"
#include "table.h"
#include "tensors.h"

namespace flashwave::cli {
namespace {

struct Feature {
  const char* name;
  const char* forward;   // words; nullptr = not a thing of the forward
  const char* backward;  // words besides op=bwd; nullptr = not a thing of the backward
};

constexpr Feature kFeatures[] = {
    {"plain", "", ""},
    {"causal", "causal=1", "causal=1"},
    {"sliding window", "window=64,0", "window=64,0"},
    {"GQA, MQA", "hq=8 hk=2", "hq=8 hk=2"},
    {"head dim 1", "d=1", "d=1"},
    {"head dim 96", "d=96", "d=96"},
    {"head dim 256", "d=256", "d=256"},
    {"head dim 512", "d=512", "d=512"},
    {"d_qk differs from d_v", "dqk=192 dv=128", "dqk=192 dv=128"},
    {"batch, head, seq, dim layout", "layout=bhsd", "layout=bhsd"},
    {"packed qkv", "layout=qkvpacked", "layout=qkvpacked"},
    {"packed kv", "layout=kvpacked", "layout=kvpacked"},
    {"ragged batch (cu_seqlens)", "layout=varlen b=3", "layout=varlen b=3"},
    {"key padding (seqused_k)", "b=3 seqused=1", "b=3 seqused=1"},
    {"left padding (leftpad_k)", "b=3 leftpad=1", "b=3 leftpad=1"},
    {"softcap", "softcap=30", "softcap=30"},
    {"ALiBi", "alibi=bh", "alibi=bh"},
    {"additive bias", "bias=full", "bias=full"},
    {"attention sinks", "sinks=1", "sinks=1"},
    {"dropout", "dropout=0.1", "dropout=0.1"},
    {"o in fp32", "odtype=f32", "odtype=f32"},
    {"gradients in fp32", nullptr, "gradtype=f32"},
    {"added to what other keys gave", "accumulate=1", nullptr},
    {"positions in a longer sequence", "causal=1 positions=512,256", "causal=1 positions=512,256"},
    {"positions with ALiBi", "alibi=h positions=512,256", "alibi=h positions=512,256"},
    {"decoding (1 query)", "sq=1 sk=4096", nullptr},
    {"paged KV cache", "sq=1 sk=4096 page=16 seqused=1", nullptr},
    {"cache rows by index", "sq=1 sk=4096 cacheidx=1 seqused=1", nullptr},
    {"append to the cache", "sq=4 sk=4096 append=4", nullptr},
    {"append with rotary", "sq=4 sk=4096 append=4 rotary=64", nullptr},
    {"softmax matrix out", "probs=1", nullptr},
    {"gradient through LSE", nullptr, "dlse=1"},
    {"gradient of bias", nullptr, "bias=full dbias=1"},
    {"gradient of sinks", nullptr, "sinks=1 dsinks=1"},
    {"gradient of ALiBi slopes", nullptr, "alibi=h dslopes=1"},
    {"deterministic", "deterministic=1", "deterministic=1"},
};

bool is_cpu(fw_device* device) {
  fw_device_info info{};
  info.struct_size = sizeof info;
  return fw_device_query(device, &info) == FW_OK && std::string_view(info.kind) == "cpu";
}

std::string family(fw_device* device, const std::string& words) {
  const Answer answer = ask(device, parse_case(words), FW_JSON);
  const std::string kernel = answer.status == FW_OK ? json_member(answer.text, "kernel") : "";
  if (kernel.empty()) return "refused";
  if (json_member(answer.text, "slow_path") != "true") return "fast";
  return is_cpu(device) ? "reference" : "generic";
}

std::string cell(fw_device* device, const char* words, bool backward) {
  if (!words) return "-";
  // The words of the feature win over the common ones, so those are only added where absent.
  std::string problem = words;
  const auto add = [&](const std::string& name, const std::string& value) {
    if ((" " + problem).find(" " + name + "=") == std::string::npos) problem += " " + name + "=" + value;
  };
  add("b", "2");
  add("sq", "256");
  add("hq", "4");
  if (problem.find("dqk=") == std::string::npos) add("d", "64");
  if (backward) add("op", "bwd");
  std::array<std::string, 3> kinds;
  const std::array<const char*, 3> types = {"f32", "bf16", "f16"};
  for (size_t i = 0; i < 3; ++i) kinds[i] = family(device, problem + " dtype=" + types[i]);
  if (kinds[0] == kinds[1] && kinds[1] == kinds[2]) return kinds[0];
  std::string text;
  for (size_t i = 0; i < 3; ++i) text += (i ? ", " : "") + std::string(types[i]) + " " + kinds[i];
  return text;
}

}  // namespace

std::string support_help() {
  return "usage: flashwave support [--device D[,D...]] [--markdown]\n\n"
         "Asks every real device, or those named (an architecture too: gfx942, sm_90), which kernel would take each\n"
         "feature, in all three element types. A cell says\n"
         "fast (a tuned kernel), generic (a GPU's slow kernel that takes everything), reference (correct but slow),\n"
         "refused, or - (does not apply).\n";
}

int support_command(const Arguments& arguments) {
  const Options options(arguments, {"--device=", "--markdown"});
  options.no_words();
  std::vector<Column> columns = {{"feature", false}};
  std::vector<fw_device*> devices;
  if (options.has("--device")) {
    std::istringstream names(options.text("--device", ""));
    for (std::string name; std::getline(names, name, ',');) devices.push_back(open_device(name));
  } else {
    for (int32_t i = 0; i < fw_device_count(); ++i) {
      devices.push_back(nullptr);
      require(fw_device_at(i, &devices.back()), "fw_device_at");
    }
  }
  for (fw_device* device : devices) {
    const fw_device_info info = query_device(device);
    columns.push_back({std::string(info.name) + " forward", false});
    columns.push_back({std::string(info.name) + " backward", false});
  }
  Table table(columns);
  for (const Feature& feature : kFeatures) {
    std::vector<std::string> row = {feature.name};
    for (fw_device* device : devices) {
      row.push_back(cell(device, feature.forward, false));
      row.push_back(cell(device, feature.backward, true));
    }
    table.add(std::move(row));
  }
  std::fputs((options.has("--markdown") ? table.markdown() : table.str()).c_str(), stdout);
  return 0;
}

}  // namespace flashwave::cli
