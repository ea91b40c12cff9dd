"""Calls against a float64 reference, in a process of their own, which says one line of JSON for each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

DTYPES = ("float16", "bfloat16", "float32", "float64")
# Of the largest number of a result: about 4 units in the last place, more in gradients, which add up.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-10}
SHAPES = {"prefill": (2, 256, 256, 8, 2, 64), "decode": (4, 1, 512, 8, 2, 64)}  # batch, queries, keys, heads, of k, dim


# ------------------------------------------------------------------------------------------------- in the other process


def child(what: str, device: str, dtypes: list[str]) -> None:
    """Checks `what` ("flashwave", "sdpa", "arrays"), with a line for each dtype and shape as soon as it is known."""
    for dtype in dtypes:
        for name in SHAPES:
            _say({"begins": f"{dtype} {name}", "dtype": dtype, "shape": name})
            start = time.perf_counter()
            try:
                found = _arrays(dtype, name) if what == "arrays" else _torch(what, device, dtype, name)
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            _say({"dtype": dtype, "shape": name, "seconds": round(time.perf_counter() - start, 3), **found})


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _reference(q: Any, k: Any, v: Any) -> Any:
    """Causal attention, the last query at the last key, of (batch, rows, heads, dim) in float64."""
    import torch

    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(k.shape[1] - q.shape[1] + 1)
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


def _torch(what: str, device: str, dtype: str, name: str) -> dict[str, Any]:
    import torch

    b, sq, sk, h, hk, d = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    shapes = ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, d))
    inputs = [torch.randn(shape, generator=generator).to(kind) for shape in shapes]
    dout = torch.randn(b, sq, h, d, generator=generator).to(kind)
    exact = [x.double().requires_grad_() for x in inputs]
    want = _reference(*exact)
    wanted = torch.autograd.grad(want, exact, dout.double())
    here = [x.to(device).requires_grad_() for x in inputs]
    with _stderr() as said:
        out = _flashwave(*here) if what == "flashwave" else _sdpa(*here)
        grads = torch.autograd.grad(out, here, dout.to(device))
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    found = {
        "forward error": _error(out, want),
        "backward error": max(_error(got, exact) for got, exact in zip(grads, wanted)),
    }
    if what == "flashwave":
        found.update(_chosen(said.getvalue()))
    return found


def _flashwave(q: Any, k: Any, v: Any) -> Any:
    import flashwave

    return flashwave.flash_attn_func(q, k, v, causal=True)


def _sdpa(q: Any, k: Any, v: Any) -> Any:
    """torch's own, whose causal mask begins at the top left."""
    import torch

    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    square = q.shape[2] == k.shape[2]  # else one query, which sees every key
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=square).transpose(1, 2)


def _arrays(dtype: str, name: str) -> dict[str, Any]:
    """Without torch: NumPy arrays, the forward against the formula."""
    import numpy as np

    from .. import arrays

    b, sq, sk, h, _, d = SHAPES[name]
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((b, rows, h, d)).astype(dtype) for rows in (sq, sk, sk))
    with _stderr() as said:
        out = arrays.attention(q, k, v, causal=True)
    scores = np.einsum("bihd,bjhd->bhij", q.astype("f8"), k.astype("f8")) * d**-0.5
    scores[..., np.triu(np.ones((sq, sk), bool), sk - sq + 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = np.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), v.astype("f8"))
    error = float(np.abs(out.astype("f8") - want).max() / np.abs(want).max())
    return {"forward error": error, **_chosen(said.getvalue())}


def _error(result: Any, reference: Any) -> float:
    """The largest difference, of the largest number."""
    difference = (result.detach().cpu().double() - reference.detach()).abs().max().item()
    return difference / reference.detach().abs().max().item()


class _Said:
    text = ""

    def getvalue(self) -> str:
        return self.text


@contextlib.contextmanager
def _stderr() -> Iterator[_Said]:
    """What this process and the library in it write there, with FLASH_ATTENTION_DEBUG: the choice and its reason."""
    said = _Said()
    before = os.environ.get("FLASH_ATTENTION_DEBUG")
    os.environ["FLASH_ATTENTION_DEBUG"] = "1"
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said.text = file.read().decode(errors="replace")
            if before is None:
                del os.environ["FLASH_ATTENTION_DEBUG"]
            else:
                os.environ["FLASH_ATTENTION_DEBUG"] = before


def _chosen(said: str) -> dict[str, str]:
    """Backend, kernel and reason of the forward and the backward, from lines of debug output."""
    found = {}
    for line in said.splitlines():
        match = re.search(r"\b(fwd|bwd)\b.*?\bbackend=(\S+) kernel=(\S+)(?: \((.*)\))?", line)
        plain = re.search(r"\b(fwd|bwd)\b.*?\bkernel=(\S+)", line)
        if match:
            found[match[1]] = f"{match[2]} {match[3]}" + (f" ({match[4]})" if match[4] else "")
        elif plain and plain[1] not in found:
            found[plain[1]] = f"native {plain[2]}"
    return found


# ------------------------------------------------------------------------------------------------------ in this process


def run(what: str, device: str, timeout: float) -> list[dict[str, Any]]:
    """The lines of the check. A process that dies is one; another one goes on behind what killed it."""
    dtypes = [dtype for dtype in DTYPES if what != "arrays" or dtype in ("float16", "float32")]
    results: list[dict[str, Any]] = []
    while dtypes:
        lines, fate = _child_lines(what, device, dtypes, timeout)
        results += [line for line in lines if "begins" not in line]
        if fate is None:
            break
        begun = [line for line in lines if "begins" in line]
        if not begun:
            results.append({"dtype": dtypes[0], "shape": "", "error": f"the process did not start: {fate}"})
            break
        last = begun[-1]
        results.append({"dtype": last["dtype"], "shape": last["shape"], "error": fate})
        dtypes = dtypes[dtypes.index(last["dtype"]) + 1 :]
    for result in results:
        result["right"] = _is_right(result)
    return results


def _child_lines(what: str, device: str, dtypes: list[str], timeout: float) -> tuple[list[dict[str, Any]], str | None]:
    command = [sys.executable, "-m", "flashwave.doctor", "--child", what, device, ",".join(dtypes)]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]  # the same package as this one
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout, check=False)
        output, fate = done.stdout, _fate(done.returncode, done.stderr)
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        fate = f"did not end within {timeout:.0f} s"
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")], fate


def _fate(status: int, said: str) -> str | None:
    if status == 0:
        return None
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    last = (said.strip().splitlines() or [""])[-1]
    return f"ended with status {status}: {last}"


def _is_right(result: dict[str, Any]) -> bool:
    errors = [result[name] for name in ("forward error", "backward error") if name in result]
    return bool(errors) and all(error <= TOLERANCE[result["dtype"]] for error in errors)
