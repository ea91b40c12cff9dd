#include "snippet.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "core/errors.h"
#include "load/disassembler.h"
#include "load/parse.h"
#include "run/setup.h"
#include "run/step.h"

namespace emu_test {
namespace {

using emu::Target;
using emu::u16;
using emu::u32;
using emu::u64;
using emu::u8;

constexpr size_t kBufferBytes = 4096;
constexpr u32 kScratchBytes = 256, kLdsBytes = 65536;
constexpr u64 kMostSteps = 10000;

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (size_t next; (next = text.find(separator, at)) != std::string::npos; at = next + separator.size()) {
    parts.push_back(trimmed(text.substr(at, next - at)));
  }
  parts.push_back(trimmed(text.substr(at)));
  return parts;
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::vector<std::string> expand_targets(const std::string& text) {
  static const std::vector<std::string> gfx9 = {"gfx908", "gfx90a", "gfx942", "gfx950"};
  std::vector<std::string> names;
  for (const std::string& word : words(text)) {
    if (word == "gfx9" || word == "all") names.insert(names.end(), gfx9.begin(), gfx9.end());
    if (word == "gfx11" || word == "all") names.push_back("gfx1100");
    if (word == "gfx12" || word == "all") names.push_back("gfx1201");
    if (word == "gfx9" || word == "gfx11" || word == "gfx12" || word == "all") continue;
    if (!emu::find_target(word)) throw std::runtime_error("no target " + word);
    names.push_back(word);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// --- values --------------------------------------------------------------------------------------------------------

struct Value {
  u64 bits = 0;
  int dwords = 1;
  char type = 'u';  // or f, h, b, d
  bool is_nan = false;
};

Value parse_value(const std::string& text) {
  Value v;
  const bool hex = text.size() > 2 && (text.rfind("0x", 0) == 0 || text.rfind("-0x", 0) == 0);
  const char last = text.empty() ? ' ' : text.back();
  if (!hex && std::string("fhbd").find(last) != std::string::npos) {
    // "inf" ends with a letter that is a type too: it needs one of its own ("inff").
    const std::string number = text.substr(0, text.size() - 1);
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    if (number.empty() || *end) throw std::runtime_error("not a number: " + text);
    v.type = last;
    v.is_nan = std::isnan(value);
    // strtof, so that f32 is rounded once.
    const float single = std::strtof(number.c_str(), nullptr);
    switch (last) {
      case 'f':
        v.bits = emu::bits_of(single);
        break;
      case 'h':
        v.bits = std::bit_cast<u16>(static_cast<emu::f16>(value));
        break;
      case 'b':
        v.bits = emu::bf16_of_f32(single);
        break;
      default:
        v.bits = emu::bits_of(value);
        v.dwords = 2;
    }
    return v;
  }
  char* end = nullptr;
  errno = 0;
  const bool negative = text.rfind('-', 0) == 0;
  v.bits = negative ? static_cast<u64>(std::strtoll(text.c_str(), &end, 0)) : std::strtoull(text.c_str(), &end, 0);
  if (text.empty() || *end || errno) throw std::runtime_error("not a number: " + text);
  const bool wide = hex        ? text.size() - text.find('x') - 1 > 8
                    : negative ? static_cast<emu::i64>(v.bits) < -(1ll << 31)
                               : v.bits >> 32 != 0;
  v.dwords = wide ? 2 : 1;
  if (!wide) v.bits &= 0xffffffff;
  return v;
}

bool is_nan_of(char type, u64 bits) {
  switch (type) {
    case 'f':
      return std::isnan(emu::as_f32(static_cast<u32>(bits)));
    case 'h':
      return (bits & 0x7fff) > 0x7c00;
    case 'b':
      return (bits & 0x7fff) > 0x7f80;
    case 'd':
      return std::isnan(emu::as_f64(bits));
    default:
      return false;
  }
}
// 16-bit values are compared with the whole register unless the half above is not theirs to say; a NaN of 16 bits says
// nothing of what is above it.
bool equal(const Value& expected, u64 got) {
  return expected.is_nan ? is_nan_of(expected.type, got) : expected.bits == got;
}

struct Assignment {
  std::string name;
  size_t index = 0;  // register number or byte address
  std::vector<Value> values;
};

Assignment parse_assignment(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) throw std::runtime_error("no '=' in " + text);
  Assignment a;
  std::string name = text.substr(0, equals);
  for (const std::string& value : split(text.substr(equals + 1), ",")) a.values.push_back(parse_value(value));
  const size_t at = name.find('@');
  std::string number;
  if (at != std::string::npos) {
    number = name.substr(at + 1);
    a.name = name.substr(0, at);
  } else if (name.size() > 1 && std::string("vsa").find(name[0]) != std::string::npos && std::isdigit(name[1])) {
    number = name.substr(1);
    a.name = name.substr(0, 1);
  } else {
    a.name = name;
  }
  static const std::vector<std::string> known = {"v", "a", "s", "lds", "mem", "vcc", "exec", "m0", "scc"};
  if (std::find(known.begin(), known.end(), a.name) == known.end()) throw std::runtime_error("no register " + name);
  const bool numbered = a.name == "v" || a.name == "a" || a.name == "s" || a.name == "lds" || a.name == "mem";
  if (numbered == number.empty()) throw std::runtime_error("no register " + name);
  if (numbered) a.index = std::stoul(number, nullptr, 0);
  return a;
}

bool is_row(const Assignment& a) { return a.name == "v" || a.name == "a"; }
bool is_mask(const Assignment& a) { return a.name == "vcc" || a.name == "exec"; }

// --- assembling ----------------------------------------------------------------------------------------------------

const char* const kKernel = R"(
.globl snippets
.type snippets,@function
.p2align 8
snippets:
)";
std::string descriptor(const Target& target) {
  std::string text =
      ".rodata\n.p2align 6\n.amdhsa_kernel snippets\n.amdhsa_next_free_sgpr 100\n.amdhsa_float_denorm_mode_32 3\n"
      ".amdhsa_private_segment_fixed_size " +
      std::to_string(kScratchBytes) + "\n";
  text += target.cdna >= 2 ? ".amdhsa_next_free_vgpr 512\n.amdhsa_accum_offset 256\n" : ".amdhsa_next_free_vgpr 256\n";
  if (target.is_rdna()) text += ".amdhsa_wavefront_size32 1\n";
  return text + ".end_amdhsa_kernel\n";
}

struct Folder {
  std::string path;
  Folder() {
    std::string name = (std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + std::string("/snippetsXXXXXX");
    if (!mkdtemp(name.data())) throw std::runtime_error("cannot make a folder for the assembler's files");
    path = name;
  }
  ~Folder() {
    for (const char* file : {"/text.s", "/text.o", "/text.so", "/errors"}) unlink((path + file).c_str());
    rmdir(path.c_str());
  }
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The linked code object, or "" with `errors` filled: message by line of the source.
std::string build(const Target& target, const std::string& source, std::vector<std::pair<int, std::string>>& errors) {
  const Folder folder;
  std::ofstream(folder.path + "/text.s") << source;
  const std::string features = target.features.empty() ? "" : " -mattr=" + target.features;
  const std::string command =
      "cd '" + folder.path + "' && " + FLASHWAVE_LLVM_MC " -triple=amdgcn-amd-amdhsa -mcpu=" + target.name + features +
      " -filetype=obj text.s -o text.o 2>errors && " FLASHWAVE_LLD " -shared text.o -o text.so 2>>errors";
  if (std::system(command.c_str()) == 0) return contents(folder.path + "/text.so");
  std::istringstream lines(contents(folder.path + "/errors"));
  for (std::string line; std::getline(lines, line);) {
    int number = 0;
    if (sscanf(line.c_str(), "text.s:%d:", &number) == 1 && line.find("error:") != std::string::npos) {
      errors.emplace_back(number, line.substr(line.find("error:") + 7));
    }
  }
  if (errors.empty()) throw std::runtime_error("the assembler failed: " + contents(folder.path + "/errors"));
  return "";
}

std::string place_of(const Snippet& s) { return s.file + ":" + std::to_string(s.line) + ": " + s.instructions; }

// Snippets with an s_endpgm after each; `first_line[i]`: where snippet i starts in the source.
std::string source_of(const Target& target, const std::vector<const Snippet*>& snippets, std::vector<int>& first_line) {
  std::string source = ".text\n" + std::string(kKernel);
  first_line.clear();
  for (const Snippet* snippet : snippets) {
    first_line.push_back(1 + static_cast<int>(std::count(source.begin(), source.end(), '\n')));
    for (const std::string& instruction : split(snippet->instructions, ";")) source += instruction + "\n";
    source += "s_endpgm\n";
  }
  return source + "s_endpgm\n" + descriptor(target);
}

// Which snippets the decoder does not take, and why. Only looked at when the whole cannot be loaded.
std::vector<std::string> undecodable(const Target& target, const std::string& object, size_t count) {
  std::vector<std::string> why(count);
  // The text section is what an object with one function has between the entry and the last s_endpgm.
  const std::string text = [&] {
    const Folder folder;
    std::ofstream(folder.path + "/text.so", std::ios::binary) << object;
    const std::string command =
        FLASHWAVE_OBJCOPY " -O binary --only-section=.text '" + folder.path + "/text.so' '" + folder.path + "/text.o'";
    if (std::system(command.c_str()) != 0) throw std::runtime_error("objcopy failed");
    return contents(folder.path + "/text.o");
  }();
  emu::Disassembler disassembler(target);
  size_t snippet = 0;
  for (size_t at = 0; at < text.size() && snippet < count;) {
    std::string line;
    const u8* bytes = reinterpret_cast<const u8*>(text.data()) + at;
    const size_t size = disassembler.one(bytes, text.size() - at, line);
    if (!size) throw std::runtime_error("LLVM does not decode what it assembled");
    for (const std::string& half : split(line, " :: ")) {
      emu::Instruction in;
      in.size = static_cast<u8>(size);
      std::memcpy(in.word, bytes, std::min<size_t>(size, 8));
      const std::string problem = emu::parse_instruction(half, target, in);
      if (!problem.empty() && why[snippet].empty()) why[snippet] = problem;
    }
    at += size;
    if (trimmed(line) == "s_endpgm") ++snippet;
  }
  return why;
}

}  // namespace

std::vector<Snippet> read_snippets(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<Snippet> snippets;
  std::string text;
  const std::string name = path.substr(path.rfind('/') + 1);
  for (int line = 1; std::getline(file, text); ++line) {
    text = trimmed(text.substr(0, text.find('#')));
    if (text.empty()) continue;
    const auto fail = [&](const std::string& why) {
      throw std::runtime_error(name + ":" + std::to_string(line) + ": " + why);
    };
    const std::vector<std::string> fields = split(text, "|");
    if (fields.size() != 4) fail("four fields are expected, there are " + std::to_string(fields.size()));
    try {
      snippets.push_back({name, line, expand_targets(fields[0]), fields[1], fields[2], fields[3]});
      for (const std::string& word : words(fields[2])) parse_assignment(word);
      for (const std::string& word : words(fields[3])) parse_assignment(word);
    } catch (const std::exception& e) {
      fail(e.what());
    }
    if (fields[3].empty()) fail("nothing is expected");
  }
  return snippets;
}

Assembled assemble(const Target& target, const std::vector<Snippet>& snippets) {
  Assembled result;
  for (const Snippet& s : snippets) {
    if (std::find(s.targets.begin(), s.targets.end(), target.name) != s.targets.end()) result.snippets.push_back(&s);
  }
  const auto leave_out = [&](const std::vector<std::string>& why) {
    std::vector<const Snippet*> kept;
    for (size_t i = 0; i < why.size(); ++i) {
      if (why[i].empty()) {
        kept.push_back(result.snippets[i]);
      } else {
        result.problems.push_back(place_of(*result.snippets[i]) + ": " + why[i]);
      }
    }
    result.snippets = kept;
  };
  std::string object;
  while (object.empty() && !result.snippets.empty()) {
    std::vector<int> first_line;
    std::vector<std::pair<int, std::string>> errors;
    object = build(target, source_of(target, result.snippets, first_line), errors);
    std::vector<std::string> why(result.snippets.size());
    for (const auto& [line, message] : errors) {
      const auto after = std::upper_bound(first_line.begin(), first_line.end(), line);
      if (after == first_line.begin()) throw std::runtime_error("the assembler does not take the frame: " + message);
      why[static_cast<size_t>(after - first_line.begin()) - 1] = "LLVM does not assemble it: " + message;
    }
    if (object.empty()) {
      leave_out(why);
      continue;
    }
    try {
      result.program = emu::load_program(object.data(), object.size());
    } catch (const emu::LoadError& e) {
      why = undecodable(target, object, result.snippets.size());
      if (std::all_of(why.begin(), why.end(), [](const std::string& w) { return w.empty(); })) throw;
      leave_out(why);
      object.clear();
    }
  }
  if (!result.program) return result;
  u32 at = result.program->index_of.at(result.program->kernels.at("snippets").entry);
  for (size_t i = 0; i < result.snippets.size(); ++i) {
    result.begin.push_back(at);
    while (result.program->code.at(at).cls != emu::Class::end) ++at;
    result.end.push_back(at++);
  }
  return result;
}

// --- running -------------------------------------------------------------------------------------------------------

SnippetRunner::SnippetRunner(const emu::Program& program)
    : program_(program),
      kernel_(program.kernels.at("snippets")),
      log_(program, kernel_),
      buffer_(kBufferBytes / 4),
      wave_(std::make_unique<emu::Wave>()),
      waves_{wave_.get()} {
  const u64 address = reinterpret_cast<u64>(buffer_.data());
  const u64 image = reinterpret_cast<u64>(program.image);
  memory_ = std::make_unique<emu::MemoryMap>(
      std::vector<emu::Region>{{address, address + kBufferBytes, "mem", true, false},
                               {image, image + program.image_bytes, "the code object", true, false}});
  group_.program = &program;
  group_.kernel = &kernel_;
  group_.target = program.target;
  group_.memory = memory_.get();
  group_.wave_count = 1;
  group_.waves = waves_;
  group_.log = &log_;
  wave_->scratch.resize(static_cast<size_t>(kScratchBytes) * emu::kLanes);
}

void SnippetRunner::reset() {
  std::fill(buffer_.begin(), buffer_.end(), 0xffffffff);
  group_.lds.assign(kLdsBytes, 0xff);
  emu::LaunchShape shape;
  shape.block[0] = static_cast<u32>(kernel_.wave_size);
  const emu::DispatchMemory dispatch = emu::make_dispatch(program_, kernel_, shape, nullptr, 0);
  emu::Wave& w = *wave_;
  emu::start_wave(w, 0, group_, shape, dispatch);
  std::memset(w.vgpr, 0xff, sizeof w.vgpr);
  std::fill(w.sgpr, w.sgpr + emu::kTtmp0, 0xffffffff);  // the numbered ones and vcc
  w.sgpr[emu::kM0] = 0xffffffff;
  w.set_exec(w.full_mask);
  const u64 address = reinterpret_cast<u64>(buffer_.data());
  emu::store64(&w.sgpr[20], address);
  for (int lane = 0; lane < w.lanes; ++lane) {
    w.vgpr[20][lane] = static_cast<u32>(address);
    w.vgpr[21][lane] = static_cast<u32>(address >> 32);
  }
}

namespace {

u32* consecutive_words(const Assignment& a, emu::Wave& w, std::vector<u8>& lds, std::vector<u32>& buffer,
                       size_t dwords) {
  if (a.name == "s") {
    if (a.index + dwords > emu::kVcc) throw std::runtime_error("no such scalar registers");
    return &w.sgpr[a.index];
  }
  if (a.name == "m0") return &w.sgpr[emu::kM0];
  if (a.name == "vcc") return &w.sgpr[emu::kVcc];
  if (a.name == "exec") return &w.sgpr[emu::kExec];
  const size_t limit = a.name == "lds" ? lds.size() : buffer.size() * 4;
  if (a.index % 4 || a.index + dwords * 4 > limit) throw std::runtime_error("no such words of " + a.name);
  return a.name == "lds" ? reinterpret_cast<u32*>(lds.data() + a.index) : &buffer[a.index / 4];
}

size_t dwords_of(const Assignment& a) {
  size_t count = 0;
  for (const Value& v : a.values) count += static_cast<size_t>(v.dwords);
  return count;
}

u32* row_of(const Assignment& a, emu::Wave& w, int dword) {
  const size_t reg = a.index + (a.name == "a" ? emu::kFirstAgpr : 0) + static_cast<size_t>(dword);
  if (a.index + static_cast<size_t>(dword) > 255) throw std::runtime_error("no such vector register");
  return w.vgpr[reg];
}

std::string hex(u64 value) {
  char text[32];
  snprintf(text, sizeof text, "%#llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

void SnippetRunner::apply(const std::string& assignments) {
  emu::Wave& w = *wave_;
  for (const std::string& word : words(assignments)) {
    const Assignment a = parse_assignment(word);
    if (is_row(a)) {
      for (int lane = 0; lane < w.lanes; ++lane) {
        const Value& v = a.values[static_cast<size_t>(lane) % a.values.size()];
        for (int d = 0; d < v.dwords; ++d) row_of(a, w, d)[lane] = static_cast<u32>(v.bits >> (32 * d));
      }
    } else if (a.name == "scc") {
      w.scc = a.values[0].bits != 0;
    } else if (is_mask(a) && a.values.size() == 1) {
      u64 mask = a.values[0].bits;
      if (a.values[0].dwords == 1 && word.find("=-") != std::string::npos) mask = ~0ull;
      emu::store64(consecutive_words(a, w, group_.lds, buffer_, 2), mask & w.full_mask);
    } else {
      u32* at = consecutive_words(a, w, group_.lds, buffer_, dwords_of(a));
      for (const Value& v : a.values) {
        for (int d = 0; d < v.dwords; ++d) *at++ = static_cast<u32>(v.bits >> (32 * d));
      }
    }
  }
}

std::vector<std::string> SnippetRunner::compare(const std::string& expectations) {
  emu::Wave& w = *wave_;
  std::vector<std::string> wrong;
  const auto check = [&](const std::string& what, const Value& expected, u64 got) {
    if (!equal(expected, got)) wrong.push_back(what + ": expected " + hex(expected.bits) + ", got " + hex(got));
  };
  for (const std::string& word : words(expectations)) {
    const Assignment a = parse_assignment(word);
    const std::string name = word.substr(0, word.find('='));
    if (is_row(a)) {
      const size_t lanes = a.values.size() == 1 ? static_cast<size_t>(w.lanes) : a.values.size();
      if (lanes > static_cast<size_t>(w.lanes) && w.lanes == 64) throw std::runtime_error("more values than lanes");
      for (size_t lane = 0; lane < std::min(lanes, static_cast<size_t>(w.lanes)); ++lane) {
        if (a.values.size() == 1 && !(active_ >> lane & 1)) continue;
        const Value& v = a.values[a.values.size() == 1 ? 0 : lane];
        u64 got = row_of(a, w, 0)[lane];
        if (v.dwords == 2) got |= static_cast<u64>(row_of(a, w, 1)[lane]) << 32;
        check(name + " lane " + std::to_string(lane), v, got);
      }
    } else if (a.name == "scc") {
      check(name, a.values[0], w.scc);
    } else if (is_mask(a) && a.values.size() == 1) {
      Value v = a.values[0];
      if (v.dwords == 1 && word.find("=-") != std::string::npos) v.bits = ~0ull;
      v.bits &= w.full_mask;
      check(name, v, emu::load64(consecutive_words(a, w, group_.lds, buffer_, 2)) & w.full_mask);
    } else {
      const u32* at = consecutive_words(a, w, group_.lds, buffer_, dwords_of(a));
      for (size_t i = 0; i < a.values.size(); ++i) {
        const Value& v = a.values[i];
        check(name + "[" + std::to_string(i) + "]", v, v.dwords == 2 ? emu::load64(at) : *at);
        at += v.dwords;
      }
    }
  }
  return wrong;
}

std::vector<std::string> SnippetRunner::run(const Snippet& snippet, u32 begin, u32 end) {
  reset();
  try {
    apply(snippet.before);
    active_ = wave_->exec();
    wave_->pc = begin;
    for (u64 steps = 0; wave_->pc != end; ++steps) {
      if (wave_->pc >= program_.code.size() || steps >= kMostSteps) return {"does not reach its end"};
      emu::step<false>(*wave_, program_.code[wave_->pc]);
      wave_->state = emu::WaveState::running;
    }
    return compare(snippet.after);
  } catch (const std::exception& e) {
    return {e.what()};
  }
}

}  // namespace emu_test
