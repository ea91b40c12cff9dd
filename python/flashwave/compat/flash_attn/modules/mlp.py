"""flash_attn.modules.mlp in plain torch. The tensor-parallel ParallelMLP and ParallelGatedMlp are not provided."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from flashwave.compat._refused import refuse_names
from flashwave.compat.flash_attn.ops.activations import swiglu
from flashwave.compat.flash_attn.ops.fused_dense import FusedMLP

__all__ = ["FusedMLP", "GatedMlp", "Mlp"]

__getattr__ = refuse_names(
    "flash_attn.modules.mlp",
    "ParallelMLP ParallelGatedMlp ParallelFusedMLP",
    "Mlp or GatedMlp under torch.distributed.tensor.parallel",
)


class Mlp(nn.Module):
    def __init__(
        self,
        in_features,
        hidden_features=None,
        out_features=None,
        activation=F.gelu,
        bias1=True,
        bias2=True,
        return_residual=False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        hidden_features = 4 * in_features if hidden_features is None else hidden_features
        out_features = in_features if out_features is None else out_features
        self.return_residual = return_residual
        self.activation = activation
        self.fc1 = nn.Linear(in_features, hidden_features, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden_features, out_features, bias=bias2, device=device, dtype=dtype)

    def forward(self, x):
        out = self.fc2(self.activation(self.fc1(x)))
        return (out, x) if self.return_residual else out


class GatedMlp(nn.Module):
    """The first half of fc1's output, times the second half activated: GLU with F.sigmoid, SwiGLU with F.silu."""

    def __init__(
        self,
        in_features,
        hidden_features=None,
        out_features=None,
        activation=F.sigmoid,
        bias1=True,
        bias2=True,
        multiple_of=128,
        return_residual=False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        hidden_features = int(8 * in_features / 3) if hidden_features is None else hidden_features
        hidden_features = -(-hidden_features // multiple_of) * multiple_of
        out_features = in_features if out_features is None else out_features
        self.return_residual = return_residual
        self.activation = activation
        self.fc1 = nn.Linear(in_features, 2 * hidden_features, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden_features, out_features, bias=bias2, device=device, dtype=dtype)

    def forward(self, x):
        y = self.fc1(x)
        if self.activation == F.sigmoid:
            y = F.glu(y, dim=-1)
        else:
            y, gate = y.chunk(2, dim=-1)
            y = swiglu(gate, y) if self.activation == F.silu else y * self.activation(gate)
        out = self.fc2(y)
        return (out, x) if self.return_residual else out
