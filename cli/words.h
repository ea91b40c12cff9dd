// A problem as the command line writes it: key=value words, and the Case they stand for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashwave/flashwave.h"

namespace flashwave::cli {

enum class Layout { kBshd, kBhsd, kQkvPacked, kKvPacked, kVarlen };
enum class Alibi { kNone, kPerHead, kPerBatchHead };
enum class Expect { kOk, kRefused, kInvalid };

struct Case {
  bool backward = false;
  int64_t b = 1, sq = 128, sk = -1, hq = 1, hk = -1;  // -1: as sq, as hq (resolved by parse_case)
  int64_t dqk = 64, dv = 64;
  fw_dtype dtype = FW_F32;
  bool float_out = false, float_gradients = false;  // o, and dq, dk and dv, in F32
  bool accumulate = false;
  bool placed = false;  // FW_POSITIONS
  int64_t position_q = 0, position_k = 0;
  int64_t dropout_first = 0, dropout_heads = 0;
  bool causal = false;
  int64_t window_left = -1, window_right = -1;
  float scale = FW_SCALE_AUTO, softcap = 0;
  Alibi alibi = Alibi::kNone;
  std::string bias;                     // empty, or four letters: "bhqk" with 1 where it broadcasts
  fw_dtype bias_dtype = FW_DTYPE_NONE;  // none: F32
  bool sinks = false;
  float dropout = 0;
  bool dropout_state = false;
  uint64_t seed = 0;
  bool lse = true, probs = false;
  Layout layout = Layout::kBshd;
  std::vector<std::pair<int64_t, int64_t>> lengths;  // varlenlens: queries and keys of each sequence
  bool seqused = false, leftpad = false, cache_index = false;
  int64_t page = 0, append = 0, rotary = 0;
  bool interleaved = false;
  int64_t splits = 0, threads = 0;
  int64_t units = 0;  // of a suite: devices with fewer compute units pass it over
  std::string kernel;
  bool d_lse = false, d_bias = false, d_sinks = false, d_slopes = false, deterministic = false, fast_rounding = false;
  bool fill = false;  // FW_FILL_UNUSED
  bool least_bias = false;
  Expect expect = Expect::kOk;
  std::string expect_text;  // must occur in the refusal's message

  bool varlen() const { return layout == Layout::kVarlen; }
  bool paged() const { return page > 0; }
};

// Throws UsageError that names the word and what it takes.
Case parse_case(std::string_view words);

// The words that rebuild the case: all sizes, then whatever is not at its default.
std::string format_case(const Case& c);
// The same without the seed, the thread count, the devices and the expectation: a label for tables.
std::string label_case(const Case& c);

// One line per word, for --help.
std::string words_help();

// Number parsing shared with the options: throws UsageError naming `what`.
int64_t parse_integer(std::string_view text, const std::string& what, int64_t low, int64_t high);
uint64_t parse_unsigned(std::string_view text, const std::string& what);
float parse_float(std::string_view text, const std::string& what);

}  // namespace flashwave::cli
