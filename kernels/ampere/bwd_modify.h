// From scores to weights, and from the gradients of weights to those of scores: plainly, or with score modifiers and
// dropout, of which a block's gradients need something from its scores. Every switch is uniform.
#pragma once

#include "kernels/ampere/isa.h"
#include "kernels/ampere/score.h"

namespace flashwave {

// 16 queries of a tile: lse and delta of query lane / 4 and the one 8 after it.
struct RowNumbers {
  float lse[2], delta[2];
};

template <int kKeyTiles, bool kModified>
struct Weights {
  using Tile = ScoreTile<kKeyTiles>;

  // q.k, masked as it is -> P.
  FW_METHOD void weigh(Tile& s, const Params& p, const TilePlace&, const RowNumbers& row, const auto& mask) {
    const float scale = p.softmax_scale * kLog2e;
    mask(s);
    FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) {
      FW_UNROLL for (int i = 0; i < 4; ++i) s[n][i] = exp2_fast(multiply_add(s[n][i], scale, -row.lse[i / 2]));
    }
  }
  // The weights of dO in dV.
  FW_METHOD void drop(Tile&) const {}
  // dP -> the gradient of scores, dS = P (dP - delta), and of products.
  FW_METHOD void differentiate(Tile& dp, const Tile& s, const Params&, const RowNumbers& row) const {
    FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) {
      FW_UNROLL for (int i = 0; i < 4; ++i) dp[n][i] = s[n][i] * (dp[n][i] - row.delta[i / 2]);
    }
  }
  FW_METHOD void through_cap(Tile&, const Params&) const {}
};

template <int kKeyTiles>
struct Weights<kKeyTiles, true> {
  using Tile = ScoreTile<kKeyTiles>;
  uint32_t cap_gradients[kKeyTiles][2];  // of the softcap, as pairs of fp16
  uint32_t dropped;                      // bit 4n + i

  FW_METHOD void weigh(Tile& s, const Params& p, const TilePlace& at, const RowNumbers& row, const auto& mask) {
    modify_scores(s, p, at,
                  [&](int n, int h, float x, float y) { cap_gradients[n][h] = F16::pack(1.f - x * x, 1.f - y * y); });
    mask(s);
    // Next to a large bias lse is coarse, and the difference may come out above 0, by numbers that exp turns into inf.
    const float most = p.bias.data ? 0.f : kInf;
    FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) {
      FW_UNROLL for (int i = 0; i < 4; ++i) s[n][i] = exp2_fast(fminf(s[n][i] - row.lse[i / 2], most));
    }
    dropped = p.dropout_threshold ? dropped_elements<kKeyTiles>(p, at) : 0;
  }
  FW_METHOD void drop(Tile& s) const { drop_weights(s, dropped); }
  // dS = P (dP' - delta); dP' is 0 where an element is dropped, else dP / (1 - p).
  FW_METHOD void differentiate(Tile& dp, const Tile& s, const Params& p, const RowNumbers& row) const {
    if (p.dropout_threshold) {
      const float scale = 1.f / (1.f - p.dropout_p);
      FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) { FW_UNROLL for (int i = 0; i < 4; ++i) dp[n][i] *= scale; }
      drop_weights(dp, dropped);
    }
    FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) {
      FW_UNROLL for (int i = 0; i < 4; ++i) dp[n][i] = s[n][i] * (dp[n][i] - row.delta[i / 2]);
    }
  }
  FW_METHOD void through_cap(Tile& ds, const Params& p) const {
    if (!(p.softcap > 0.f)) return;
    FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) {
      FW_UNROLL for (int h = 0; h < 2; ++h) {
        float x, y;
        unpack(F16(), cap_gradients[n][h], x, y);
        ds[n][2 * h] *= x, ds[n][2 * h + 1] *= y;
      }
    }
  }
};

// What 16 queries of a head add to the gradient of its slope.
template <int kKeyTiles>
FW_DEVICE float slope_gradient(const ScoreTile<kKeyTiles>& ds, const TilePlace& at) {
  float sum = 0.f;
  FW_UNROLL for (int h = 0; h < 2; ++h) {
    const float distance = float(at.query + 8 * h + at.keys - at.queries - at.key);
    FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) {
      FW_UNROLL for (int e = 0; e < 2; ++e) sum -= ds[n][2 * h + e] * __builtin_fabsf(distance - float(8 * n + e));
    }
  }
  return sum;
}

}  // namespace flashwave
