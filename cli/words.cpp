#include "words.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "dtype.h"
#include "errors.h"

namespace flashwave::cli {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 40;

// One row per word: what it is, how it is read, and what format_case writes (empty = at its default, left out).
struct Word {
  const char* name;
  const char* help;
  std::function<void(Case&, std::string_view)> read;
  std::function<std::string(const Case&)> write;
};

std::string text_of(float value) {
  char buffer[48];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

[[noreturn]] void bad(const std::string& name, std::string_view value, const std::string& rule) {
  throw UsageError("word " + name + "=" + std::string(value) + ": " + rule);
}

Word size_word(const char* name, const char* help, int64_t Case::* field, int64_t low) {
  return {name, help, [=](Case& c, std::string_view v) { c.*field = parse_integer(v, name, low, kMaxSize); },
          [=](const Case& c) { return std::to_string(c.*field); }};
}

Word optional_integer(const char* name, const char* help, int64_t Case::* field) {
  return {name, help, [=](Case& c, std::string_view v) { c.*field = parse_integer(v, name, 0, kMaxSize); },
          [=](const Case& c) { return c.*field ? std::to_string(c.*field) : std::string(); }};
}

Word flag_word(const char* name, const char* help, bool Case::* field, bool initially = false) {
  return {name, help,
          [=](Case& c, std::string_view v) {
            if (v != "0" && v != "1") bad(name, v, "takes 0 or 1");
            c.*field = v == "1";
          },
          [=](const Case& c) { return c.*field == initially ? std::string() : std::string(c.*field ? "1" : "0"); }};
}

template <class E>
Word choice_word(const char* name, const char* help, E Case::* field,
                 const std::vector<std::pair<const char*, E>>& choices) {
  return {name, help,
          [=](Case& c, std::string_view v) {
            std::string all;
            for (const auto& [text, value] : choices) {
              if (v == text) {
                c.*field = value;
                return;
              }
              all += std::string(all.empty() ? "" : ", ") + text;
            }
            bad(name, v, "takes one of " + all);
          },
          [=](const Case& c) {
            for (const auto& [text, value] : choices) {
              if (c.*field == value && value != choices.front().second) return std::string(text);
            }
            return std::string();
          }};
}

void read_window(Case& c, std::string_view v) {
  const size_t comma = v.find(',');
  if (comma == std::string_view::npos) bad("window", v, "takes left,right (-1 = no limit)");
  c.window_left = parse_integer(v.substr(0, comma), "window's left", -1, kMaxSize);
  c.window_right = parse_integer(v.substr(comma + 1), "window's right", -1, kMaxSize);
}

// Two numbers.
std::pair<int64_t, int64_t> read_pair(const char* name, std::string_view v, const char* rule) {
  const size_t comma = v.find(',');
  if (comma == std::string_view::npos) bad(name, v, rule);
  return {parse_integer(v.substr(0, comma), name, 0, kMaxSize), parse_integer(v.substr(comma + 1), name, 0, kMaxSize)};
}

void read_positions(Case& c, std::string_view v) {
  std::tie(c.position_q, c.position_k) = read_pair("positions", v, "takes those of the first query and the first key");
  c.placed = true;
}

// Whether a word that can only say f32 says so.
Word float_flag(const char* name, const char* help, bool Case::* field) {
  return {name, help,
          [=](Case& c, std::string_view v) {
            if (v != "f32") bad(name, v, "takes f32");
            c.*field = true;
          },
          [=](const Case& c) { return c.*field ? std::string("f32") : std::string(); }};
}

void read_bias(Case& c, std::string_view v) {
  if (v == "none") {
    c.bias.clear();
    return;
  }
  if (v == "full" || v == "1") v = "bhqk";
  const std::string_view letters = "bhqk";
  bool good = v.size() == 4;
  for (size_t i = 0; good && i < 4; ++i) good = v[i] == letters[i] || v[i] == '1';
  if (!good) bad("bias", v, "takes none, full, or bhqk with a 1 for each dimension that broadcasts, such as 1h1k");
  c.bias = v;
}

void read_lengths(Case& c, std::string_view v) {
  c.lengths.clear();
  while (!v.empty()) {
    const std::string_view pair = v.substr(0, v.find(','));
    v.remove_prefix(std::min(v.size(), pair.size() + 1));
    const size_t colon = pair.find(':');
    if (colon == std::string_view::npos) bad("varlenlens", pair, "takes queries:keys,queries:keys,...");
    c.lengths.emplace_back(parse_integer(pair.substr(0, colon), "varlenlens", 0, kMaxSize),
                           parse_integer(pair.substr(colon + 1), "varlenlens", 0, kMaxSize));
  }
  if (c.lengths.empty()) bad("varlenlens", v, "takes queries:keys,queries:keys,...");
}

std::string write_lengths(const Case& c) {
  std::string text;
  for (const auto& [q, k] : c.lengths) {
    text += (text.empty() ? "" : ",") + std::to_string(q) + ":" + std::to_string(k);
  }
  return text;
}

void read_expect(Case& c, std::string_view v) {
  const size_t open = v.find('(');
  const std::string_view kind = v.substr(0, open);
  c.expect_text.clear();
  if (open != std::string_view::npos) {
    if (v.back() != ')') bad("expect", v, "lacks its closing parenthesis");
    c.expect_text = v.substr(open + 1, v.size() - open - 2);
  }
  if (kind == "ok" && c.expect_text.empty()) {
    c.expect = Expect::kOk;
  } else if (kind == "refused") {
    c.expect = Expect::kRefused;
  } else if (kind == "invalid") {
    c.expect = Expect::kInvalid;
  } else {
    bad("expect", v, "takes ok, refused, refused(TEXT), invalid or invalid(TEXT)");
  }
}

std::string write_expect(const Case& c) {
  if (c.expect == Expect::kOk) return "";
  return (c.expect == Expect::kRefused ? "refused" : "invalid") +
         (c.expect_text.empty() ? "" : "(" + c.expect_text + ")");
}

Word float_word(const char* name, const char* help, float Case::* field, float initially) {
  return {name, help, [=](Case& c, std::string_view v) { c.*field = parse_float(v, name); },
          [=](const Case& c) { return c.*field == initially ? std::string() : text_of(c.*field); }};
}

Word dtype_word(const char* name, const char* help, fw_dtype Case::* field) {
  return {name, help,
          [=](Case& c, std::string_view v) {
            if (!parse_dtype(v, &(c.*field))) bad(name, v, "takes f32, bf16 or f16");
          },
          [=](const Case& c) { return c.*field == FW_DTYPE_NONE ? std::string() : dtype_name(c.*field); }};
}

std::vector<Word> make_words() {
  std::vector<Word> w;
  w.push_back(choice_word<bool>("op", "fwd (default) or bwd", &Case::backward, {{"fwd", false}, {"bwd", true}}));
  w.push_back(size_word("b", "batch (1)", &Case::b, 0));
  w.push_back(size_word("sq", "queries of a sequence (128)", &Case::sq, 0));
  w.push_back(size_word("sk", "keys of a sequence (sq); capacity of a row when a cache is used", &Case::sk, 0));
  w.push_back(size_word("hq", "query heads (1)", &Case::hq, 1));
  w.push_back(size_word("hk", "key heads (hq)", &Case::hk, 1));
  w.push_back({"d", "head dim of q, k and v (64)",
               [](Case& c, std::string_view v) { c.dqk = c.dv = parse_integer(v, "d", 1, kMaxSize); },
               [](const Case& c) { return c.dqk == c.dv ? std::to_string(c.dqk) : std::string(); }});
  w.push_back({"dqk", "head dim of q and k",
               [](Case& c, std::string_view v) { c.dqk = parse_integer(v, "dqk", 1, kMaxSize); },
               [](const Case& c) { return c.dqk != c.dv ? std::to_string(c.dqk) : std::string(); }});
  w.push_back({"dv", "head dim of v and o",
               [](Case& c, std::string_view v) { c.dv = parse_integer(v, "dv", 1, kMaxSize); },
               [](const Case& c) { return c.dqk != c.dv ? std::to_string(c.dv) : std::string(); }});
  w.push_back(dtype_word("dtype", "f32 (default), bf16 or f16", &Case::dtype));
  w.push_back(float_flag("odtype", "f32: o in F32 whatever dtype is", &Case::float_out));
  w.push_back(float_flag("gradtype", "f32: dq, dk and dv in F32 whatever dtype is", &Case::float_gradients));
  w.push_back(flag_word("accumulate", "1 = o (in F32) and lse hold the results of other keys", &Case::accumulate));
  w.push_back({"positions", "query,key: positions of the first query and key in the whole sequence", read_positions,
               [](const Case& c) {
                 if (!c.placed) return std::string();
                 return std::to_string(c.position_q) + "," + std::to_string(c.position_k);
               }});
  w.push_back(flag_word("causal", "1 = causal, aligned to the bottom right", &Case::causal));
  w.push_back(
      {"window", "left,right: keys seen on either side of the diagonal, -1 = no limit", read_window, [](const Case& c) {
         if (c.window_left < 0 && c.window_right < 0) return std::string();
         return std::to_string(c.window_left) + "," + std::to_string(c.window_right);
       }});
  w.push_back(float_word("scale", "softmax scale (1/sqrt(dqk))", &Case::scale, FW_SCALE_AUTO));
  w.push_back(float_word("softcap", "0 = off", &Case::softcap, 0));
  w.push_back(choice_word<Alibi>(
      "alibi", "0, h (slopes per head) or bh (per batch and head)", &Case::alibi,
      {{"0", Alibi::kNone}, {"h", Alibi::kPerHead}, {"1", Alibi::kPerHead}, {"bh", Alibi::kPerBatchHead}}));
  w.push_back({"bias", "none, full, or bhqk with a 1 for each dimension that broadcasts (1h1k)", read_bias,
               [](const Case& c) { return c.bias; }});
  w.push_back(flag_word("biasleast", "1 = every third query has a bias of its type's least finite number, for all keys",
                        &Case::least_bias));
  w.push_back(dtype_word("biasdtype", "f32 (default) or the dtype of q", &Case::bias_dtype));
  w.push_back(flag_word("sinks", "1 = an attention sink per head", &Case::sinks));
  w.push_back(float_word("dropout", "probability, 0 <= p < 1", &Case::dropout, 0));
  w.push_back({"dropout_heads", "first,heads: what dropout counts the first head as, and how many a sequence has",
               [](Case& c, std::string_view v) {
                 std::tie(c.dropout_first, c.dropout_heads) = read_pair("dropout_heads", v, "takes first,heads");
               },
               [](const Case& c) {
                 if (c.dropout_first == 0 && c.dropout_heads == 0) return std::string();
                 return std::to_string(c.dropout_first) + "," + std::to_string(c.dropout_heads);
               }});
  w.push_back(flag_word("dropout_state", "1 = its seed and offset in the device's memory", &Case::dropout_state));
  w.push_back(choice_word<Layout>(
      "layout", "bshd (default), bhsd, qkvpacked, kvpacked or varlen (ragged, from the seed)", &Case::layout,
      {{"bshd", Layout::kBshd},
       {"bhsd", Layout::kBhsd},
       {"qkvpacked", Layout::kQkvPacked},
       {"kvpacked", Layout::kKvPacked},
       {"varlen", Layout::kVarlen}}));
  w.push_back({"varlenlens", "queries:keys,... of each sequence instead of random ones", read_lengths, write_lengths});
  w.push_back(flag_word("seqused", "1 = random seqused_k", &Case::seqused));
  w.push_back(flag_word("leftpad", "1 = random leftpad_k", &Case::leftpad));
  w.push_back(flag_word("cacheidx", "1 = rows of the cache picked by cache_batch_idx", &Case::cache_index));
  w.push_back(optional_integer("page", "page size: paged k and v with a shuffled block table", &Case::page));
  w.push_back(optional_integer("append", "keys appended to the cache (implies seqused=1)", &Case::append));
  w.push_back(optional_integer("rotary", "rotary dim", &Case::rotary));
  w.push_back(flag_word("interleaved", "1 = rotate pairs (2i, 2i+1)", &Case::interleaved));
  w.push_back(flag_word("lse", "1 (default) = ask for the log-sum-exp", &Case::lse, true));
  w.push_back(flag_word("probs", "1 = ask for the softmax matrix", &Case::probs));
  w.push_back(flag_word("dlse", "1 = bwd with an incoming gradient of lse", &Case::d_lse));
  w.push_back(flag_word("dbias", "1 = bwd asks for the gradient of bias", &Case::d_bias));
  w.push_back(flag_word("dsinks", "1 = bwd asks for the gradient of sinks", &Case::d_sinks));
  w.push_back(flag_word("dslopes", "1 = bwd asks for the gradient of the ALiBi slopes", &Case::d_slopes));
  w.push_back(flag_word("deterministic", "1 = FW_DETERMINISTIC", &Case::deterministic));
  w.push_back(flag_word("fast_rounding", "1 = FW_FAST_ROUNDING", &Case::fast_rounding));
  w.push_back(flag_word("fill", "1 = FW_FILL_UNUSED", &Case::fill));
  w.push_back(optional_integer("splits", "split-KV parts, 0 = the library chooses", &Case::splits));
  w.push_back(optional_integer("threads", "CPU threads, 0 = the library chooses", &Case::threads));
  w.push_back(optional_integer("units", "only for devices with at least so many compute units", &Case::units));
  w.push_back({"kernel", "the kernel that must run", [](Case& c, std::string_view v) { c.kernel = v; },
               [](const Case& c) { return c.kernel; }});
  w.push_back({"seed", "of the data, the lengths and the dropout mask (0)",
               [](Case& c, std::string_view v) { c.seed = parse_unsigned(v, "seed"); },
               [](const Case& c) { return c.seed ? std::to_string(c.seed) : std::string(); }});
  w.push_back({"expect", "ok (default), refused[(TEXT)]: no kernel takes it, invalid[(TEXT)]: a rule forbids it",
               read_expect, write_expect});
  return w;
}

// fw_explain describes a problem by what it can see; its words for what was a layout here are understood as well.
std::string_view alias(std::string_view word) {
  if (word == "varlen=1") return "layout=varlen";
  return word;
}

const std::vector<Word>& words() {
  static const std::vector<Word> all = make_words();
  return all;
}

// What a word needs beside it. The library's own rules stay the library's.
void check_together(const Case& c) {
  if (c.layout == Layout::kQkvPacked && (c.sq != c.sk || c.paged() || c.cache_index || c.append)) {
    throw UsageError("layout=qkvpacked takes sk equal to sq and no page, cacheidx or append");
  }
  if (!c.lengths.empty() && !c.varlen()) throw UsageError("varlenlens needs layout=varlen");
  if (!c.lengths.empty() && int64_t(c.lengths.size()) != c.b) {
    throw UsageError("varlenlens has " + std::to_string(c.lengths.size()) + " sequences, b=" + std::to_string(c.b));
  }
  for (const auto& [q, k] : c.lengths) {
    if (q > c.sq || k > c.sk) throw UsageError("varlenlens: a sequence is longer than sq or sk");
  }
  if (c.append > c.sk) throw UsageError("append is more than sk, the rows of the cache");
  if (c.paged() && c.cache_index) throw UsageError("page and cacheidx exclude each other");
  if (c.rotary > 0 && c.append == 0) throw UsageError("rotary needs append");
  if (c.least_bias && c.bias.find('q') == std::string::npos) throw UsageError("biasleast needs a bias with queries");
  if (c.d_bias && c.bias.empty()) throw UsageError("dbias needs bias");
  if (c.d_sinks && !c.sinks) throw UsageError("dsinks needs sinks");
  if (c.d_slopes && c.alibi == Alibi::kNone) throw UsageError("dslopes needs alibi");
  if (!c.backward && (c.d_lse || c.d_bias || c.d_sinks || c.d_slopes)) {
    throw UsageError("dlse, dbias, dsinks and dslopes need op=bwd");
  }
  if (c.float_gradients && !c.backward) throw UsageError("gradtype needs op=bwd");
  if (c.accumulate && c.backward) throw UsageError("accumulate needs op=fwd");
  if (c.backward && c.probs) throw UsageError("probs needs op=fwd");
}

template <class T>
T parse_number(std::string_view text, const std::string& what) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
    throw UsageError(what + ": '" + std::string(text) + "' is not a number it takes");
  }
  return value;
}

}  // namespace

