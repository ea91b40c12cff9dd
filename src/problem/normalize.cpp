#include "problem/problem.h"
#include "problem/views.h"

namespace flashwave {

void normalize_tensor(const View& view, fw_tensor& tensor) {
  if (view.data == nullptr && !view.required) {
    tensor = {};
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (view.extent[i] == 1) {
      tensor.stride[i] = i == view.dense_dimension ? 1 : 0;
    } else if (!view.has_elements()) {
      tensor.stride[i] = tensor.stride[i] != 0;  // which of them are 0 says what is summed in d_bias
    }
  }
}

void normalize(Problem& problem) {
  const Views views(problem);
  for (const View& view : views.all()) {
    if (view.tensor == nullptr) continue;
    normalize_tensor(view, const_cast<fw_tensor&>(*view.tensor));  // of the problem we were given to change
  }
  if (problem.backward) {  // refused there, so absent
    fw_attention& a = problem.a;
    for (fw_tensor* tensor : {&a.probs, &a.k_new, &a.v_new, &a.rotary_cos, &a.rotary_sin}) *tensor = {};
  }
  problem.fold_positions();
}

}  // namespace flashwave
