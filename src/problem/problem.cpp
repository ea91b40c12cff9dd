#include "problem/problem.h"

#include <cmath>
#include <cstdio>

namespace flashwave {
namespace {

// "bhqk" with a 1 for each dimension the bias broadcasts over.
std::string bias_word(const fw_tensor& bias) {
  std::string word = "bhqk";
  for (int i = 0; i < 4; ++i) {
    if (bias.stride[i] == 0) word[i] = '1';
  }
  return word;
}

class Words {
 public:
  void add(const char* key, int64_t value) { append(key, std::to_string(value)); }
  void add(const char* key, const char* value) { append(key, value); }
  void add(const char* key, float value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));  // 9 digits give the same float back
    append(key, text);
  }
  void flag(const char* key, bool set) {
    if (set) append(key, "1");
  }
  void append(const char* key, const std::string& value) {
    if (!text_.empty()) text_ += ' ';
    text_ += key;
    text_ += '=';
    text_ += value;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace

const char* dtype_word(int32_t dtype) {
  switch (dtype) {
    case FW_F16:
      return "f16";
    case FW_BF16:
      return "bf16";
    case FW_F32:
      return "f32";
    default:
      return "none";
  }
}

float Problem::scale() const {
  return a.softmax_scale == FW_SCALE_AUTO ? 1.0f / std::sqrt(static_cast<float>(a.dim_qk)) : a.softmax_scale;
}

bool Problem::float_gradients() const {
  const auto wide = [&](const fw_tensor& t) { return t.data != nullptr && t.dtype == FW_F32; };
  return a.q.dtype != FW_F32 && (wide(g.dq) || wide(g.dk) || wide(g.dv));
}

std::string describe(const Problem& problem) {
  const fw_attention& a = problem.a;
  Words words;
  if (problem.backward) words.add("op", "bwd");
  words.add("b", a.batch);
  words.add("sq", a.seqlen_q);
  words.add("sk", a.seqlen_k);
  words.add("hq", a.heads_q);
  words.add("hk", a.heads_k);
  if (a.dim_qk == a.dim_v) {
    words.add("d", a.dim_qk);
  } else {
    words.add("dqk", a.dim_qk);
    words.add("dv", a.dim_v);
  }
  words.add("dtype", dtype_word(a.q.dtype));
  words.flag("causal", problem.causal());
  if (a.window_left != -1 || a.window_right != -1) {
    words.append("window", std::to_string(a.window_left) + "," + std::to_string(a.window_right));
  }
  if (problem.placed()) {
    words.append("positions", std::to_string(a.position_q) + "," + std::to_string(a.position_k));
  }
  if (problem.float_out()) words.add("odtype", "f32");
  words.flag("accumulate", problem.accumulate());
  if (a.softmax_scale != FW_SCALE_AUTO) words.add("scale", a.softmax_scale);
  if (a.softcap != 0) words.add("softcap", a.softcap);
  if (a.alibi_slopes != nullptr) words.add("alibi", a.alibi_batch_stride == 0 ? "h" : "bh");
  if (a.bias.data != nullptr) words.append("bias", bias_word(a.bias));
  if (a.bias.data != nullptr && a.bias.dtype != FW_F32) words.add("biasdtype", dtype_word(a.bias.dtype));
  words.flag("sinks", a.sinks != nullptr);
  if (a.dropout_p != 0) words.add("dropout", a.dropout_p);
  if (problem.counts_elsewhere()) {
    words.append("dropout_heads", std::to_string(a.dropout_first) + "," + std::to_string(a.dropout_heads));
  }
  if (problem.varlen_q() || problem.varlen_k()) words.add("layout", "varlen");
  words.flag("seqused", a.seqused_k != nullptr);
  words.flag("leftpad", a.leftpad_k != nullptr);
  words.flag("cacheidx", a.cache_batch_idx != nullptr);
  if (problem.paged()) words.add("page", a.page_size);
  if (problem.append()) words.add("append", a.seqlen_new);
  if (a.rotary_cos.data != nullptr) words.add("rotary", a.rotary_dim);
  words.flag("interleaved", a.rotary_cos.data != nullptr && (a.flags & FW_ROTARY_INTERLEAVED) != 0);
  if (a.num_splits != 0) words.add("splits", static_cast<int64_t>(a.num_splits));
  words.flag("deterministic", (a.flags & FW_DETERMINISTIC) != 0);
  words.flag("fast_rounding", problem.fast_rounding());
  words.flag("fill", (a.flags & FW_FILL_UNUSED) != 0);
  if (!problem.backward && a.lse.data == nullptr) words.add("lse", "0");
  words.flag("probs", a.probs.data != nullptr);
  if (problem.backward) {
    words.flag("dlse", problem.g.d_lse.data != nullptr);
    words.flag("dbias", problem.g.d_bias.data != nullptr);
    words.flag("dsinks", problem.g.d_sinks != nullptr);
    words.flag("dslopes", problem.g.d_slopes != nullptr);
    if (problem.float_gradients()) words.add("gradtype", "f32");
  }
  return words.take();
}

}  // namespace flashwave