int64_t parse_integer(std::string_view text, const std::string& what, int64_t low, int64_t high) {
  const auto value = parse_number<int64_t>(text, what);
  if (value < low || value > high) {
    throw UsageError(what + ": " + std::string(text) + " is not in " + std::to_string(low) + ".." +
                     std::to_string(high));
  }
  return value;
}

uint64_t parse_unsigned(std::string_view text, const std::string& what) { return parse_number<uint64_t>(text, what); }

float parse_float(std::string_view text, const std::string& what) {
  const auto value = parse_number<float>(text, what);
  if (!std::isfinite(value)) throw UsageError(what + ": must be finite");
  return value;
}

Case parse_case(std::string_view text) {
  Case c;
  std::set<std::string> seen;
  while (true) {
    const size_t start = text.find_first_not_of(" \t\r\n");
    if (start == std::string_view::npos) break;
    text.remove_prefix(start);
    const std::string_view written = text.substr(0, text.find_first_of(" \t\r\n"));
    text.remove_prefix(written.size());
    const std::string_view word = alias(written);
    const size_t equals = word.find('=');
    const std::string given(word.substr(0, equals)), name = given == "paged" ? "page" : given;
    const Word* known = nullptr;
    for (const Word& w : words()) {
      if (name == w.name) known = &w;
    }
    if (!known)
      throw UsageError("unknown word '" + std::string(word) + "' ('flashwave explain --help' lists the words)");
    if (equals == std::string_view::npos) throw UsageError("word '" + name + "' needs a value: " + name + "=...");
    if (!seen.insert(name).second) throw UsageError("word '" + name + "' is given twice");
    known->read(c, word.substr(equals + 1));
  }
  if (!c.lengths.empty()) {
    int64_t longest_q = 0, longest_k = 0;
    for (const auto& [q, k] : c.lengths) longest_q = std::max(longest_q, q), longest_k = std::max(longest_k, k);
    if (!seen.count("b")) c.b = int64_t(c.lengths.size());
    if (!seen.count("sq")) c.sq = longest_q;
    if (!seen.count("sk")) c.sk = longest_k;
  }
  if (c.sk < 0) c.sk = c.sq;
  if (c.hk < 0) c.hk = c.hq;
  if (c.append > 0) c.seqused = true;
  if (c.accumulate) c.float_out = true;
  check_together(c);
  return c;
}

std::string format_case(const Case& c) {
  std::string text;
  for (const Word& w : words()) {
    const std::string value = w.write(c);
    if (!value.empty()) text += (text.empty() ? "" : " ") + std::string(w.name) + "=" + value;
  }
  return text;
}

std::string label_case(const Case& c) {
  Case shown = c;
  shown.seed = 0;
  shown.threads = 0;
  shown.units = 0;
  shown.expect = Expect::kOk;
  const std::string op = c.backward ? "bwd " : "fwd ";
  shown.backward = false;
  return op + format_case(shown);
}

std::string words_help() {
  std::string text;
  for (const Word& w : words()) {
    std::string line = "  " + std::string(w.name);
    line.resize(std::max<size_t>(line.size() + 1, 16), ' ');
    text += line + w.help + "\n";
  }
  return text;
}

}  // namespace flashwave::cli
