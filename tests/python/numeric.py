"""The project's numeric rule (docs/numerics.md) for torch tensors."""

from __future__ import annotations

import torch

ULP = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-23, torch.float64: 2.0**-52}


def error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest difference; NaN and infinity must be where the reference has them."""
    result, reference = result.detach().cpu().double(), reference.detach().cpu().double()
    assert result.shape == reference.shape
    finite = reference.isfinite()
    assert torch.equal(result.isfinite(), finite), "finite numbers in other places than the reference's"
    assert torch.equal(result[~finite].nan_to_num(nan=12345.0), reference[~finite].nan_to_num(nan=12345.0))
    return (result - reference)[finite].abs().max().item() if finite.any() else 0.0


def assert_within_rule(
    result: torch.Tensor,
    reference: torch.Tensor,
    naive: torch.Tensor,
    factor: float,
    what: str = "",
    units: float = 1.0,
) -> None:
    """error(result) <= factor * error(naive) + what storing the result costs, `units` in its last place."""
    scale = reference[reference.isfinite()].abs().max().item() if reference.isfinite().any() else 0.0
    exact = {torch.float32: 1e-6, torch.float64: 1e-13}  # for these the reference, in fp64, is hardly better
    floor = max(units * ULP[result.dtype] / 2 * scale, exact.get(result.dtype, 0.0) * (1 + scale))
    mine, allowed = error(result, reference), factor * error(naive, reference) + floor
    assert mine <= allowed, f"{what}: error {mine:.3e} is more than {allowed:.3e}"
