// Matrix instructions as compiled for AVX-512, of which some multiply pairs by AVX512-BF16, give the bits of those
// compiled for AVX2: for ordinary numbers, and where denormals, NaN or infinity are among them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "core/cpu.h"
#include "core/opcode.h"
#include "core/wave.h"
#include "operands.h"

namespace emu::matrix::narrow {
std::span<const Opcode> dense_mfma_opcodes();
std::span<const Opcode> scaled_mfma_opcodes();
}  // namespace emu::matrix::narrow
#ifdef __x86_64__
namespace emu::matrix::wide {
std::span<const Opcode> dense_mfma_opcodes();
std::span<const Opcode> scaled_mfma_opcodes();
}  // namespace emu::matrix::wide
#endif

namespace {
using namespace emu;
using emu_test::vgprs;

constexpr int kD = 0, kC = 40, kA = 80, kB = 96, kScales = 112;

// Which numbers there are beside ordinary ones.
enum class Data { ordinary, tiny_inputs, tiny_accumulator, any };

u32 random_f32(std::mt19937& random, u32 least, u32 most) {  // exponents
  return (random() & 0x807fffff) | (least + random() % (most - least + 1)) << 23;
}

void fill(Wave& wave, Data data, bool is_bf16, std::mt19937& random) {
  for (int r = 0; r < 8; ++r) {
    for (int l = 0; l < kLanes; ++l) {
      for (const int first : {kA, kB}) {
        u32 x = random();
        if (is_bf16 && data != Data::any) {
          x = random_f32(random, 100, 150) >> 16 | (random_f32(random, 100, 150) & 0xffff0000);
          if (data == Data::tiny_inputs && random() % 50 == 0) x = random_f32(random, 0, 90);
        } else if (data != Data::any) {
          x &= 0xbfbfbfbf;  // 8 bits: no NaN, no infinity
        }
        wave.vgpr[first + r][l] = random() % 8 == 0 ? 0 : x;
      }
    }
  }
  for (int r = 0; r < 32; ++r) {
    for (u32& c : wave.vgpr[kC + r]) {
      c = data == Data::any ? static_cast<u32>(random()) : random_f32(random, 100, 160);
      if (data == Data::tiny_accumulator && random() % 50 == 0) c = random_f32(random, 0, 60);
      if (random() % 8 == 0) c = random() % 2 ? 0 : 0x80000000;
    }
  }
  for (u32& scale : wave.vgpr[kScales]) scale = 0x01010101 * (120 + random() % 16);
}

const Opcode* row(std::span<const Opcode> rows, const char* name) {
  for (const Opcode& o : rows) {
    if (!std::strcmp(o.name, name)) return &o;
  }
  return nullptr;
}

Instruction instruction(const Opcode& opcode, const Target& target, bool in_place, u8 cbsz, u8 blgp) {
  Instruction in;
  in.opcode = &opcode;
  in.execute = opcode.execute;
  in.dest_count = 1;
  in.operand_count = 6;
  in.operand[0] = vgprs(in_place ? kC : kD, 32);
  in.operand[1] = vgprs(kA, 8);
  in.operand[2] = vgprs(kB, 8);
  in.operand[3] = vgprs(kC, 32);
  in.operand[4] = in.operand[5] = vgprs(kScales, 1);
  for (int i = 4; i < 6; ++i) in.operand[i].plain = true;
  in.cbsz = cbsz;
  in.blgp = blgp;
  EXPECT_EQ(opcode.bind(in, target), "");
  return in;
}

bool same(u32 x, u32 y) { return x == y || (std::isnan(as_f32(x)) && std::isnan(as_f32(y))); }

#ifdef __x86_64__
void compare(std::span<const Opcode> narrow, std::span<const Opcode> wide, const char* target, const char* name,
             u8 cbsz = 0, u8 blgp = 0) {
  if (!cpu_has_avx512()) GTEST_SKIP() << "no AVX-512";
  const Opcode *first = row(narrow, name), *second = row(wide, name);
  ASSERT_TRUE(first && second) << name;
  const bool is_bf16 = std::strstr(name, "bf16");
  std::mt19937 random(7);
  auto one = std::make_unique<Wave>(), other = std::make_unique<Wave>();
  for (int round = 0; round < 40; ++round) {
    const Data data = static_cast<Data>(round % 4);
    std::fill_n(&one->vgpr[0][0], kVectorRegisters * kLanes, 0u);
    one->target = other->target = find_target(target);
    fill(*one, data, is_bf16, random);
    std::memcpy(other->vgpr, one->vgpr, sizeof(one->vgpr));
    const Instruction before = instruction(*first, *one->target, round % 8 < 4, cbsz, blgp);
    const Instruction after = instruction(*second, *one->target, round % 8 < 4, cbsz, blgp);
    before.execute(*one, before);
    after.execute(*other, after);
    for (int r = 0; r < kA; ++r) {
      for (int l = 0; l < kLanes; ++l) {
        ASSERT_TRUE(same(one->vgpr[r][l], other->vgpr[r][l]))
            << name << " on " << target << ", round " << round << ", v" << r << " lane " << l << ": "
            << as_f32(one->vgpr[r][l]) << " and " << as_f32(other->vgpr[r][l]);
      }
    }
  }
}

TEST(MatrixPairs, DenseFormsGiveTheChain) {
  const auto dense = [](const char* target, const char* name) {
    compare(matrix::narrow::dense_mfma_opcodes(), matrix::wide::dense_mfma_opcodes(), target, name);
  };
  for (const char* name : {"v_mfma_f32_32x32x8_bf16", "v_mfma_f32_16x16x16_bf16", "v_mfma_f32_32x32x4_2b_bf16",
                           "v_mfma_f32_32x32x16_fp8_fp8", "v_mfma_f32_32x32x16_bf8_fp8", "v_mfma_f32_16x16x32_fp8_bf8",
                           "v_mfma_f32_16x16x32_bf8_bf8"}) {
    dense("gfx942", name);
    dense("gfx950", name);
  }
  for (const char* name : {"v_mfma_f32_32x32x16_bf16", "v_mfma_f32_16x16x32_bf16"}) dense("gfx950", name);
  for (const char* name : {"v_mfma_f32_32x32x8bf16_1k", "v_mfma_f32_16x16x4bf16_1k", "v_mfma_f32_16x16x8bf16"}) {
    dense("gfx90a", name);  // which takes denormal inputs as 0
  }
}

// Operands that stay the same are converted once; one that changes in a single lane is seen to have changed. D is what
// A was in some, and tiles after the first have a denormal C that the pairs cannot take.
TEST(MatrixPairs, OperandsThatStayAreTheSame) {
  if (!cpu_has_avx512()) GTEST_SKIP() << "no AVX-512";
  constexpr const char* kName = "v_mfma_f32_32x32x64_f8f6f4";
  const Opcode *first = row(matrix::narrow::scaled_mfma_opcodes(), kName),
               *second = row(matrix::wide::scaled_mfma_opcodes(), kName);
  ASSERT_TRUE(first && second);
  std::mt19937 random(3);
  auto one = std::make_unique<Wave>(), other = std::make_unique<Wave>();
  one->target = other->target = find_target("gfx950");
  std::fill_n(&one->vgpr[0][0], kVectorRegisters * kLanes, 0u);
  fill(*one, Data::ordinary, false, random);
  std::memcpy(other->vgpr, one->vgpr, sizeof(one->vgpr));
  for (int step = 0; step < 200; ++step) {
    const bool onto_a = step % 23 == 22;
    const u8 a_format = step / 50 % 2, b_format = step / 100 ? 4 : 0;  // fp8, bf8; fp8, fp4
    for (const int operand : {kA, kB}) {
      if (random() % (operand == kA ? 3 : 6) != 0) continue;
      const u32 reg = static_cast<u32>(operand) + random() % 8, lane = random() % kLanes;
      one->vgpr[reg][lane] ^= 1u << random() % 6;
    }
    if (step % 7 == 0) one->vgpr[kC + 9 + random() % 7][40] = 5;
    std::memcpy(other->vgpr, one->vgpr, sizeof(one->vgpr));
    Instruction before = instruction(*first, *one->target, true, a_format, b_format);
    Instruction after = instruction(*second, *one->target, true, a_format, b_format);
    if (onto_a) before.operand[0].reg = after.operand[0].reg = kA - 4;
    before.execute(*one, before);
    after.execute(*other, after);
    for (int r = 0; r < kScales; ++r) {
      for (int l = 0; l < kLanes; ++l) {
        ASSERT_TRUE(same(one->vgpr[r][l], other->vgpr[r][l])) << "step " << step << ", v" << r << " lane " << l;
      }
    }
    if (onto_a || step % 10 == 9) fill(*one, Data::ordinary, false, random);
  }
}

TEST(MatrixPairs, SmallFormatsGiveTheChain) {
  for (const char* name : {"v_mfma_f32_16x16x128_f8f6f4", "v_mfma_f32_32x32x64_f8f6f4",
                           "v_mfma_scale_f32_16x16x128_f8f6f4", "v_mfma_scale_f32_32x32x64_f8f6f4"}) {
    for (u8 a = 0; a < 5; ++a) {
      compare(matrix::narrow::scaled_mfma_opcodes(), matrix::wide::scaled_mfma_opcodes(), "gfx950", name, a,
              static_cast<u8>((a + 2) % 5));
      compare(matrix::narrow::scaled_mfma_opcodes(), matrix::wide::scaled_mfma_opcodes(), "gfx950", name, a, a);
    }
  }
}
#endif

}  // namespace
