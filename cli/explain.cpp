#include <cstdint>
#include <cstdio>

#include "ask.h"
#include "commands.h"
#include "dtype.h"
#include "errors.h"
#include "geometry.h"
#include "json.h"
#include "json_value.h"
#include "options.h"
#include "tensors.h"

namespace flashwave::cli {
namespace {

// Addresses for tensors that do not exist: aligned, apart from each other, never followed.
struct Addresses {
  uintptr_t base[kTensorCount];
  const Geometry* geometry;

  explicit Addresses(const Geometry& g) : geometry(&g) {
    uintptr_t next = uintptr_t{1} << 44;
    for (int i = 0; i < kTensorCount; ++i) {
      base[i] = next;
      next += (uintptr_t(g.elements[size_t(i)]) * sizeof(float) + 4095) / 4096 * 4096 + 4096;
    }
  }
  static void* of(void* context, TensorId id) {
    const auto* self = static_cast<const Addresses*>(context);
    const View& v = self->geometry->view[id];
    const size_t size = dtype_size(self->geometry->dtype_of(id, self->geometry->problem.dtype));
    return reinterpret_cast<void*>(self->base[v.buffer] + uintptr_t(v.offset) * size);
  }
};

// The library's text with its short account of the refusals replaced by one line for each.
std::string with_all_refusals(const std::string& text, const std::string& json) {
  const std::string heading = "refused    ";
  const size_t at = text.find("\n" + heading);
  if (at == std::string::npos) return text;
  std::string whole = text.substr(0, at + 1), start = heading;
  const JsonValue answer = parse_json(json);
  for (const JsonValue& refusal : answer["refused"].items) {
    const std::string& kernel = refusal["kernel"].text;
    whole += start + (kernel.empty() ? "" : kernel + ": ") + refusal["reason"].text + "\n";
    start.assign(heading.size(), ' ');
  }
  return whole;
}

}  // namespace

Answer ask(fw_device* device, const Case& c, fw_format format) {
  const Geometry geometry = make_geometry(c);
  Addresses addresses(geometry);
  fw_attention attention;
  fw_gradients gradients;
  describe_problem(geometry, c.dtype, Addresses::of, &addresses, &attention, &gradients);
  fw_exec exec;
  fw_exec_init(&exec, sizeof exec);
  exec.num_threads = int32_t(c.threads);
  exec.force_kernel = c.kernel.empty() ? nullptr : c.kernel.c_str();

  Answer answer;
  std::string buffer(4096, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    size_t needed = 0;
    answer.status = fw_explain(device, &attention, c.backward ? &gradients : nullptr, &exec, format, buffer.data(),
                               buffer.size(), &needed);
    if (answer.status != FW_OK) answer.error = fw_last_error();
    if (needed <= buffer.size()) break;
    buffer.resize(needed);
  }
  answer.text = buffer.c_str();
  return answer;
}

std::string explain_help() {
  return "usage: flashwave explain PROBLEM [--device D] [--all] [--json]\n\n"
         "Says which kernel would run the problem on the device, why each one before it would not, and what memory "
         "and\n"
         "arithmetic it takes. PROBLEM is made of these words:\n\n" +
         words_help() +
         "\n"
         "  --device D  cpu, cuda[:i], hip[:i], emu:gfxNNN or auto (default); or the name of an architecture, gfx942,\n"
         "              gfx1100, sm_80, sm_90, ...: the GPU need not be here\n"
         "  --all       a line for each kernel before it, those of other GPUs and element types too\n"
         "  --json      one JSON object\n"
         "\nExit status 1 if no kernel takes the problem.\n";
}

int explain_command(const Arguments& arguments) {
  const Options options(arguments, {"--device=", "--all", "--json"});
  if (options.words().empty()) throw UsageError("explain needs a PROBLEM, such as b=2 sq=1024 hq=8 d=64 causal=1");
  const Case c = parse_case(options.words());
  fw_device* device = open_device(options.text("--device", "auto"));
  const Answer in_json = ask(device, c, FW_JSON);
  if (in_json.status != FW_OK) {  // a rule forbids it: there is nothing to plan
    if (options.has("--json")) {
      JsonObject object;
      object.text("status", fw_status_name(in_json.status)).text("message", in_json.error).null("kernel");
      std::printf("%s\n", object.str().c_str());
    }
    std::fprintf(stderr, "flashwave: %s: %s\n", fw_status_name(in_json.status), in_json.error.c_str());
    return 1;
  }
  std::string text = options.has("--json") ? in_json.text : ask(device, c, FW_TEXT).text;
  if (options.has("--all") && !options.has("--json")) text = with_all_refusals(text, in_json.text);
  std::fputs(text.c_str(), stdout);
  if (!text.ends_with('\n')) std::fputs("\n", stdout);
  return json_member(in_json.text, "kernel").empty() ? 1 : 0;
}

}  // namespace flashwave::cli
