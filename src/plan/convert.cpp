// Products of bf16 for fp16 tensors (FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE): kernels of bf16 on copies.
#include <cstdint>

#include "plan/plan.h"

namespace flashwave {
namespace {

constexpr int64_t kColumns = 8;  // rows of copies lie at multiples of 16 bytes
constexpr size_t kAlignment = 64;

int64_t padded(int64_t columns) { return (columns + kColumns - 1) / kColumns * kColumns; }

// Lays the copies out, one behind the other.
class Copies {
 public:
  Copies(Bf16Problem* result, char* memory) : result_(*result), memory_(memory) {}

  void query_like(fw_tensor* tensor, int64_t columns, fw_dtype dtype, bool read) {
    const fw_attention& a = result_.problem.a;
    const bool packed = result_.problem.varlen_q();
    place(tensor, packed ? 1 : a.batch, packed ? a.total_q : a.seqlen_q, a.heads_q, columns, dtype, abi::kQueryRows,
          read);
  }
  void key_like(fw_tensor* tensor, int64_t columns, bool read) {
    const fw_attention& a = result_.problem.a;
    const bool packed = result_.problem.varlen_k();
    place(tensor, packed ? 1 : a.batch, packed ? a.total_k : a.seqlen_k, a.heads_k, columns, FW_BF16,
          read ? abi::kUsedKeys : abi::kStoredKeys, read);
  }

 private:
  void place(fw_tensor* tensor, int64_t batch, int64_t rows, int64_t heads, int64_t columns, fw_dtype dtype,
             abi::ConvertedRows which, bool read) {
    if (tensor->dtype != FW_F16) return;  // absent, or what is written is wanted in fp32
    fw_tensor copy = *tensor;
    const int64_t head = padded(columns), row = heads * head;
    copy.dtype = dtype;
    copy.stride[0] = batch > 1 ? rows * row : 0, copy.stride[1] = row, copy.stride[2] = head, copy.stride[3] = 1;
    if (tensor->data != nullptr) {
      copy.data = memory_ != nullptr ? memory_ + result_.bytes : reinterpret_cast<char*>(uintptr_t{kAlignment});
      const auto bytes = static_cast<size_t>(batch * rows * row * (dtype == FW_F32 ? 4 : 2));
      result_.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
      (read ? result_.before : result_.after)
          .push_back({read ? *tensor : copy, read ? copy : *tensor, which, heads, columns});
    }
    *tensor = copy;
  }

  Bf16Problem& result_;
  char* memory_;
};

}  // namespace

// Not where keys lie in a cache, of which most may not be theirs, nor where something else has the tensors' type.
bool can_be_bf16(const Problem& problem) {
  const fw_attention& a = problem.a;
  return a.q.dtype == FW_F16 && !problem.paged() && a.cache_batch_idx == nullptr && !problem.append() &&
         !problem.accumulate() && a.probs.data == nullptr && a.bias.data == nullptr;
}

Bf16Problem as_bf16(const Problem& problem, char* memory) {
  Bf16Problem result;
  result.problem = problem;
  result.problem.bf16_products = false;
  Copies copies(&result, memory);
  fw_attention& a = result.problem.a;
  fw_gradients& g = result.problem.g;
  copies.query_like(&a.q, a.dim_qk, FW_BF16, true);
  copies.key_like(&a.k, a.dim_qk, true);
  copies.key_like(&a.v, a.dim_v, true);
  copies.query_like(&a.o, a.dim_v, FW_F32, problem.backward);
  if (problem.backward) {
    copies.query_like(&g.d_o, a.dim_v, FW_BF16, true);
    copies.query_like(&g.dq, a.dim_qk, FW_BF16, false);
    copies.key_like(&g.dk, a.dim_qk, false);
    copies.key_like(&g.dv, a.dim_v, false);
  }
  return result;
}

abi::Schedule schedule(const Problem& problem, const Conversion& conversion) {
  const fw_attention& a = problem.a;
  abi::Schedule s{};
  s.splits = conversion.rows;
  s.rows_per_task = abi::kConversionRows;
  s.tasks = a.batch * abi::conversion_blocks(conversion.rows == abi::kQueryRows ? a.seqlen_q : a.seqlen_k);
  s.heads_per_task = static_cast<int32_t>(conversion.heads);
  s.dq_columns = static_cast<int16_t>(conversion.columns);
  return s;
}

}  // namespace flashwave
