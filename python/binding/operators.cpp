// The operators of python/flashwave/operators.py for tensors of CPUs and GPUs: fill the struct, call the library. What
// the library does not take, or takes only slowly, goes to the operator of the same arguments that Python implements.
#include <string>
#include <tuple>

#include "operators.h"

namespace flashwave_torch {
namespace {

enum class Path { kDone, kRefused, kElsewhere };  // kRefused: no kernel but, at most, the slow path of a GPU

// A call of the library: whether it was made. kElsewhere: Python has all to do, to begin with the checks.
template <class Call>
Path attempt(const Problem& problem, Call&& call) {
  if (!problem.ok || steered(problem.q.on_cpu())) return Path::kElsewhere;
  const Run run(problem.q);
  if (run.device() == nullptr) return Path::kElsewhere;
  const fw_status status = call(run);
  if (status == FW_UNSUPPORTED) return Path::kRefused;
  if (status != FW_OK) fail(status, library.last_error());
  return Path::kDone;
}

struct Wanted {
  bool lse = false, probs = false;
  bool stand_ins = true;  // tensors without elements for what is not wanted, rather than none
};
using Results = std::tuple<Tensor, Tensor, Tensor>;  // out, lse, probs

Results forward_elsewhere(Inputs in, Wanted wanted, MaybeTensor out, bool refused) {
  StableIValue stack[kAppendArguments + 4];
  StableIValue* end = give(stack, std::move(in), kAppendArguments);
  give(end, std::move(out), wanted.lse, wanted.probs, refused);
  torch_check(aoti_torch_call_dispatcher("flashwave::_forward_elsewhere", "", stack));
  Tensor result = Box<Tensor>::take(stack[0]), lse = Box<Tensor>::take(stack[1]), probs = Box<Tensor>::take(stack[2]);
  return {result_of(std::move(result)), std::move(lse), std::move(probs)};
}

Results forward_into(Inputs in, Wanted wanted, MaybeTensor given) {
  Problem problem(in);
  Tensor out, lse, probs;
  if (problem.ok) {
    if (given) {
      const View view(*given);
      problem.ok = view.rank == problem.q.rank && view.dtype == problem.q.dtype && view.beside(problem.q) &&
                   view.rows_are_dense() && view.size(1) == problem.a.dim_v;
      for (int64_t i = 0; problem.ok && i + 1 < view.rank; ++i) problem.ok = view.sizes[i] == problem.q.sizes[i];
    }
  }
  if (problem.ok) {
    if (!given) out = problem.new_out();
    const Tensor& result = given ? *given : out;
    problem.put_out(View(result));
    if (wanted.lse) problem.put_lse(View(lse = problem.new_lse()));
    if (wanted.probs) problem.a.probs = rows(View(probs = problem.new_probs()));
  }
  const Path path =
      attempt(problem, [&](const Run& run) { return library.forward(run.device(), &problem.a, run.exec()); });
  if (path != Path::kDone) return forward_elsewhere(std::move(in), wanted, std::move(given), path == Path::kRefused);
  const auto or_stand_in = [&](Tensor tensor) {
    return tensor || !wanted.stand_ins ? std::move(tensor) : absent(problem.q, aoti_torch_dtype_float32());
  };
  return {given ? std::move(*given) : std::move(out), or_stand_in(std::move(lse)), or_stand_in(std::move(probs))};
}

// out alone, with nothing made for what is not asked for.
Tensor forward_out(Inputs in) {
  Problem problem(in);
  Tensor out;
  if (problem.ok) problem.put_out(View(out = problem.new_out()));
  const Path path =
      attempt(problem, [&](const Run& run) { return library.forward(run.device(), &problem.a, run.exec()); });
  if (path == Path::kDone) return out;
  return std::get<0>(forward_elsewhere(std::move(in), {}, std::nullopt, path == Path::kRefused));
}

enum Need : int64_t { kNeedQ = 1, kNeedK = 2, kNeedV = 4, kNeedSlopes = 8, kNeedBias = 16, kNeedSinks = 32 };
using Gradients = std::array<Tensor, 6>;  // of q, k, v, alibi_slopes, bias, sinks

struct Incoming {
  Tensor dout;
  MaybeTensor dlse;
  Tensor out, lse;
  int64_t needs = 0;
};

std::array<Tensor, 6> backward_elsewhere(Inputs in, Incoming given, bool refused) {
  StableIValue stack[kForwardArguments + 6];
  StableIValue* end = give(stack, std::move(given.dout), std::move(given.dlse), std::move(given.out),
                           std::move(given.lse), given.needs);
  end = give(end, std::move(in), kForwardArguments);
  give(end, refused);
  torch_check(aoti_torch_call_dispatcher("flashwave::_backward_elsewhere", "", stack));
  const auto take = [&](size_t i) { return Box<Tensor>::take(stack[i]); };
  std::array<Tensor, 6> results{take(0), take(1), take(2), take(3), take(4), take(5)};
  results[0] = result_of(std::move(results[0]));
  return results;
}

// Whether the forward's results, and the gradient of out, are what the library reads.
bool put_results(const Incoming& given, const View& dout, Problem* problem) {
  const View out(given.out), lse(given.lse);
  const View& q = problem->q;
  const bool fits = out.rank == q.rank && dout.rank == q.rank && lse.rank + 1 == q.rank && out.dtype == q.dtype &&
                    dout.dtype == q.dtype && lse.dtype == aoti_torch_dtype_float32() && out.rows_are_dense() &&
                    out.beside(q) && lse.beside(q) && dout.beside(q);
  if (!fits) return false;
  for (int64_t i = 0; i < q.rank; ++i) {
    const int64_t extent = i + 1 < q.rank ? q.sizes[i] : problem->a.dim_v;
    if (out.sizes[i] != extent || dout.sizes[i] != extent) return false;
  }
  problem->put_out(out), problem->put_lse(lse);
  return true;
}

Gradients new_gradients(const Inputs& in, const Problem& p, int64_t needs, fw_gradients* g) {
  Gradients made;
  const auto rows_of = [&](size_t place, int64_t need, const View& like, fw_tensor* to) {
    if ((needs & need) == 0) return;
    made[place] = empty_like(like);
    *to = new_rows(made[place], like);
  };
  rows_of(0, kNeedQ, p.q, &g->dq);
  rows_of(1, kNeedK, p.k, &g->dk);
  rows_of(2, kNeedV, p.v, &g->dv);
  if ((needs & kNeedSlopes) != 0 && in.alibi_slopes) {
    made[3] = empty_like(View(*in.alibi_slopes));
    g->d_slopes = static_cast<float*>(View(made[3]).data);
  }
  if ((needs & kNeedBias) != 0 && in.bias) {
    made[4] = empty_like(View(*in.bias));
    g->d_bias = pairs(View(made[4]));
  }
  if ((needs & kNeedSinks) != 0 && in.sinks) {
    made[5] = empty_like(View(*in.sinks));
    g->d_sinks = static_cast<float*>(View(made[5]).data);
  }
  return made;
}

bool asks_for_what_is_there(const Inputs& in, int64_t needs) {
  return ((needs & kNeedSlopes) == 0 || in.alibi_slopes) && ((needs & kNeedBias) == 0 || in.bias) &&
         ((needs & kNeedSinks) == 0 || in.sinks);
}

// With nothing for the gradients that are not needed.
std::pair<Gradients, Path> backward_by_library(const Inputs& in, const Incoming& given, Problem* problem) {
  const View dout(given.dout);
  problem->ok = problem->ok && put_results(given, dout, problem) && asks_for_what_is_there(in, given.needs);
  if (!problem->ok) return {Gradients{}, Path::kElsewhere};
  fw_gradients g;
  library.gradients_init(&g, sizeof g);
  MaybeTensor copy;
  if (!dout.rows_are_dense()) copy = dense_copy(given.dout);  // the gradient of a sum is one number, repeated
  g.d_o = rows(copy ? View(*copy) : dout);
  if (given.dlse) {
    const View dlse(*given.dlse), lse(given.lse);
    if (dlse.rank != lse.rank || dlse.dtype != lse.dtype || !dlse.beside(lse)) return {Gradients{}, Path::kElsewhere};
    Problem layout = *problem;
    layout.put_lse(dlse);
    g.d_lse = layout.a.lse;
  }
  Gradients made = new_gradients(in, *problem, given.needs, &g);
  const Path path =
      attempt(*problem, [&](const Run& run) { return library.backward(run.device(), &problem->a, &g, run.exec()); });
  return {std::move(made), path};
}

// ------------------------------------------------------------------------------------------------- kernels of
// operators

void take_mask(Arguments& arguments, Inputs* in) {
  arguments.into(in->softmax_scale, in->causal, in->window_left, in->window_right, in->softcap);
}

void take_dense(Arguments& arguments, Inputs* in) {
  arguments.into(in->q, in->k, in->v);
  take_mask(arguments, in);
  in->lengths_given = false;
}

// packed: as Python's packed_mask packs it.
void take_plain(Arguments& arguments, Inputs* in) {
  int64_t packed = 0;
  arguments.into(in->q, in->k, in->v, in->softmax_scale, packed);
  in->causal = (packed & 1) != 0, in->deterministic = (packed & 2) != 0;
  in->window_left = (packed >> 2 & ((1 << 30) - 1)) - 1, in->window_right = (packed >> 32) - 1;
  in->lengths_given = false;
}

void take_packed(Arguments& arguments, Inputs* in) {
  take_plain(arguments, in);
  arguments.into(in->softcap, in->rng_state, in->dropout_p);
}

void take_all(Arguments& arguments, Inputs* in) {
  arguments.into(in->q, in->k, in->v, in->cu_seqlens_q, in->cu_seqlens_k, in->seqused_k, in->leftpad_k,
                 in->cache_batch_idx, in->block_table, in->alibi_slopes, in->bias, in->sinks, in->rng_state,
                 in->max_seqlen_q, in->max_seqlen_k);
  take_mask(arguments, in);
  arguments.into(in->dropout_p, in->num_splits, in->deterministic);
}

void dense(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, 8);
  Arguments arguments(stack);
  Inputs in;
  take_dense(arguments, &in);
  give(stack, forward_out(std::move(in)));
}

using Take = void (*)(Arguments&, Inputs*);

template <Take take, uint64_t kArguments>
void forward_lse(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, kArguments);
  Arguments arguments(stack);
  Inputs in;
  take(arguments, &in);
  auto [out, lse, probs] = forward_into(std::move(in), {.lse = true, .stand_ins = false}, std::nullopt);
  give(stack, std::move(out), std::move(lse));
}

