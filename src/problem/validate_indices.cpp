// The rules on the values of the index arrays. Only called where the host can read them.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "problem/rules.h"
#include "problem/validate.h"

namespace flashwave {
namespace {

// Rows of the keys' storage that sequence b uses: [first, stored), and [stored, end) once new keys are appended.
struct Rows {
  int64_t first, stored, end;
};

Rows rows_of(const fw_attention& a, int64_t b) {
  int64_t stored = a.seqlen_k;
  if (a.cu_seqlens_k != nullptr) stored = a.cu_seqlens_k[b + 1] - a.cu_seqlens_k[b];
  if (a.seqused_k != nullptr) stored = a.seqused_k[b];
  return {a.leftpad_k != nullptr ? a.leftpad_k[b] : 0, stored, stored + a.seqlen_new};
}

Status check_key_rows(const fw_attention& a) {
  for (int64_t b = 0; b < a.batch; ++b) {
    const bool packed = a.cu_seqlens_k != nullptr;
    const int64_t room = packed ? a.cu_seqlens_k[b + 1] - a.cu_seqlens_k[b] : a.seqlen_k;
    const Rows rows = rows_of(a, b);
    if (a.seqused_k != nullptr) {
      FW_RULE(rows.stored >= 0 && rows.stored <= room, "seqused_k[", b, "] must be in [0, ", room, "] (",
              packed ? "the sequence's rows" : "seqlen_k", "), got ", rows.stored);
      FW_RULE(rows.end <= room, "seqused_k[", b, "] + seqlen_new must be at most seqlen_k = ", room, ", got ",
              rows.stored, " + ", a.seqlen_new);
    }
    FW_RULE(rows.first >= 0 && rows.first <= rows.stored, "leftpad_k[", b, "] must be in [0, ", rows.stored,
            "], the keys stored, got ", rows.first);
  }
  return {};
}

Status check_cache_rows(const fw_attention& a) {
  const int64_t cache_rows = a.batch_k > 0 ? a.batch_k : a.batch;
  for (int64_t b = 0; b < a.batch; ++b) {
    FW_RULE(a.cache_batch_idx[b] >= 0 && a.cache_batch_idx[b] < cache_rows, "cache_batch_idx[", b, "] must be in [0, ",
            cache_rows, "), got ", a.cache_batch_idx[b]);
  }
  if (a.seqlen_new == 0) return {};
  std::vector<int32_t> used(a.cache_batch_idx, a.cache_batch_idx + a.batch);
  std::sort(used.begin(), used.end());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  FW_RULE(twice == used.end(),
          "cache_batch_idx must name each row once with seqlen_new > 0 (two sequences would append "
          "to the same row), got ",
          *twice, " twice");
  return {};
}

Status check_pages(const fw_attention& a) {
  struct Written {
    int64_t first, last;  // rows of the page pool, counted through all pages
  };
  std::vector<Written> written;
  for (int64_t b = 0; b < a.batch; ++b) {
    const Rows rows = rows_of(a, b);
    for (int64_t row = rows.first; row < rows.end;) {
      const int64_t block = row / a.page_size;
      const int64_t next = std::min(rows.end, (block + 1) * a.page_size);
      const int64_t page = a.block_table[b * a.block_table_stride + block];
      FW_RULE(page >= 0 && page < a.batch_k, "block_table[", b, "][", block, "] must be in [0, ", a.batch_k,
              ") (batch_k pages), got ", page);
      const int64_t first_new = std::max(row, rows.stored);
      const int64_t base = (page - block) * a.page_size;
      if (first_new < next) written.push_back({base + first_new, base + next});
      row = next;
    }
  }
  std::sort(written.begin(), written.end(), [](const Written& x, const Written& y) { return x.first < y.first; });
  for (size_t i = 1; i < written.size(); ++i) {
    FW_RULE(written[i].first >= written[i - 1].last, "block_table makes two appended keys fall on one row: page ",
            written[i].first / a.page_size, ", row ", written[i].first % a.page_size);
  }
  return {};
}

// Rows of rotary_cos and rotary_sin that are read: new key t of sequence b turns by position seqused_k[b] + t; query i
// by seqused_k[b] + i under a causal or window mask, else by seqused_k[b].
Status check_rotary_positions(const Problem& problem) {
  const fw_attention& a = problem.a;
  if (a.seqused_k == nullptr) return {};  // refused before: an append needs it
  const bool per_row = problem.causal() || a.window_left >= 0 || a.window_right >= 0;
  for (int64_t b = 0; b < a.batch; ++b) {
    const int64_t queries = a.cu_seqlens_q != nullptr ? int64_t{a.cu_seqlens_q[b + 1]} - a.cu_seqlens_q[b] : a.seqlen_q;
    const int64_t positions = a.seqused_k[b] + std::max(a.seqlen_new, per_row ? queries : 0);
    FW_RULE(a.rotary_seqlen >= positions, "rotary_seqlen must be at least ", positions, " (positions up to seqused_k[",
            b, "] + max(seqlen_new, queries) are read), got ", a.rotary_seqlen);
  }
  return {};
}

}  // namespace

Status validate_offsets(const char* name, const int32_t* offsets, int64_t batch, int64_t longest,
                        const char* longest_name, int64_t total, const char* total_name) {
  FW_RULE(offsets[0] == 0, name, "[0] must be 0, got ", offsets[0]);
  for (int64_t b = 0; b < batch; ++b) {
    FW_RULE(offsets[b] <= offsets[b + 1], name, " must not decrease, got ", offsets[b], " then ", offsets[b + 1],
            " at [", b + 1, "]");
    FW_RULE(offsets[b + 1] - offsets[b] <= longest, name, "[", b + 1, "] - ", name, "[", b, "] must be at most ",
            longest_name, " = ", longest, ", got ", offsets[b + 1] - offsets[b]);
  }
  FW_RULE(total < 0 || offsets[batch] <= total, name, "[batch] must be at most ", total_name, " = ", total, ", got ",
          offsets[batch]);
  return {};
}

Status validate_indices(const Problem& problem) {
  const fw_attention& a = problem.a;
  if (problem.varlen_q()) {
    FW_RULES(validate_offsets("cu_seqlens_q", a.cu_seqlens_q, a.batch, a.seqlen_q, "seqlen_q", a.total_q, "total_q"));
  }
  if (problem.varlen_k()) {
    FW_RULES(validate_offsets("cu_seqlens_k", a.cu_seqlens_k, a.batch, a.seqlen_k, "seqlen_k",
                              problem.paged() ? -1 : a.total_k, "total_k"));
  }
  if (a.batch == 0) return {};
  if (a.seqused_k != nullptr || a.leftpad_k != nullptr) FW_RULES(check_key_rows(a));
  if (a.cache_batch_idx != nullptr) FW_RULES(check_cache_rows(a));
  if (problem.paged()) FW_RULES(check_pages(a));
  if (a.rotary_cos.data != nullptr) FW_RULES(check_rotary_positions(problem));
  return {};
}

}  // namespace flashwave
