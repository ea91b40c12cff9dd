"""flash_attn.utils.distributed: collectives of torch.distributed, with gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = [
    "AllGatherFunc",
    "AllReduceFunc",
    "ReduceScatterFunc",
    "all_gather",
    "all_gather_raw",
    "all_reduce",
    "all_reduce_raw",
    "allreduce_sequence_parallel_grad",
    "get_dim_for_local_rank",
    "reduce_scatter",
    "reduce_scatter_raw",
    "sync_shared_params",
]


def all_gather_raw(input_: Tensor, process_group, async_op: bool = False):
    """(rows of all ranks, one after the other; the handle). No gradient."""
    rows = input_.shape[0] * dist.get_world_size(process_group)
    output = input_.new_empty(rows, *input_.shape[1:])
    return output, dist.all_gather_into_tensor(output, input_.contiguous(), group=process_group, async_op=async_op)


def reduce_scatter_raw(input_: Tensor, process_group, async_op: bool = False):
    """(this rank's rows of the sum over ranks; the handle). No gradient."""
    ranks = dist.get_world_size(process_group)
    if input_.shape[0] % ranks != 0:
        raise ValueError(f"input_: {input_.shape[0]} rows cannot be dealt out to {ranks} ranks")
    output = input_.new_empty(input_.shape[0] // ranks, *input_.shape[1:])
    return output, dist.reduce_scatter_tensor(output, input_.contiguous(), group=process_group, async_op=async_op)


def all_reduce_raw(input_: Tensor, process_group, async_op: bool = False):
    """(the sum over ranks, in input_ if that is contiguous; the handle). No gradient."""
    output = input_.contiguous()
    return output, dist.all_reduce(output, group=process_group, async_op=async_op)


class AllGatherFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_: Tensor, process_group) -> Tensor:
        ctx.process_group = process_group
        return all_gather_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        return reduce_scatter_raw(grad_output, ctx.process_group)[0], None


class ReduceScatterFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_: Tensor, process_group) -> Tensor:
        ctx.process_group = process_group
        return reduce_scatter_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        return all_gather_raw(grad_output, ctx.process_group)[0], None


class AllReduceFunc(torch.autograd.Function):
    """The sum over ranks; every rank's gradient is that of the sum."""

    @staticmethod
    def forward(ctx, input_: Tensor, process_group) -> Tensor:
        return all_reduce_raw(input_.clone(), process_group)[0]

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        return grad_output, None


all_gather = AllGatherFunc.apply
reduce_scatter = ReduceScatterFunc.apply
all_reduce = AllReduceFunc.apply


def _marked(model: nn.Module, mark: str) -> list[Tensor]:
    """Parameters with that mark, in the same order on all ranks."""
    return [p for _, p in sorted(model.named_parameters()) if getattr(p, mark, False)]


def sync_shared_params(model: nn.Module, process_group) -> None:
    """Parameters marked _shared_params take the values of the group's first rank."""
    for parameter in _marked(model, "_shared_params"):
        with torch.no_grad():
            dist.broadcast(parameter, src=dist.get_global_rank(process_group, 0), group=process_group)


def allreduce_sequence_parallel_grad(model: nn.Module, process_group) -> None:
    """Gradients of parameters marked _sequence_parallel are summed over the group."""
    with torch.no_grad():
        for parameter in _marked(model, "_sequence_parallel"):
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=process_group)


def get_dim_for_local_rank(dim: int, world_size: int, local_rank: int, multiple_of: int = 1) -> int:
    """This rank's part of dim, in whole multiples of multiple_of; the first ranks take what is left over."""
    whole, left = divmod(dim // multiple_of, world_size)
    return (whole + (local_rank < left)) * multiple_of
