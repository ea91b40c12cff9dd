#include "tests/amx_model/words.h"

#include <immintrin.h>

#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "kernels/abi/cpu_launch.h"
#include "kernels/abi/cpu_scratch.h"
#include "kernels/common/dtype.h"
#include "kernels/common/philox.h"
#include "kernels/common/row_end.h"

namespace flashwave {
namespace {
// clang-format off: the order is the order of definition
#include "kernels/cpu/vec.h"
#include "tests/amx_model/tile_model.h"
// clang-format on

template <class T>
void product(const uint16_t* a, const uint16_t* b, float* c) {
  configure_tiles(TileConfig{});
  tile_zero<0>();
  tile_load<0>(c, 64);
  tile_load<4>(a, 64);
  tile_load<6>(b, 64);
  tile_multiply<T, 0, 4, 6>();
  tile_store<0>(c, 64);
  release_tiles();
}
}  // namespace

void model_product(bool fp16, const uint16_t* a, const uint16_t* b, float* c) {
  fp16 ? product<Half>(a, b, c) : product<BFloat16>(a, b, c);
}
void model_product_without_configuration() {
  configure_tiles(TileConfig{});
  release_tiles();
  tile_multiply<BFloat16, 0, 4, 6>();
}
void model_product_of_other_sizes() {
  TileConfig config;
  config.rows[6] = 8;
  configure_tiles(config);
  tile_multiply<BFloat16, 0, 4, 6>();
}
void model_configuration_twice() {
  configure_tiles(TileConfig{});
  configure_tiles(TileConfig{});
}
}  // namespace flashwave