template <Take take, uint64_t kArguments>
void backward_of_three(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, kArguments);
  Arguments arguments(stack);
  Incoming given;
  given.needs = kNeedQ | kNeedK | kNeedV;
  arguments.into(given.dout, given.out, given.lse);
  Inputs in;
  take(arguments, &in);
  Problem problem(in);
  auto [made, path] = backward_by_library(in, given, &problem);
  if (path == Path::kDone) {
    give(stack, std::move(made[0]), std::move(made[1]), std::move(made[2]));
    return;
  }
  auto all = backward_elsewhere(std::move(in), std::move(given), path == Path::kRefused);
  give(stack, std::move(all[0]), std::move(all[1]), std::move(all[2]));
}

void varlen(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, 12);
  Arguments arguments(stack);
  Inputs in;
  arguments.into(in.q, in.k, in.v, in.cu_seqlens_q.emplace(), in.cu_seqlens_k.emplace(), in.max_seqlen_q,
                 in.max_seqlen_k);
  take_mask(arguments, &in);
  give(stack, forward_out(std::move(in)));
}

void cached(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, 13);
  Arguments arguments(stack);
  Inputs in;
  arguments.into(in.q, in.k, in.v, in.seqused_k, in.leftpad_k, in.cache_batch_idx, in.block_table);
  take_mask(arguments, &in);
  arguments.into(in.num_splits);
  in.lengths_given = false;
  give(stack, forward_out(std::move(in)));
}

