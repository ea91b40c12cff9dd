"""flash_attn.ops.fused_dense in plain torch: linear layers that may also return their input.

The tensor-parallel ColumnParallelLinear, RowParallelLinear and ParallelFusedMLP are not provided.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from flashwave.compat.flash_attn.ops.activations import gelu_fwd, sqrelu_fwd

ACTIVATIONS = {"gelu_approx": gelu_fwd, "relu": F.relu, "sqrelu": sqrelu_fwd}


def fused_dense_func(x, weight, bias=None, return_residual=False, process_group=None, sequence_parallel=True):
    _refuse_parallel(process_group)
    out = F.linear(x, weight, bias)
    return (out, x) if return_residual else out


def fused_mlp_func(
    x,
    weight1,
    weight2,
    bias1=None,
    bias2=None,
    activation="gelu_approx",
    save_pre_act=True,
    return_residual=False,
    checkpoint_lvl=0,
    heuristic=0,
    process_group=None,
    sequence_parallel=True,
):
    """checkpoint_lvl 0 keeps everything for the backward; 1 and 2 recompute the hidden layer."""
    _refuse_parallel(process_group)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: {activation!r} is none of {', '.join(ACTIVATIONS)}")

    def mlp(x):
        return F.linear(ACTIVATIONS[activation](F.linear(x, weight1, bias1)), weight2, bias2)

    out = checkpoint(mlp, x, use_reentrant=False) if checkpoint_lvl > 0 else mlp(x)
    return (out, x) if return_residual else out


class FusedDense(nn.Linear):
    def __init__(self, in_features, out_features, bias=True, return_residual=False, device=None, dtype=None) -> None:
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.return_residual = return_residual

    def forward(self, x, process_group=None):
        return fused_dense_func(x, self.weight, self.bias, self.return_residual, process_group)


class FusedMLP(nn.Module):
    def __init__(
        self,
        in_features,
        hidden_features=None,
        out_features=None,
        bias1=True,
        bias2=True,
        activation="gelu_approx",
        return_residual=False,
        checkpoint_lvl=0,
        heuristic="auto",
        device=None,
        dtype=None,
    ):
        super().__init__()
        hidden_features = 4 * in_features if hidden_features is None else hidden_features
        out_features = in_features if out_features is None else out_features
        self.activation = activation
        self.return_residual = return_residual
        self.checkpoint_lvl = checkpoint_lvl
        self.fc1 = nn.Linear(in_features, hidden_features, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden_features, out_features, bias=bias2, device=device, dtype=dtype)

    def forward(self, x, process_group=None):
        return fused_mlp_func(
            x,
            self.fc1.weight,
            self.fc2.weight,
            self.fc1.bias,
            self.fc2.bias,
            activation=self.activation,
            return_residual=self.return_residual,
            checkpoint_lvl=self.checkpoint_lvl if self.training else 0,
            process_group=process_group,
        )


def _refuse_parallel(process_group) -> None:
    if process_group is not None:
        raise NotImplementedError("process_group: tensor-parallel linear layers are not provided")
