#include "problem/views.h"

namespace flashwave {
namespace {

using Shape = std::array<int64_t, 4>;

// (batch, row, head, dim) of the tensors that run along the queries; without a batch extent where they are packed.
Shape query_shape(const Problem& problem, int64_t dim) {
  const fw_attention& a = problem.a;
  if (problem.varlen_q()) return {1, a.total_q, a.heads_q, dim};
  return {a.batch, a.seqlen_q, a.heads_q, dim};
}

Shape key_shape(const Problem& problem, int64_t dim) {
  const fw_attention& a = problem.a;
  if (problem.paged()) return {a.batch_k, a.page_size, a.heads_k, dim};
  if (problem.varlen_k()) return {1, a.total_k, a.heads_k, dim};
  return {a.batch_k > 0 ? a.batch_k : a.batch, a.seqlen_k, a.heads_k, dim};
}

constexpr Role kInput{.required = true};
constexpr Role kResult{.element = Element::kFloatOrLikeFirst, .required = true};
constexpr Role kOutput{.element = Element::kFloatOrLikeFirst, .required = true, .written = true};
constexpr Role kOptionalOutput{.element = Element::kFloatOrLikeFirst, .written = true};
constexpr Role kRowInput{.element = Element::kFloat, .dense_dimension = -1, .required = true};
constexpr Role kOptionalRowInput{.element = Element::kFloat, .dense_dimension = -1};
constexpr Role kOptionalRowOutput{.element = Element::kFloat, .dense_dimension = -1, .written = true};

}  // namespace

View of_tensor(const char* name, const fw_tensor& tensor, const std::array<int64_t, 4>& extent, const Role& role) {
  return {.name = name,
          .data = tensor.data,
          .tensor = &tensor,
          .extent = extent,
          .stride = {tensor.stride[0], tensor.stride[1], tensor.stride[2], tensor.stride[3]},
          .element = role.element,
          .dense_dimension = role.dense_dimension,
          .required = role.required,
          .written = role.written};
}

View of_array(const char* name, const void* array, Element element, int64_t rows, int64_t row_stride, int64_t columns,
              bool written) {
  return {.name = name,
          .data = array,
          .tensor = nullptr,
          .extent = {rows, columns, 1, 1},
          .stride = {row_stride, 1, 0, 0},
          .element = element,
          .dense_dimension = 1,
          .required = false,
          .written = written};
}

int64_t View::element_bytes() const {
  if (tensor == nullptr) return 4;
  switch (tensor->dtype) {
    case FW_F16:
    case FW_BF16:
      return 2;
    case FW_F32:
      return 4;
    default:
      return 0;
  }
}

Views::Views(const Problem& problem) {
  tensors(problem);
  if (problem.backward) gradients(problem);
  arrays(problem);
}

void Views::tensors(const Problem& problem) {
  const fw_attention& a = problem.a;
  const Shape scores = {a.batch, a.heads_q, a.seqlen_q, a.seqlen_k};
  const Role cache{.required = true, .written = problem.append()};
  add(of_tensor("q", a.q, query_shape(problem, a.dim_qk), kInput));
  add(of_tensor("k", a.k, key_shape(problem, a.dim_qk), cache));
  add(of_tensor("v", a.v, key_shape(problem, a.dim_v), cache));
  add(of_tensor("o", a.o, query_shape(problem, a.dim_v), problem.backward ? kResult : kOutput));
  add(of_tensor("lse", a.lse, query_shape(problem, 1), problem.backward ? kRowInput : kOptionalRowOutput));
  add(of_tensor("bias", a.bias, scores, {.element = Element::kFloatOrLikeFirst, .dense_dimension = -1}));
  if (problem.backward) return;

  add(of_tensor("probs", a.probs, scores, kOptionalRowOutput));
  const Role appended{.required = problem.append()};
  add(of_tensor("k_new", a.k_new, {a.batch, a.seqlen_new, a.heads_k, a.dim_qk}, appended));
  add(of_tensor("v_new", a.v_new, {a.batch, a.seqlen_new, a.heads_k, a.dim_v}, appended));
  const Role angles{.element = Element::kFloatOrLikeFirst, .dense_dimension = 1};
  add(of_tensor("rotary_cos", a.rotary_cos, {a.rotary_seqlen, a.rotary_dim / 2, 1, 1}, angles));
  add(of_tensor("rotary_sin", a.rotary_sin, {a.rotary_seqlen, a.rotary_dim / 2, 1, 1}, angles));
}

void Views::gradients(const Problem& problem) {
  const fw_attention& a = problem.a;
  const fw_gradients& g = problem.g;
  add(of_tensor("d_o", g.d_o, query_shape(problem, a.dim_v), kInput));
  add(of_tensor("d_lse", g.d_lse, query_shape(problem, 1), kOptionalRowInput));
  add(of_tensor("dq", g.dq, query_shape(problem, a.dim_qk), kOptionalOutput));
  add(of_tensor("dk", g.dk, key_shape(problem, a.dim_qk), kOptionalOutput));
  add(of_tensor("dv", g.dv, key_shape(problem, a.dim_v), kOptionalOutput));
  // Where the bias broadcasts, its gradient is a sum and has one element.
  Shape scores = {a.batch, a.heads_q, a.seqlen_q, a.seqlen_k};
  for (int i = 0; i < 4; ++i) {
    if (a.bias.stride[i] == 0) scores[i] = 1;
  }
  add(of_tensor("d_bias", g.d_bias, scores,
                {.element = Element::kFloatOrLikeFirst, .dense_dimension = -1, .written = true}));
}

// Only those that are given: none must be, and most calls have none.
void Views::arrays(const Problem& problem) {
  const fw_attention& a = problem.a;
  const auto add_given = [this](const View& view) {
    if (view.data != nullptr) add(view);
  };
  const auto indices = [&](const char* name, const int32_t* data, int64_t count) __attribute__((always_inline)) {
    add_given(of_array(name, data, Element::kInt32, 1, 0, count));
  };
  indices("cu_seqlens_q", a.cu_seqlens_q, a.batch + 1);
  indices("cu_seqlens_k", a.cu_seqlens_k, a.batch + 1);
  indices("seqused_k", a.seqused_k, a.batch);
  indices("leftpad_k", a.leftpad_k, a.batch);
  indices("cache_batch_idx", a.cache_batch_idx, a.batch);
  const int64_t blocks = a.page_size > 0 ? (a.seqlen_k + a.page_size - 1) / a.page_size : 0;
  add_given(of_array("block_table", a.block_table, Element::kInt32, a.batch, a.block_table_stride, blocks));
  const int64_t slope_rows = a.alibi_batch_stride == 0 ? 1 : a.batch;
  add_given(of_array("alibi_slopes", a.alibi_slopes, Element::kFloat, slope_rows, a.alibi_batch_stride, a.heads_q));
  add_given(of_array("sinks", a.sinks, Element::kFloat, 1, 0, a.heads_q));
  if (!problem.backward) return;
  add_given(of_array("d_sinks", problem.g.d_sinks, Element::kFloat, 1, 0, a.heads_q, true));
  add_given(
      of_array("d_slopes", problem.g.d_slopes, Element::kFloat, slope_rows, a.alibi_batch_stride, a.heads_q, true));
}

}  // namespace flashwave