// A step of decoding: new keys behind those that a cache without options has.
void append_step(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, 10);
  Arguments arguments(stack);
  Inputs in;
  arguments.into(in.q, in.k, in.v, in.k_new.emplace(), in.v_new.emplace(), in.seqused_k.emplace(), in.softmax_scale,
                 in.causal, in.window_left, in.window_right);
  in.lengths_given = false;
  give(stack, forward_out(std::move(in)));
}

void cached_append(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, 18);
  Arguments arguments(stack);
  Inputs in;
  arguments.into(in.q, in.k, in.v, in.k_new, in.v_new, in.rotary_cos, in.rotary_sin, in.seqused_k, in.leftpad_k,
                 in.cache_batch_idx, in.block_table);
  take_mask(arguments, &in);
  arguments.into(in.num_splits, in.rotary_interleaved);
  in.lengths_given = false;
  give(stack, forward_out(std::move(in)));
}

void forward(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, kForwardArguments + 2);
  Arguments arguments(stack);
  Inputs in;
  Wanted wanted;
  take_all(arguments, &in);
  arguments.into(wanted.lse, wanted.probs);
  auto [out, lse, probs] = forward_into(std::move(in), wanted, std::nullopt);
  give(stack, std::move(out), std::move(lse), std::move(probs));
}

