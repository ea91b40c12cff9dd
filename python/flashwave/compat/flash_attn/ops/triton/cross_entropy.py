"""Cross entropy of logits that may be scaled, with label smoothing and a z-loss, row by row in fp32."""

from __future__ import annotations

import torch
import torch.distributed as dist
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
    The z-loss is for logs and gives no gradient of its own. inplace_backward is a permission to overwrite the logits,
    which is not used. With process_group each rank holds as many classes, those of rank 0 first, and gets the whole
    loss and the gradient of its own logits.
    """
    ranks = 1 if process_group is None else dist.get_world_size(process_group)
    scores = logits.float() * logit_scale
    lse = torch.logsumexp(scores, dim=-1)
    if ranks > 1:
        lse = _lse_of_all(lse, ranks, process_group)
    elif precomputed_lse is not None and logit_scale == 1.0 and label_smoothing == 0.0:
        lse = precomputed_lse.detach().float() + (lse - lse.detach())  # its numbers, the gradient of the function
    counted = labels != ignore_index
    first = 0 if ranks == 1 else dist.get_rank(process_group) * logits.shape[-1]
    here = counted & (labels >= first) & (labels < first + logits.shape[-1]) if ranks > 1 else counted
    of_label = scores.gather(-1, torch.where(here, labels - first, 0).unsqueeze(-1)).squeeze(-1)
    own = (1.0 - label_smoothing) * torch.where(here, of_label, 0.0)
    if label_smoothing != 0.0:
        own = own + label_smoothing * scores.mean(dim=-1) / ranks
    loss = lse - (own if ranks == 1 else _sum_of_all(own, process_group))
    z_loss = lse_square_scale * lse.square()
    zero = torch.zeros((), device=logits.device)
    return torch.where(counted, loss + z_loss, zero), torch.where(counted, z_loss, zero).detach()


def _lse_of_all(lse: Tensor, ranks: int, process_group) -> Tensor:
    """The log-sum-exp over the classes of all ranks, with the gradient of this rank's."""
    parts = lse.new_empty(ranks * lse.shape[0])
    dist.all_gather_into_tensor(parts, lse.detach().contiguous(), group=process_group)
    whole = parts.view(ranks, -1).logsumexp(0)
    return whole + (lse.detach() - whole).exp() * (lse - lse.detach())


def _sum_of_all(part: Tensor, process_group) -> Tensor:
    whole = part.detach().clone()
    dist.all_reduce(whole, group=process_group)
    return whole + (part - part.detach())
