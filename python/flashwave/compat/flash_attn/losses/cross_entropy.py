"""flash_attn.losses.cross_entropy."""

from __future__ import annotations

from torch import nn

from flashwave.compat.flash_attn.ops.triton.cross_entropy import cross_entropy_loss

__all__ = ["CrossEntropyLoss", "cross_entropy_loss"]


class CrossEntropyLoss(nn.Module):
    def __init__(
        self,
        ignore_index=-100,
        reduction="mean",
        label_smoothing=0.0,
        logit_scale=1.0,
        lse_square_scale=0.0,
        inplace_backward=False,
        process_group=None,
        return_z_loss=False,
    ):
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError(f"reduction: {reduction!r} is none of 'mean', 'none', 'sum'")
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.logit_scale = logit_scale
        self.lse_square_scale = lse_square_scale
        self.inplace_backward = inplace_backward
        self.process_group = process_group
        self.return_z_loss = return_z_loss

    def forward(self, input, target, precomputed_lse=None):
        """input (rows, classes), target (rows)."""
        loss, z_loss = cross_entropy_loss(
            input,
            target,
            precomputed_lse=precomputed_lse,
            label_smoothing=self.label_smoothing,
            logit_scale=self.logit_scale,
            lse_square_scale=self.lse_square_scale,
            ignore_index=self.ignore_index,
            inplace_backward=self.inplace_backward,
            process_group=self.process_group,
        )
        if self.reduction != "none":
            loss, z_loss = loss.sum(), z_loss.sum()
        if self.reduction == "mean":
            counted = (target != self.ignore_index).sum()
            loss, z_loss = loss / counted, z_loss / counted
        return (loss, z_loss) if self.return_z_loss else loss