void forward_given(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, kForwardArguments + 3);
  Arguments arguments(stack);
  Tensor given;
  Inputs in;
  Wanted wanted;
  arguments.into(given);
  take_all(arguments, &in);
  arguments.into(wanted.lse, wanted.probs);
  auto [out, lse, probs] = forward_into(std::move(in), wanted, std::move(given));
  give(stack, std::move(lse), std::move(probs));
}

void append(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, kAppendArguments + 1);
  Arguments arguments(stack);
  Inputs in;
  Wanted wanted;
  take_all(arguments, &in);
  arguments.into(in.k_new, in.v_new, in.rotary_cos, in.rotary_sin, in.rotary_interleaved, wanted.lse);
  auto [out, lse, probs] = forward_into(std::move(in), wanted, std::nullopt);
  give(stack, std::move(out), std::move(lse));
}

void backward(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, kForwardArguments + 5);
  Arguments arguments(stack);
  Incoming given;
  Inputs in;
  arguments.into(given.dout, given.dlse, given.out, given.lse, given.needs);
  take_all(arguments, &in);
  Problem problem(in);
  auto [made, path] = backward_by_library(in, given, &problem);
  if (path != Path::kDone) {
    auto all = backward_elsewhere(std::move(in), std::move(given), path == Path::kRefused);
    for (size_t i = 0; i < all.size(); ++i) stack[i] = Box<Tensor>::give(std::move(all[i]));
    return;
  }
  for (size_t i = 0; i < made.size(); ++i) {
    stack[i] = Box<Tensor>::give(made[i] ? std::move(made[i]) : absent(problem.q, problem.q.dtype));
  }
}

constexpr std::pair<const char*, StableKernel> kOperators[] = {
    {"_dense", dense},
    {"_plain_lse", forward_lse<take_plain, 5>},
    {"_plain_backward", backward_of_three<take_plain, 8>},
    {"_dense_lse", forward_lse<take_packed, 8>},
    {"_dense_backward", backward_of_three<take_packed, 11>},
    {"_varlen", varlen},
    {"_cached", cached},
    {"_cached_append", cached_append},
    {"_append_step", append_step},
    {"_forward", forward},
    {"_forward_given", forward_given},
    {"_append", append},
    {"_backward", backward},
};

}  // namespace

void expect(uint64_t arguments, uint64_t known) {
  if (arguments == known) return;
  fail(FW_INTERNAL_ERROR, "the Python files and libflashwave_torch.so are of different versions: an operator has " +
                              std::to_string(arguments) + " arguments, not " + std::to_string(known));
}

Tensor result_of(Tensor tensor) {
  const View view(tensor);
  if (view.dtype != aoti_torch_dtype_uint8()) return tensor;
  const auto* text = static_cast<const char*>(view.data);
  fail(text[0] - '0', std::string(text + 1, text + view.sizes[0]));
}

}  // namespace flashwave_torch

// Called by Python, which has defined the operators: handle is dlopen's of libflashwave.so, openmp and openmp_threads
// are torch's where the process has them. 0, or 1 where the library is another one, 2 where torch refuses.
extern "C" __attribute__((visibility("default"))) int32_t flashwave_torch_register(void* handle,
                                                                                   const fw_executor* openmp,
                                                                                   int (*openmp_threads)()) {
  using namespace flashwave_torch;
  if (!load(handle)) return 1;
  library.openmp = openmp, library.openmp_threads = openmp_threads;
  for (const char* key : {"CPU", "CUDA"}) {  // ROCm's tensors have the key CUDA, too
    TorchLibraryHandle to = nullptr;         // never deleted: that would take the kernels away
    if (aoti_torch_library_init_impl("flashwave", key, __FILE__, __LINE__, &to) != 0) return 2;
    for (const auto& [name, kernel] : kOperators) {
      if (aoti_torch_library_impl(to, name, kernel) != 0) return 2;
    }
    for (const auto& [name, kernel] : kRotaryOperators) {
      if (aoti_torch_library_impl(to, name, kernel) != 0) return 2;
    }
  }
  return 0;
}
