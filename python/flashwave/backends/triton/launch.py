"""Calls of the Triton kernels on torch tensors: arguments, memory, and which configuration is launched."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional

import torch
from triton.runtime.errors import OutOfResources

from ..native.structs import lse_shape, out_shape, readable
from . import configs as triton_configs
from .backward import attention_backward_keys, row_terms
from .backward_queries import attention_backward_queries
from .configs import Config
from .forward import attention_forward
from .support import WIDEST_ROW, family

if TYPE_CHECKING:
    from torch import Tensor

    from ...problem import Problem

_LOG2_E = 1.4426950408889634
_ROWS_OF_TERMS = 64  # queries of one program of `row_terms`
# Below this many multiplications a call takes less time than trying configurations would ever give back.
_WORTH_TUNING = 1 << 36

# A share of the second-level cache that heads in work at a time may fill: H200 has 50 MB, MI300 256 MB.
_CACHED_BYTES = 1 << 24

_chosen: dict[tuple, Config] = {}
_no_room: set[tuple[Config, tuple]] = set()


def forward(problem: Problem, out: Tensor | None, want_lse: bool) -> tuple[Tensor, Tensor | None]:
    problem = readable(problem)
    result = out
    if result is None or not _taken(result):
        result = torch.empty(out_shape(problem), dtype=problem.q.dtype, device=problem.q.device)
    lse = None
    if want_lse:
        lse = torch.empty(lse_shape(problem), dtype=torch.float32, device=problem.q.device)
    if problem.cu_seqlens_q is not None:
        result.zero_()  # kernels do not write rows of no sequence
        if lse is not None:
            lse.fill_(-math.inf)
    call = _Call(problem)
    sign, factor = None, call.scale * _LOG2_E
    if not call.is_modified:
        # The kernel takes the largest product before it scales, so the sign of the scale rides on q.
        if factor <= 0:
            sign = math.copysign(1.0, factor) if factor else 0.0
        factor = abs(factor) or 1.0
    arguments = {
        "q": problem.q, "k": problem.k, "v": problem.v, "out": result, "lse": lse, "sinks": call.sinks, "sign": sign,
        **call.shared, "factor": factor, **_strides("o", result), **_lse_strides("lse", lse, last=False),
    }  # fmt: skip
    call.launch("forward", attention_forward, arguments)
    if out is not None and result is not out:
        out.copy_(result)
        result = out
    return result, lse


def backward(
    problem: Problem, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, needs: Sequence[bool]
) -> tuple[Optional[Tensor], ...]:
    problem = readable(problem)
    need_q, need_k, need_v, need_slopes, need_bias, need_sinks = needs
    p = problem
    dout, out = (tensor if _taken(tensor) else tensor.contiguous() for tensor in (dout, out))
    call = _Call(p)
    lse_log2, delta, dsinks = call.row_terms(dout, dlse, out, lse, need_sinks)
    common = {"q": p.q, "k": p.k, "v": p.v, "dout": dout, "lse_log2": lse_log2, "delta": delta, "scale": call.scale}
    common.update(**call.shared, **_strides("do", dout), **_lse_strides("row", delta, last=False))
    dq = dk = dv = dslopes = dbias = None
    if need_q or need_slopes or need_bias:
        dq = _gradient_of(p.q, p.cu_seqlens_q is not None)
        parts = call.slope_parts() if need_slopes else None
        pairs = call.pair_gradients() if need_bias else None
        pair_strides = (0, 0, 0) if pairs is None else pairs.stride()[:3]
        extra = dict(zip(("dbias_stride_b", "dbias_stride_h", "dbias_stride_q"), pair_strides))
        extra["slope_parts_stride"] = 0 if parts is None else parts.stride(1)
        call.launch(
            "queries",
            attention_backward_queries,
            {**common, "dq": dq, "dbias": pairs, "slope_parts": parts, **extra, **_strides("dq", dq)},
            may_tune=parts is None,  # another configuration has other blocks, and would leave parts of its own
        )
        if parts is not None:
            dslopes = parts.sum(-1) if p.alibi_slopes.dim() == 2 else parts.sum((0, 2))
            dslopes = dslopes.to(p.alibi_slopes.dtype)
        if pairs is not None:
            dbias = pairs.sum_to_size(p.bias.shape).to(p.bias.dtype)
    if need_k or need_v:
        ragged = p.cu_seqlens_k is not None or p.seqused_k is not None or p.leftpad_k is not None
        dk, dv = _gradient_of(p.k, ragged), _gradient_of(p.v, ragged)
        call.launch(
            "keys",
            attention_backward_keys,
            {
                **common,
                "dk": dk,
                "dv": dv,
                "GROUPED": call.heads > call.heads_k,
                **_strides("dk", dk),
                **_strides("dv", dv),
            },
        )
    gradients = (dq, dk, dv, dslopes, dbias, dsinks)
    return tuple([gradient if needed else None for gradient, needed in zip(gradients, needs)])


class _Call:
    """What the launches of one call share. Keeps no tensor but the optional ones."""

    def __init__(self, problem: Problem):
        p = problem
        self.p = problem._replace(q=None, k=None, v=None)
        self.device, self.dtype, self.element_size = p.q.device, p.q.dtype, p.q.element_size()
        self.batch = p.batch
        self.heads, self.heads_k = p.q.shape[-2], p.k.shape[-2]
        self.dim, self.dim_v = p.q.shape[-1], p.v.shape[-1]
        self.max_queries = p.q.shape[1] if p.cu_seqlens_q is None else min(p.max_seqlen_q, p.q.shape[0])
        self.max_keys = p.k.shape[1] if p.cu_seqlens_k is None else min(p.max_seqlen_k, p.k.shape[0])
        self.scale = p.scale
        self.is_modified = p.softcap > 0 or p.bias is not None or p.alibi_slopes is not None
        self.even_q = p.cu_seqlens_q is None
        self.even_k = p.cu_seqlens_k is None and p.seqused_k is None and p.leftpad_k is None
        self.left, self.right = p.window
        self.sinks = None if p.sinks is None else p.sinks.contiguous()
        self.shared = self._shared(problem)

    def _shared(self, p: Problem) -> dict[str, Any]:
        slopes = None if p.alibi_slopes is None else p.alibi_slopes.contiguous()
        bias_strides = (0, 0, 0, 0)
        if p.bias is not None:
            bias_strides = tuple([0 if n == 1 else at for n, at in zip(p.bias.shape, p.bias.stride())])
        threshold, keep_scale = 0, 1.0
        if p.dropout_p > 0:
            threshold, keep_scale = p.dropout_threshold, 1.0 / (1.0 - p.dropout_p)
        return {
            "cu_seqlens_q": p.cu_seqlens_q, "cu_seqlens_k": p.cu_seqlens_k, "seqused_k": p.seqused_k,
            "leftpad_k": p.leftpad_k, "bias": p.bias, "slopes": slopes,
            "rng_state": p.rng_state if p.dropout_p > 0 else None,
            **_strides("q", p.q), **_strides("k", p.k), **_strides("v", p.v),
            **{f"bias_stride_{axis}": stride for axis, stride in zip("bhqk", bias_strides)},
            "slopes_stride_b": slopes.stride(0) if slopes is not None and slopes.dim() == 2 else 0,
            "sequences": p.batch, "heads": self.heads, "group": self.heads // self.heads_k,
            "max_queries": self.max_queries, "max_keys": self.max_keys, "left": self.left, "right": self.right,
            "factor": self.scale * _LOG2_E, "cap": p.softcap * _LOG2_E if p.softcap > 0 else None,
            "cap_factor": self.scale / p.softcap if p.softcap > 0 else 0.0,
            "threshold": threshold, "keep_scale": keep_scale,
            "DIM": self.dim, "DIM_V": self.dim_v, "BLOCK_D": _padded(self.dim), "BLOCK_DV": _padded(self.dim_v),
        }  # fmt: skip

    def row_terms(
        self, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, need_sinks: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """lse in units of log2(e), delta, and the gradient of the sinks."""
        p = self.p
        lse_log2, delta = (torch.empty(lse.shape, dtype=torch.float32, device=lse.device) for _ in range(2))
        blocks = -(-self.max_queries // _ROWS_OF_TERMS)
        grid = blocks * self.batch * self.heads
        parts = None
        if need_sinks:
            parts = torch.empty((self.batch, self.heads, blocks), dtype=torch.float32, device=lse.device)
        if grid > 0:
            with _on(self.device):
                arguments = {
                    "out": out, "dout": dout, "lse": lse, "dlse": dlse, "lse_log2": lse_log2, "delta": delta,
                    "sinks": self.sinks, "sink_parts": parts, "cu_seqlens_q": p.cu_seqlens_q, **_strides("o", out),
                    **_strides("do", dout), **_lse_strides("lse", lse), **_lse_strides("dlse", dlse),
                    **_lse_strides("row", delta, last=False), "blocks": blocks, "heads": self.heads,
                    "max_queries": self.max_queries, "DIM_V": self.dim_v, "BLOCK_DV": _padded(self.dim_v),
                    "BLOCK_M": _ROWS_OF_TERMS,
                }  # fmt: skip
                row_terms[(grid,)](**arguments, num_warps=4)
        dsinks = None if parts is None else parts.sum((0, 2)).to(p.sinks.dtype)
        return lse_log2, delta, dsinks

    def slope_parts(self) -> Tensor:
        """Room for the parts of the gradient of the slopes, (batch, heads, as many blocks as there can be)."""
        most = -(-self.max_queries // 16)
        return torch.zeros((self.batch, self.heads, most), dtype=torch.float32, device=self.device)

    def pair_gradients(self) -> Tensor:
        p = self.p
        shape = (self.batch, self.heads, p.max_seqlen_q, p.max_seqlen_k)
        return torch.zeros(shape, dtype=torch.float32, device=self.device)

    def launch(self, operation: str, kernel: Any, arguments: dict[str, Any], may_tune: bool = True) -> None:
        device, element = self.device, self.element_size
        modified = self.is_modified or self.p.dropout_p > 0
        candidates = triton_configs.configs(family(device), operation, max(self.dim, self.dim_v), element, modified)

        def run(config: Config) -> None:
            by_keys = operation == "keys"
            if by_keys:
                blocks = -(-self.max_keys // config.block_n)
                even = {"EVEN_Q": self.even_q and self.max_queries % config.block_m == 0}
            else:
                blocks = -(-self.max_queries // config.block_m)
                even = {"EVEN_K": self.even_k and self.max_keys % config.block_n == 0}
            grid = blocks * self.batch * (self.heads_k if by_keys else self.heads)
            if grid == 0:
                return
            tiles = {"blocks": blocks, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n}
            tiles["span"] = self._span(by_keys)
            kernel[(grid,)](**arguments, **even, **tiles, **launch_options(config, device))

        with _on(device):
            self._run_best(operation, candidates, run, may_tune)

    def _span(self, by_keys: bool) -> int:
        """Heads whose blocks are interleaved (`place_of`): one where all blocks take equally long."""
        if self.right is None and self.left is None:
            return 1
        # What a program reads over and over: keys and values, or in the pass for dk and dv queries and dout.
        rows = self.max_queries * (self.heads // self.heads_k) if by_keys else self.max_keys
        size = max(1, rows * (self.dim + self.dim_v) * self.element_size)
        return max(1, _CACHED_BYTES // size)

    def _run_best(
        self, operation: str, candidates: tuple[Config, ...], run: Callable[[Config], None], may_tune: bool
    ) -> None:
        """Runs the fastest candidate for problems like this one; the first one where trying is not allowed or not worth
        it, and the next one where the GPU has no room for it.

        What is fastest can differ from one process to the next, and with it the last bits: not where the caller asked
        for determinism.
        """
        p = self.p
        key = (
            operation, self.device, self.dtype, _padded(self.dim), _padded(self.dim_v), self.left is None,
            self.right is None, self.is_modified, p.bias is None, p.dropout_p > 0, self.max_queries.bit_length(),
            self.max_keys.bit_length(),
        )  # fmt: skip
        size = self.batch * self.heads * self.max_queries * self.max_keys * (self.dim + self.dim_v)
        tunes = may_tune and len(candidates) > 2 and not p.deterministic and size >= _WORTH_TUNING and _may_tune()
        if tunes and key not in _chosen and self.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            _chosen[key] = min(candidates[:-1], key=lambda config: _seconds(lambda: run(config)))
        if tunes and key in _chosen:
            candidates = (_chosen[key], *candidates)
        for config in candidates:
            if (config, key) in _no_room:
                continue
            try:
                return run(config)
            except OutOfResources:
                if config is candidates[-1]:
                    raise
                _no_room.add((config, key))


def launch_options(config: Config, device: torch.device) -> dict[str, int | bool]:
    """Options of the compiler, the same for every kernel."""
    # Scaling and subtracting the maximum is one instruction only if the compiler may fuse the two.
    options = {"num_warps": config.warps, "num_stages": config.stages, "enable_fp_fusion": True}
    if family(device) in ("cdna", "rdna") and config.waves_per_eu:
        options["waves_per_eu"] = config.waves_per_eu
    return options


def _may_tune() -> bool:
    """FLASHWAVE_TRITON_AUTOTUNE=0: always the first configuration of the table."""
    return os.environ.get("FLASHWAVE_TRITON_AUTOTUNE", "1").strip().lower() not in ("0", "false", "off", "no")


def _seconds(run: Callable[[], None]) -> float:
    """The shortest of a few launches; infinity for a configuration that the GPU has no room for."""
    try:
        run()
    except OutOfResources:
        return math.inf
    times = []
    for _ in range(5):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return min(times)


def _on(device: torch.device) -> contextlib.AbstractContextManager:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _padded(dim: int) -> int:
    """A power of two, as Triton's tiles are, and no less than its products take."""
    return max(16, 1 << (dim - 1).bit_length())


def _strides(name: str, tensor: Tensor) -> dict[str, int]:
    """Of the batch, the rows and the heads; packed rows have no batch."""
    values = tensor.stride()[:-1]
    values = (0, *values) if len(values) == 2 else values
    return dict(zip((f"{name}_stride_b", f"{name}_stride_s", f"{name}_stride_h"), values))


def _lse_strides(name: str, tensor: Tensor | None, last: bool = True) -> dict[str, int]:
    """Of the batch and the heads, (b, h, rows) or packed (h, rows), and with `last` of the rows."""
    values = (0, 0, 1) if tensor is None else tensor.stride()
    values = (0, *values) if len(values) == 2 else values
    names = (f"{name}_stride_b", f"{name}_stride_h", f"{name}_stride_s")
    return dict(zip(names if last else names[:2], values))


def _taken(tensor: Tensor) -> bool:
    """Whether the kernels take a tensor laid out like q as it is."""
    return (tensor.shape[-1] <= 1 or tensor.stride(-1) == 1) and tensor.stride(-3) < WIDEST_ROW


def _gradient_of(tensor: Tensor, zero: bool) -> Tensor:
    make = torch.zeros if zero else torch.empty
    return make(tensor.shape, dtype=tensor.dtype, device=tensor.device)
