"""The ways in which a call is made, each of which must give the reference's numbers or, where it may, an error."""

from __future__ import annotations

import contextlib
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import flashwave

from . import reference
from .calls import Call
from .world import Finding, World

# Of the largest number of a result, plus 1. The sizes are small: errors of a kernel that is right are far below.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 8e-2, torch.float16: 1.5e-2}
REFUSALS = (RuntimeError, NotImplementedError, TypeError)  # torch's own, and ours, which are RuntimeErrors


class Refused(Exception):
    """A call raised where it may."""


# --------------------------------------------------------------------------------------------------------- comparison


def compare(
    call: Call,
    mode: str,
    what: str,
    got: Tensor,
    want: Tensor,
    dtype: torch.dtype,
    floor: Callable[[], float] | None = None,
) -> None:
    """floor: an error that is not the kernel's own; asked for where the result is beyond the tolerance."""
    tolerance = max(TOLERANCE[dtype], TOLERANCE[call.dtype or dtype], TOLERANCE[got.dtype])
    kind = f"{call.name} / {mode} / wrong {what}"
    if got.shape != want.shape:
        raise Finding(kind, f"shape {tuple(got.shape)}, not {tuple(want.shape)}; {call}")
    got, want = got.detach().double().resolve_neg(), want.detach().double()
    finite = want.isfinite()
    same = torch.equal(got.isfinite(), finite) and torch.equal(
        got[~finite].nan_to_num(nan=7.0), want[~finite].nan_to_num(nan=7.0)
    )
    if not same:
        raise Finding(kind, f"finite in other places than the reference; {call}")
    if not finite.any():
        return
    got, want = got[finite], want[finite]
    huge = want.abs() > 1e30  # log-sum-exp of rows with no key but masked ones: that it is huge is all that is asked
    if huge.any():
        if (got[huge].sign() != want[huge].sign()).any() or (got[huge].abs() < 1e29).any():
            raise Finding(kind, f"{got[huge][:3].tolist()}, not {want[huge][:3].tolist()}; {call}")
        got, want = got[~huge], want[~huge]
    if got.numel() == 0:
        return
    # Numbers in the thousands (log-sum-exp under a large bias) have their own scale.
    scale = 1 + want.abs().clamp(min=want.abs().clamp(max=100).max().item())
    off = (got - want).abs()
    error = (off / scale).max().item()
    if not error <= tolerance and floor is not None:
        error = ((off - 2 * floor()).clamp(min=0) / scale).max().item()
    if not error <= tolerance:
        raise Finding(kind, f"off by {error:.2e} of the scale; {call}")


def compare_all(
    call: Call,
    mode: str,
    got: Sequence[Tensor],
    want: Sequence[Tensor],
    dtype: torch.dtype,
    with_rounded_out: Callable[[], Sequence[Tensor]] | None = None,
) -> None:
    for index, (a, b) in enumerate(zip(got, want)):
        floor = with_rounded_out and (lambda n=index: _largest_difference(with_rounded_out()[n], want[n]))
        compare(call, mode, f"result {index}", a, b, dtype, floor)


def _with_rounded_out(call: Call, extra: object, inputs: Sequence[Tensor], dtype: torch.dtype) -> Callable[[], tuple]:
    """What a call that makes derivatives itself gives where O is rounded to the inputs' type in between."""

    def results() -> tuple:
        with reference.rounded_out(dtype):
            return call.reference(extra, *inputs)

    return results


def _largest_difference(a: Tensor, b: Tensor) -> float:
    return (a - b).detach().nan_to_num(0.0, 0.0, 0.0).abs().max().item()


