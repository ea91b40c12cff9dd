// Pieces of longer sequences. Where all sequences have the lengths that the host knows, positions only move the window
// along: such a problem is made an ordinary one, which every kernel takes. The rest is left to kernels with kPositions.
#include <algorithm>

#include "problem/problem.h"

namespace flashwave {
namespace {

// The windows of all queries are moved by `by` keys to the right, and limits that nobody meets are taken away. False if
// a side would lie beyond the diagonal, which kernels without positions do not know.
bool move_window(fw_attention& a, bool causal, int64_t by) {
  constexpr int64_t kFar = int64_t{1} << 40;  // past every position, far from overflow
  const bool left_limited = a.window_left >= 0, right_limited = causal || a.window_right >= 0;
  int64_t left = std::min(a.window_left, kFar) - by, right = (causal ? 0 : std::min(a.window_right, kFar)) + by;
  if ((left_limited && left < 0) || (right_limited && right < 0)) return false;
  if (!left_limited || left >= a.seqlen_k - 1) left = -1;
  if (!right_limited || right >= a.seqlen_q - 1) right = -1;
  a.window_left = left;
  a.flags &= ~uint32_t{FW_CAUSAL};
  if (causal && right == 0) {
    a.flags |= FW_CAUSAL;
  } else {
    a.window_right = right;
  }
  return true;
}

}  // namespace

void Problem::fold_positions() {
  if (a.dropout_heads == 0) a.dropout_heads = a.heads_q;
  if (a.dropout_p == 0) a.dropout_first = 0, a.dropout_heads = a.heads_q;
  if (!placed()) return;
  const bool known_lengths =
      !varlen_q() && !varlen_k() && a.seqused_k == nullptr && a.leftpad_k == nullptr && !append();
  const int64_t by = position_shift() - (a.seqlen_k - a.seqlen_q);
  const bool counts = a.dropout_p > 0 && (a.position_q != 0 || a.position_k != 0);
  if (!known_lengths || counts || (a.alibi_slopes != nullptr && by != 0)) return;
  if (!move_window(a, causal(), by)) return;
  a.flags &= ~uint32_t{FW_POSITIONS};
  a.position_q = a.position_k = 0;
}

}  // namespace flashwave
