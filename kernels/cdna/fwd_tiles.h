// K and V of the forward pass on their way from memory to matrix instructions. Two LDS buffers each: tile t is in
// buffer t & 1. Window w of the workgroup is the time between two barriers in which K(w + kLead) and V(w) are read from
// LDS, K(w + kLead + 1) and V(w + 1) go there and, before gfx950, V(w + 2) to registers: there V is transposed on the
// way.
#pragma once

#include "kernels/cdna/fwd_plan.h"

namespace flashwave {

template <class C>
struct ForwardTiles {
  using KTile = RowTile<C::kKRowBytes>;
  using VTileOf = VTile<C::kTileK, C::kVColumns>;
  using Plan = ForwardPlan<C, kFull, 0>;
  static constexpr int kTileK = C::kTileK, kSubs = C::kSubs, kLead = C::kLead, kAhead = C::kAhead;
  static constexpr int kChunksK = Plan::kChunksK, kChunksV = Plan::kChunksV;
  static constexpr int kRowsV = Plan::kRowsV, kRounds = Plan::kRounds;

  uint32_t lds_k, lds_v;        // addresses of the buffers
  uint32_t direct_k, direct_v;  // where this wave's direct loads go
  TileStream<false> k_stream;
  TileStream<true> v_stream;
  Buffer k_tile, v_tile;
  uint32_t k_source[kChunksK], v_source[kChunksV];  // offsets in a tile of what this lane loads
  uint32_t k_read[KTile::kAddresses], v_read[VTileOf::kAddresses];
  uint32_t v_write[kRounds > 0 ? kRounds : 1];
  uint32_t staged[kRowsV > 0 ? kRowsV : 1], even[kRowsV > 0 ? kRowsV / 2 : 1], odd[kRowsV > 0 ? kRowsV / 2 : 1];
  U32x4 ahead[kAhead];  // the first fragments of the next step
  int origin;           // key of row 0 of the workgroup's first tile, which is tile 0 (negative: paged, left pad)

  FW_METHOD explicit ForwardTiles(uint32_t lds)
      : lds_k(lds),
        lds_v(lds + 2 * C::kKBytes),
        direct_k(lds + wave_index() * (kWave * C::kDirectBytes)),
        direct_v(direct_k + 2 * C::kKBytes) {}

  FW_METHOD void find_addresses(int lane, int wave) {
    direct_sources<KTile, C::kDirectBytes, C::kWaves, kChunksK>(k_source, lane, wave, k_stream.stride, k_stream.row);
    FW_UNROLL for (int i = 0; i < KTile::kAddresses; ++i) k_read[i] = KTile::read_address(lane, i);
    FW_UNROLL for (int i = 0; i < VTileOf::kAddresses; ++i) v_read[i] = VTileOf::read_address(lane, i);
#if defined(__gfx950__)
    direct_sources<VTileOf, C::kDirectBytes, C::kWaves, kChunksV>(v_source, lane, wave, v_stream.stride, v_stream.row);
#else
    FW_UNROLL for (int i = 0; i < kRounds; ++i) {
      const int unit = wave + C::kWaves * i;
      VTileOf::sources(v_source + VTileOf::kRows * i, lane, unit, v_stream.stride, v_stream.row);
      v_write[i] = lds_v + VTileOf::write_address(lane, unit);
    }
#endif
  }

  // ---- to LDS ----

  FW_METHOD void issue_k(int i, uint32_t buffer, uint32_t skip = 0) {
    // Not kept for each i in _modified kernels. On gfx908 clang 22 takes the assembly for an instruction between
    // reading an accumulator and the load, which leaves one wait state too few: `window` sees to it.
    constexpr bool kHere = C::kModified && !kIsGfx908;
    load_to_lds<C::kDirectBytes>(
        k_tile, (kHere ? here(direct_k) : direct_k) + buffer + i * (C::kWaves * kWave * C::kDirectBytes),
        k_source[i] - skip);
  }
#if defined(__gfx950__)
  FW_METHOD void load_v(int i, uint32_t buffer, uint32_t skip = 0) {
    load_to_lds<C::kDirectBytes>(v_tile, here(direct_v) + buffer + i * (C::kWaves * kWave * C::kDirectBytes),
                                 v_source[i] - skip);
  }
  FW_METHOD void swap_v(int) {}
  FW_METHOD void store_v(int, uint32_t) {}
#else
  FW_METHOD void load_v(int i, uint32_t, uint32_t skip = 0) { staged[i] = buffer_load4(v_tile, v_source[i] - skip); }
  FW_METHOD void swap_v(int i) {  // two rows of two columns -> two key pairs
    even[i] = permute_bytes(staged[2 * i + 1], staged[2 * i], 0x05040100);
    odd[i] = permute_bytes(staged[2 * i + 1], staged[2 * i], 0x07060302);
  }
  FW_METHOD void store_v(int round, uint32_t buffer) {
    constexpr int kPairs = VTileOf::kRows / 2;
    VTileOf::write(v_write[round] + buffer, even + kPairs * round, odd + kPairs * round);
  }
#endif
  FW_METHOD uint32_t k_buffer(int tile) const { return (tile & 1) * C::kKBytes; }
  FW_METHOD uint32_t v_buffer(int tile) const { return (tile & 1) * C::kVBytes; }

