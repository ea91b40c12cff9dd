// The words of tile_model.h as functions that a test can call: those of the kernels are compiled into them.
#pragma once

#include <cstdint>

namespace flashwave {

// c[16][16] += a[16][32] times b[16][16][2], of fp16 or bf16.
void model_product(bool fp16, const uint16_t* a, const uint16_t* b, float* c);
void model_product_without_configuration();
void model_product_of_other_sizes();
void model_configuration_twice();

}  // namespace flashwave
