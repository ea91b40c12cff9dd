// Facts about the CPU this process runs on.
#pragma once

#include <cstdint>
#include <string>

namespace flashwave {

// Isa bits that the CPU has and the operating system saves on a context switch.
uint32_t detected_isa();

// detected, less what `limit` (one of limit_words(); nullptr or "" = no limit) leaves out. False if limit is none of
// these; *offered is then all of detected.
bool limited_isa(uint32_t detected, const char* limit, uint32_t* offered);
std::string limit_words();  // "portable, avx2, avx512, zen4, amx or amx_fp16" on x86-64, "portable or neon" on aarch64

std::string arch_name(uint32_t isa);  // "x86-64+avx2", "aarch64+neon"
std::string cpu_brand();              // "AMD EPYC 7543 32-Core Processor"
int64_t usable_cores();               // that the affinity mask and the container's quota leave to this process
int64_t physical_memory();

}  // namespace flashwave
