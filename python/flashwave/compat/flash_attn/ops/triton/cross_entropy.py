"""Cross entropy of logits that may be scaled, with label smoothing and a z-loss, row by row in fp32."""

from __future__ import annotations

import torch
from torch import Tensor


def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    precomputed_lse: Tensor | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group=None,
) -> tuple[Tensor, Tensor]:
    """logits (rows, classes), labels (rows). Returns the loss of each row, and the part of it that is the z-loss
    lse_square_scale * lse^2; both 0 where labels == ignore_index.

    precomputed_lse (rows) is the log-sum-exp of the logits, as numbers: the loss takes them where logit_scale is 1 and
    nothing is smoothed, as flash-attn's does, and its gradient is the same with and without.
    inplace_backward is a permission to overwrite the logits, which is not used.
    """
    if process_group is not None:
        raise NotImplementedError("process_group: tensor-parallel cross entropy is not provided")
    scores = logits.float() * logit_scale
    lse = torch.logsumexp(scores, dim=-1)
    if precomputed_lse is not None and logit_scale == 1.0 and label_smoothing == 0.0:
        lse = precomputed_lse.detach().float() + (lse - lse.detach())  # its numbers, the gradient of the function
    counted = labels != ignore_index
    of_label = scores.gather(-1, torch.where(counted, labels, 0).unsqueeze(-1)).squeeze(-1)
    loss = lse - (1.0 - label_smoothing) * of_label
    if label_smoothing != 0.0:
        loss = loss - label_smoothing * scores.mean(dim=-1)
    z_loss = lse_square_scale * lse.square()
    zero = torch.zeros((), device=logits.device)
    return torch.where(counted, loss + z_loss, zero), torch.where(counted, z_loss, zero)