def snapshots(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs' numbers now, in fp64; one tensor for each object, so that gradients of aliases add up."""
    made: dict[int, Tensor] = {}
    for x in inputs:
        made.setdefault(id(x), x.detach().clone().resolve_neg().double())
    return [made[id(x)] for x in inputs]


def usable(call: Call) -> list[Tensor]:
    """The inputs, with normal tensors in place of inference tensors: those cannot take part in autograd."""
    made: dict[int, Tensor] = {}
    for x in call.inputs:
        made.setdefault(id(x), x.clone() if x.is_inference() else x)
    return [made[id(x)] for x in call.inputs]


def attempt(call: Call, mode: str, function: Callable, may_refuse: tuple[type, ...] = ()) -> object:
    """function(); what it may raise is Refused, anything else a finding. A call that must be refused must be."""
    allowed = (*may_refuse, *call.may_refuse)
    try:
        result = function()
    except (Finding, Refused):
        raise
    except Exception as error:
        expected = (flashwave.FlashwaveError,) if call.must_refuse else ()
        if isinstance(error, (*expected, *allowed)) and not isinstance(error, RecursionError):
            _clear_frames(error)
            raise Refused(str(error)) from None
        raise Finding(f"{call.name} / {mode} / raised {type(error).__name__}", f"{error}; {call}") from error
    if call.must_refuse:
        raise Finding(f"{call.name} / not refused: {call.must_refuse}", f"{call}")
    return result


def _clear_frames(error: BaseException | None) -> None:
    """Ends what the frames of an error keep alive.

    torch's checkpoint is a generator that holds its hooks for saved tensors until it is collected: left to the
    collector, it takes them away in the middle of a later call, which then runs with those of another.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


# --------------------------------------------------------------------------------------------------- without gradients


def _contexts(world: World, call: Call) -> tuple[str, contextlib.AbstractContextManager, torch.dtype | None]:
    rng = world.rng
    kind = rng.choice(("plain", "plain", "plain", "no_grad", "inference", "inference", "autocast", "default device"))
    if kind == "no_grad":
        return kind, torch.no_grad(), None
    if kind == "inference":
        return kind, torch.inference_mode(), None
    if kind == "autocast" and call.cast and not call.writes and call.inputs[0].dtype != torch.float64:
        dtype = rng.choice((torch.bfloat16, torch.float16))
        return kind, torch.autocast("cpu", dtype), dtype
    if kind == "default device" and call.name not in ("FlashMHA", "rotary module", "unpad_input"):
        return kind, torch.device("meta"), None
    return "plain", contextlib.nullcontext(), None


def plain(world: World, call: Call) -> None:
    mode, context, cast = _contexts(world, call)
    if any(x.is_inference() for x in call.writes):  # torch lets nobody write to them elsewhere
        mode, context, cast = "inference", torch.inference_mode(), None
    before = snapshots(call.inputs)
    dtype = cast or call.inputs[0].dtype
    keeper = _VersionKeeper(call) if mode != "inference" else None

    def run() -> tuple:
        with context:
            return call.run(*call.inputs)

    results, extra = attempt(call, mode, run, world.may_refuse)
    inputs = before if cast is None else [x.to(cast).double() if n < call.cast else x for n, x in enumerate(before)]
    expected = call.reference(extra, *inputs)
    compare_all(call, mode, results, expected, dtype, _with_rounded_out(call, extra, inputs, dtype))
    wanted = call.dtype or dtype
    if results[0].dtype != wanted and "arrays" not in call.name:
        raise Finding(f"{call.name} / {mode} / wrong dtype", f"{results[0].dtype}, not {wanted}; {call}")
    for x, y in zip(call.inputs, before):
        written = any(x is w for w in call.writes)
        if not written and not torch.equal(x.detach().resolve_neg().double().nan_to_num(), y.nan_to_num()):
            raise Finding(f"{call.name} / {mode} / changed an input", str(call))
    if keeper is not None:
        keeper.check(mode)


class _VersionKeeper:
    """Graphs that saved, before the call, what the call writes: they must raise, or give the gradient of then."""

    def __init__(self, call: Call) -> None:
        self.call, self.graphs = call, []
        for written in call.writes:
            if written.is_inference():
                continue
            with torch.enable_grad():
                w = torch.ones(written.shape, dtype=written.dtype, device="cpu", requires_grad=True)
                self.graphs.append((w, (w * written).sum(), written.detach().clone()))

    def check(self, mode: str) -> None:
        for w, total, then in self.graphs:
            try:
                (found,) = torch.autograd.grad(total, w)
            except RuntimeError:
                continue
            if not torch.equal(found, then):
                raise Finding(f"{self.call.name} / {mode} / wrote without autograd's notice", str(self.call))


# ----------------------------------------------------------------------------------------------------------- gradients


def _leaves(world: World, call: Call, some: bool = True) -> tuple[list[Tensor], list[Tensor]]:
    """Leaves with the inputs' storage and strides, and the fp64 ones; some of both require a gradient."""
    exact = {id(x): y for x, y in zip(call.inputs, snapshots(call.inputs))}
    made: dict[int, tuple[Tensor, Tensor]] = {}
    rng = world.rng
    for original, x in zip(call.inputs, usable(call)):
        if id(original) not in made:
            needs = not some or not made or rng.random() < 0.8
            y = exact[id(original)].clone()
            made[id(original)] = (x.detach().requires_grad_(needs), y.requires_grad_(needs))
    pairs = [made[id(x)] for x in call.inputs]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    return list({id(x): x for x in tensors if x.requires_grad}.values())


def _incoming(world: World, call: Call, result: Tensor, index: int) -> Tensor:
    """A gradient for a result, in some layout."""
    rng = world.pick
    kind = rng.choice(("plain", "plain", "transposed", "expanded", "ones"))
    made = world.normal(*result.shape, dtype=result.dtype)
    if kind == "transposed" and result.dim() > 1:
        made = made.transpose(0, 1).contiguous().transpose(0, 1)
    if kind == "expanded" and result.dim() > 1:
        made = made[:, :1].expand(result.shape).clone() if index else made[:, :1].expand(result.shape)
    if kind == "ones":
        made = torch.ones((), dtype=result.dtype, device="cpu").expand(result.shape)
    if call.quiet_rows is not None:
        shape = (1, -1, 1, 1) if index == 0 else (1, 1, -1)
        made = made.masked_fill(call.quiet_rows.view(shape), 0.0)
    return made


def gradient(world: World, call: Call) -> None:
    """First derivatives by autograd, of some inputs; sometimes an input is changed in between."""
    rng = world.rng
    mode = rng.choice(("gradient", "gradient", "gradient", "checkpoint"))
    leaves, exact = _leaves(world, call)
    changed = rng.random() < 0.08
    extra = None

    def results() -> tuple:
        nonlocal extra
        got, extra = call.run(*leaves)
        return got

    def run() -> tuple:
        if mode == "checkpoint" and call.pure:
            got = checkpoint(lambda *_: results(), *leaves, use_reentrant=False)
        else:
            got = results()
        outs = [(n, x) for n, x in enumerate(got) if x.requires_grad]
        if not outs:
            raise Finding(f"{call.name} / {mode} / no gradient", str(call))
        weights = [_incoming(world, call, x, n) for n, x in outs]
        if changed:
            _change_one(world, leaves)
        found = torch.autograd.grad([x for _, x in outs], _distinct(leaves), weights, allow_unused=True)
        return got, found, [(n, w) for (n, _), w in zip(outs, weights)]

    may_refuse = (*world.may_refuse, *(REFUSALS if changed or call.learnable_scalar else ()))
    with torch.enable_grad():
        got, found, weights = attempt(call, mode, run, may_refuse)
        want = call.reference(extra, *exact)
        dtype = call.inputs[0].dtype
        if not changed:
            compare_all(call, mode, got, want, dtype)

        def gradients(results: Sequence[Tensor]) -> tuple:
            outs, incoming = [results[n] for n, _ in weights], [w.double() for _, w in weights]
            return torch.autograd.grad(outs, _distinct(exact), incoming, allow_unused=True)

        wanted = gradients(want)

    def with_rounded_out() -> tuple:
        with torch.enable_grad(), reference.rounded_out(dtype):
            return gradients(call.reference(extra, *exact))

    mode += " after a change" if changed else ""
    _compare_gradients(call, mode, exact, found, wanted, dtype, with_rounded_out)


def _change_one(world: World, leaves: Sequence[Tensor]) -> None:
    x = world.rng.choice([x for x in leaves if x.dim() > 0] or list(leaves))
    strides = [stride for size, stride in zip(x.shape, x.stride()) if size > 1]
    if 0 not in strides and x.numel():
        x.detach().copy_(world.normal(*x.shape, dtype=x.dtype))


def _compare_gradients(
    call: Call,
    mode: str,
    exact: Sequence[Tensor],
    found: Sequence,
    wanted: Sequence,
    dtype: torch.dtype,
    with_rounded_out: Callable[[], Sequence] | None = None,
) -> None:
    for n, (x, got, want) in enumerate(zip(_distinct(exact), found, wanted)):
        want = torch.zeros_like(x) if want is None else want
        if got is None:
            if want.abs().max() > 0 if want.numel() else False:
                raise Finding(f"{call.name} / {mode} / no gradient of input {n}", str(call))
            continue
        # Sums over rows grow with their number: those are compared with what is summed.
        floor = with_rounded_out and (lambda n=n, want=want: _largest_difference(with_rounded_out()[n], want) / 4)
        compare(call, mode, f"gradient of input {n}", got / 4, want / 4, dtype, floor)


def twice(world: World, call: Call) -> None:
    """A loss of the results and of their gradient: its gradient is right or refused."""
    leaves, exact = _leaves(world, call, some=False)
    if call.quiet_rows is not None or call.inputs[0].dtype in (torch.bfloat16, torch.float16):
        return gradient(world, call)
    whole = world.rng.random() < 0.5
    extra = None

    def second(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple:
        first = torch.autograd.grad(results[0].square().sum(), _distinct(inputs), create_graph=True, allow_unused=True)
        total = results[0].sum() + sum((g.square().sum() for g in first if g is not None), torch.zeros(()))
        if not whole:
            return torch.autograd.grad(total, _distinct(inputs), allow_unused=True)
        total.backward()
        return tuple(x.grad for x in _distinct(inputs))

    def run() -> tuple:
        nonlocal extra
        got, extra = call.run(*leaves)
        return second(got, leaves)

    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of backward() with create_graph
        found = attempt(call, "second derivative", run, REFUSALS)
        wanted = second(call.reference(extra, *exact), exact)
    _compare_gradients(call, "second derivative", exact, found, wanted, call.inputs[0].dtype)


def forward_mode(world: World, call: Call) -> None:
    """Tangents by torch.func.jvp, jacfwd or dual numbers: right or refused."""
    inputs, exact = usable(call), snapshots(call.inputs)
    inputs = [x.detach() for x in inputs]
    tangent = world.normal(*inputs[0].shape, dtype=inputs[0].dtype)
    how = world.rng.choice(("jvp", "dual", "dual with a gradient", "jacfwd"))

    def of_first(function: Callable, rest: Sequence[Tensor]) -> Callable:
        return lambda x: function(x, *rest)

    def run_first(x: Tensor) -> Tensor:
        return call.run(x, *inputs[1:])[0][0]

    def reference_first(x: Tensor) -> Tensor:
        return call.reference(None, x, *exact[1:])[0]

    def run() -> Tensor | None:
        if how == "jvp":
            return torch.func.jvp(run_first, (inputs[0],), (tangent,))[1]
        if how == "jacfwd":
            return torch.func.jacfwd(lambda x: run_first(x).double().sum())(inputs[0])
        with forward_ad.dual_level():
            x = inputs[0].detach().requires_grad_(how != "dual")
            return forward_ad.unpack_dual(run_first(forward_ad.make_dual(x, tangent))).tangent

    mode = f"forward-mode {how}"
    found = attempt(call, mode, run, REFUSALS)
    if how == "jacfwd":
        want = torch.func.jacrev(lambda x: reference_first(x).sum())(exact[0])
    else:
        want = torch.func.jvp(reference_first, (exact[0],), (tangent.double(),))[1]
    if found is None:
        if want.abs().max() > 1e-6 if want.numel() else False:
            raise Finding(f"{call.name} / {mode} / no tangent", str(call))
        return
    compare(call, mode, "tangent", found, want, call.inputs[0].dtype)


def functional(world: World, call: Call) -> None:
    """torch.func.vjp, vmap: right or refused."""
    inputs, exact = [x.detach() for x in usable(call)], snapshots(call.inputs)
    how = world.rng.choice(("vjp", "vmap"))
    may_refuse = REFUSALS
    if how == "vmap":
        other = world.normal(*inputs[0].shape, dtype=inputs[0].dtype)
        both = torch.stack((inputs[0].resolve_neg(), other))
        function = torch.func.vmap(lambda x: call.run(x, *inputs[1:])[0][0])
        found = attempt(call, how, lambda: function(both), may_refuse)
        for n, x in enumerate((exact[0], other.double())):
            compare(call, how, "result", found[n], call.reference(None, x, *exact[1:])[0], inputs[0].dtype)
        return
    out, pull = attempt(call, how, lambda: torch.func.vjp(lambda *x: call.run(*x)[0][0], *inputs), may_refuse)
    want, exact_pull = torch.func.vjp(lambda *x: call.reference(None, *x)[0], *exact)
    compare(call, how, "result", out, want, inputs[0].dtype)
    weight, dtype = _incoming(world, call, out, 0), inputs[0].dtype

    def with_rounded_out() -> tuple:
        with reference.rounded_out(dtype):
            return torch.func.vjp(lambda *x: call.reference(None, *x)[0], *exact)[1](weight.double())

    found, wanted = attempt(call, how, lambda: pull(weight), may_refuse), exact_pull(weight.double())
    for n, (got, want) in enumerate(zip(found, wanted)):
        floor = lambda n=n, want=want: _largest_difference(with_rounded_out()[n], want) / 4  # noqa: E731
        compare(call, how, f"gradient of input {n}", got / 4, want / 4, dtype, floor)


# -------------------------------------------------------------------------------------------------- traced and at once


def _fresh(world: World, x: Tensor) -> Tensor:
    """Other numbers, but in scalars and in small vectors (slopes), which have ranges."""
    return world.normal(*x.shape, dtype=x.dtype) if x.dim() > 1 and x.numel() else x.detach().clone().resolve_neg()


def traced(world: World, call: Call) -> None:
    """torch.jit.trace and torch.compile, called with other numbers than those it was traced with."""
    rng = world.rng
    how = rng.choice(("trace",) * 30 + ("compile",))  # which takes a second
    if how == "compile" and torch.get_default_dtype() != torch.float32:
        how = "trace"
    examples = [x.detach().clone().resolve_neg() for x in call.inputs]
    inputs = [_fresh(world, x) for x in examples]
    if call.quiet_rows is not None or any(x.dim() == 0 for x in inputs):
        return plain(world, call)
    in_place = call.name.startswith("rotary") and call.name != "rotary x"  # torch's tracer refuses those with gradients
    needs = rng.random() < 0.3 and not in_place
    if needs and how == "trace":
        examples = [x.requires_grad_() for x in examples]

    def only(*x: Tensor) -> tuple:
        results = call.run(*x)[0]
        return results if len(results) > 1 else results[0]

    def run() -> tuple:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of values that become constants: lengths
            if how == "trace":
                function = torch.jit.trace(only, tuple(examples), check_trace=False)
            else:
                function = torch.compile(only, backend="aot_eager", fullgraph=False)
        results = function(*inputs)
        return results if isinstance(results, tuple) else (results,)

    try:
        results = attempt(call, how, run, world.may_refuse)
    finally:
        if how == "compile":
            torch.compiler.reset()
    exact, dtype = [x.double() for x in inputs], call.inputs[0].dtype
    expected = call.reference(None, *exact)
    compare_all(call, how, results, expected, dtype, _with_rounded_out(call, None, exact, dtype))


def threads(world: World, call: Call) -> None:
    """The call in several threads at once, some with other tensors of the same shapes, one with all inputs one."""
    findings: list[Exception] = []
    fresh = [[_fresh(world, x) for x in call.inputs] for _ in range(2)]
    sets = [call.inputs, *fresh]
    if len({tuple(x.shape) for x in call.inputs[:3]}) == 1 and len(call.inputs) >= 3:
        sets.append([fresh[0][0]] * 3 + fresh[0][3:])
    if call.quiet_rows is not None:
        sets = sets[:1]
    exact, dtype = [snapshots(inputs) for inputs in sets], call.inputs[0].dtype
    expected = [call.reference(None, *inputs) for inputs in exact]

    def work(inputs: Sequence[Tensor], numbers: Sequence[Tensor], want: tuple) -> None:
        try:
            with torch.no_grad():
                for _ in range(3):
                    results = attempt(call, "threads", lambda: call.run(*inputs), world.may_refuse)[0]
                    compare_all(call, "threads", results, want, dtype, _with_rounded_out(call, None, numbers, dtype))
        except (Finding, Refused) as error:
            findings.append(error)

    workers = [threading.Thread(target=work, args=each) for each in zip(sets, exact, expected)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for finding in sorted(findings, key=lambda x: not isinstance(x, Finding)):
        raise finding


def choose(world: World, call: Call) -> Callable[[World, Call], None]:
    """A mode that makes sense for the call."""
    if call.must_refuse:
        return plain
    modes, weights = [plain], [6.0]
    if call.pure and "NumPy" not in call.name:
        modes.append(threads)
        weights.append(0.25)
    if call.differentiable:
        modes.append(gradient)
        weights.append(3.0)
        if not call.learnable_scalar:
            modes.append(twice)
            weights.append(0.7)
    whole = call.pure and call.differentiable and not call.learnable_scalar
    if whole and call.name not in ("unpad_input", "FlashMHA", "transformers"):
        modes += [forward_mode, functional, traced]
        weights += [0.7, 0.3, 0.35]
    return world.rng.choices(modes, weights)[0]
