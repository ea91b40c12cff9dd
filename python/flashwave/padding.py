"""Between padded batches and ragged ones: rows of the tokens that a mask selects, and back."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import InvalidArgument


class IndexFirstAxis(torch.autograd.Function):
    """x[indices]. The rows of `indices` must be distinct, so that the backward can store instead of add."""

    @staticmethod
    def forward(ctx, input: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows = input.shape[0]
        return input[indices]

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        (indices,) = ctx.saved_tensors
        return _scatter_rows(grad_output, indices, ctx.rows), None


class IndexPutFirstAxis(torch.autograd.Function):
    """Zeros of `first_axis_dim` rows, with values[i] in row indices[i]."""

    @staticmethod
    def forward(ctx, values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
        ctx.save_for_backward(indices)
        return _scatter_rows(values, indices, first_axis_dim)

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        (indices,) = ctx.saved_tensors
        return grad_output[indices], None, None


class IndexFirstAxisResidual(torch.autograd.Function):
    """x[indices] and x itself, so that both gradients are summed in one pass."""

    @staticmethod
    def forward(ctx, input: Tensor, indices: Tensor):
        ctx.save_for_backward(indices)
        return input[indices], input.detach()

    @staticmethod
    def backward(ctx, grad_output: Tensor, grad_residual: Tensor):
        (indices,) = ctx.saved_tensors
        return grad_residual.index_add(0, indices, grad_output), None


index_first_axis = IndexFirstAxis.apply
index_put_first_axis = IndexPutFirstAxis.apply
index_first_axis_residual = IndexFirstAxisResidual.apply


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None):
    """Rows of the tokens that attention_mask or unused_mask (batch, seqlen; 1 selects) keeps.

    Returns (rows, indices of the rows in the flattened batch, cu_seqlens (batch + 1) int32, longest sequence,
    seqused (batch) int32: what attention_mask alone selects).
    """
    if not isinstance(attention_mask, Tensor):
        raise InvalidArgument(f"attention_mask must be a torch tensor, got {type(attention_mask).__name__}")
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    return (*_rows_of(hidden_states, indices, lengths), used)


def unpad_input_for_concatenated_sequences(hidden_states: Tensor, attention_mask_in_length: Tensor):
    """As `unpad_input`, of batch rows that hold several sequences each.

    attention_mask_in_length (batch, seqlen): the lengths of a row's sequences, then zeros; [2, 3, 0, 0, 0, 0] is a
    sequence of 2 tokens, one of 3, and a token of padding. Returns the first four values of `unpad_input`.
    """
    per_row = attention_mask_in_length.sum(dim=-1, keepdim=True)
    position = torch.arange(attention_mask_in_length.shape[-1], device=attention_mask_in_length.device)
    indices = (position < per_row).flatten().nonzero().flatten()
    lengths = attention_mask_in_length[attention_mask_in_length != 0]
    return _rows_of(hidden_states, indices, lengths)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """(batch, seqlen, ...) with hidden_states[i] at flattened position indices[i], zeros elsewhere."""
    padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.view(batch, seqlen, *hidden_states.shape[1:])


def _rows_of(hidden_states: Tensor, indices: Tensor, lengths: Tensor):
    cu_seqlens = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = int(lengths.max()) if lengths.numel() else 0
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest


def _scatter_rows(values: Tensor, indices: Tensor, rows: int) -> Tensor:
    output = values.new_zeros(rows, *values.shape[1:])
    output[indices] = values
    return output
