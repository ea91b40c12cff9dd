// The tile unit of x86 CPUs (AMX). tests/amx_model has another answer to both questions, for kernels whose tile
// instructions are modelled.
#pragma once

#include <cstdint>

namespace flashwave {

// kIsaAmx if the CPU has tiles, bf16 products of them and what the kernels need beside, and the operating system saves
// tiles; then kIsaAmxFp16 if it has fp16 products, too.
uint32_t tile_isa();

// Whether Linux lets this process use tiles. The first call asks: the answer holds for the rest of the process's life
// and makes the signal frames of all its threads larger, so ask when there is work for tiles.
bool tiles_granted();

}  // namespace flashwave