  // Rows at the start of a tile that are before the first key: only of the first tile of a sequence in pages.
  FW_METHOD int rows_before(int tile) const {
    const int first_key = origin + tile * kTileK;
    return first_key < 0 ? -first_key : 0;
  }
  template <bool kMayBeFirst>
  FW_METHOD void bring_k(int tile) {
    const int skip = kMayBeFirst ? rows_before(tile) : 0;
    k_tile = k_stream.next<kTileK>(skip);
    if (skip == 0) {
      FW_UNROLL for (int i = 0; i < kChunksK; ++i) issue_k(i, k_buffer(tile));
    } else {
      FW_UNROLL for (int i = 0; i < kChunksK; ++i) issue_k(i, k_buffer(tile), skip * k_stream.stride);
    }
  }
  template <bool kMayBeFirst>
  FW_METHOD void bring_v(int tile) {
    const int skip = kMayBeFirst ? rows_before(tile) : 0;
    v_tile = v_stream.next<kTileK>(skip);
    if (skip == 0) {
      FW_UNROLL for (int i = 0; i < kChunksV; ++i) load_v(i, v_buffer(tile));
    } else {
      FW_UNROLL for (int i = 0; i < kChunksV; ++i) load_v(i, v_buffer(tile), skip * v_stream.stride);
    }
  }
  // What the first window needs.
  FW_METHOD void bring_first() {
    bring_k<true>(0);
    if constexpr (kIsGfx950) return;
    if constexpr (kSubs == 2) {
      bring_v<true>(0);
    } else {  // the window before V(0) stores what is staged: zeros
      v_tile = make_buffer(v_stream.base, 0);
      FW_UNROLL for (int i = 0; i < kChunksV; ++i) load_v(i, 0);
    }
  }
  // What window w moves, at once.
  FW_METHOD void open_window(int w) {
    bring_k<false>(w + kLead + 1);
    if constexpr (kIsGfx950) {
      if (kSubs == 2 || w + 1 >= 0) bring_v<true>(w + 1);
    } else {
      FW_UNROLL for (int i = 0; i < kRowsV / 2; ++i) swap_v(i);
      FW_UNROLL for (int i = 0; i < kRounds; ++i) store_v(i, v_buffer(w + 1));
      bring_v<kSubs == 1>(w + 2);
    }
  }
  FW_METHOD void close_window() {
    wait_for_memory<kIsGfx950 ? 0 : kChunksV>();  // before gfx950, V's loads go to registers
    workgroup_barrier();
  }

  // ---- to matrix instructions ----

  FW_METHOD U32x4 k_fragment(int f, int sub, uint32_t buffer) const {
    return lds_read16(lds_k + k_read[f % KTile::kAddresses] + buffer + KTile::fragment_offset(f) +
                      sub * kSubTile * C::kKRowBytes);
  }
  FW_METHOD U32x4 v_fragment(int f, int sub, uint32_t buffer) const {  // step outer, block inner
    return VTileOf::fragment(v_read, lds_v + buffer, sub, f / C::kBlocks, f % C::kBlocks);
  }

  // Fragment f of a full step in a window of parity kParity; past the last: those of the next step.
  template <int kParity, int kSub, int f>
  FW_METHOD U32x4 fragment_of_full() const {
    constexpr int kK = (kParity + kLead) % 2;
    if constexpr (f < C::kQkFragments)
      return k_fragment(f, kSub, kK * C::kKBytes);
    else if constexpr (f < C::kFragments)
      return v_fragment(f - C::kQkFragments, kSub, kParity * C::kVBytes);
    else if constexpr (kSub + 1 < kSubs)
      return fragment_of_full<kParity, kSub + 1, f - C::kFragments>();
    else
      return fragment_of_full<kParity ^ 1, 0, f - C::kFragments>();
  }

  FW_METHOD void read_ahead(int w) {
    FW_UNROLL for (int f = 0; f < kAhead; ++f) ahead[f] = k_fragment(f, 0, k_buffer(w + kLead));
  }
};

}  // namespace flashwave
