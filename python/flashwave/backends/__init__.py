"""Ways to compute an attention on torch tensors; `flashwave.dispatch` chooses one for each call.

A backend is a module with three functions:

* ``refusal(problem, op, needs=None, probs=False)``: None if it can compute the call, else one sentence why not. op is
  "forward" or "backward"; needs says which gradients a backward is asked for, probs whether a forward is asked for the
  softmax matrix.
* ``forward(problem, out, lse, probs)``: (out, lse, probs).
* ``backward(problem, dout, dlse, out, lse, needs)``: the gradients of q, k, v, alibi_slopes, bias and sinks.
"""
