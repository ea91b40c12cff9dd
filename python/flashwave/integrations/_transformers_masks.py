"""What transformers' masks mean to the kernels: tokens of padded batches, packed sequences, or a bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# ------------------------------------------------------------------------------------------ transformers' mask function


def attention_mask(**arguments: Any) -> Tensor | None:
    """transformers' mask function: None, a 2-D mask of tokens, 3-D numbers of packed sequences, or a 4-D bool mask.

    A mask that is causal, bidirectional or a sliding window is not stored: the attention is told of these by its own
    arguments. transformers describes a mask by a function; one that is not made of these known parts is evaluated to a
    4-D mask, whatever it is.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    parts = list(_parts(arguments["mask_function"]))
    kinds = [_kind(part) for part in parts]
    if "unknown" in kinds or ("causal" in kinds and _queries_are_not_last(arguments)):
        skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](**{**arguments, **skips})
    mask = ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"](**arguments)
    if mask is None and "packed" in kinds:
        numbers = _packed_numbers(parts[kinds.index("packed")])
        if bool((numbers != numbers[:, :1]).any()):
            return _own(numbers[:, None])
    return mask if mask is None else _own(mask)


_KINDS = {
    "causal_mask_function": "causal",
    "bidirectional_mask_function": "bidirectional",
    "sliding_window_overlay.<locals>.inner_mask": "window",
    "sliding_window_bidirectional_overlay.<locals>.inner_mask": "window",
    "packed_sequence_mask_function.<locals>.inner_mask": "packed",
}


def _kind(function: Callable) -> str:
    if getattr(function, "__module__", None) != "transformers.masking_utils":
        return "unknown"
    kind = _KINDS.get(function.__qualname__, "unknown")
    return "unknown" if kind == "packed" and _packed_numbers(function) is None else kind


def _parts(function: Callable):
    """The functions that an and of masks is made of."""
    cells = _closure(function) if getattr(function, "__qualname__", "") == "and_masks.<locals>.and_mask" else {}
    if isinstance(cells.get("mask_functions"), tuple):
        for part in cells["mask_functions"]:
            yield from _parts(part)
    else:
        yield function


def _packed_numbers(function: Callable) -> Tensor | None:
    numbers = _closure(function).get("packed_sequence_mask")
    return numbers if isinstance(numbers, Tensor) and numbers.dim() == 2 else None


def _closure(function: Callable) -> dict[str, Any]:
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())}


def _queries_are_not_last(arguments: dict) -> bool:
    """Whether the last query does not stand at the last key: a static cache has room behind it."""
    positions = arguments.get("cache_position")
    if positions is not None:
        end_of_queries = int(positions[-1]) + 1
    elif "q_length" in arguments:
        end_of_queries = int(arguments.get("q_offset", 0)) + int(arguments["q_length"])
    else:
        return True
    keys, mask = arguments["kv_length"], arguments.get("attention_mask")
    if mask is not None:
        keys = min(keys, mask.shape[-1])
    return end_of_queries != keys + int(arguments.get("kv_offset", 0))


# ------------------------------------------------------------------------------------------------- explicit (4-D) masks


def visible(mask: Tensor | None, queries: int, keys: int, causal: bool, window: tuple[int, int]) -> Tensor:
    """4-D bool mask of: mask's tokens (batch, keys), causal, and a window. The last query stands at the last key."""
    device = None if mask is None else mask.device
    position = torch.arange(keys - queries, keys, device=device)[:, None]
    distance = torch.arange(keys, device=device) - position
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if causal:
        seen &= distance <= 0
    if window[0] >= 0:
        seen &= distance >= -window[0]
    if window[1] >= 0:
        seen &= distance <= window[1]
    return seen[None, None] if mask is None else seen[None, None] & mask[:, None, None, -keys:].bool()


def as_bias(mask: Tensor, dtype: torch.dtype, position_bias: Tensor | None) -> Tensor:
    """The additive form of a bool mask (-inf where False) or of one that is additive already."""
    if mask.dtype == torch.bool:
        mask = torch.zeros((), dtype=dtype, device=mask.device).where(mask, float("-inf"))
    elif not mask.is_floating_point():
        raise ValueError(f"attention_mask: a 4-D mask must be bool or floating-point, got {mask.dtype}")
    return mask if position_bias is None else mask + position_bias


# ----------------------------------------------------------------------------------------------- padding and packing


class Padding(NamedTuple):
    """Where the tokens of a padded batch are."""

    indices: Tensor  # of the tokens in the flattened batch
    offsets: Tensor  # (batch + 1) int32: the tokens of each row
    longest: int
    starts: Tensor  # (batch) int32: the first token of each row
    contiguous: bool  # no padding between two tokens of a row
    last_tokens: int  # how many elements at the end of every row are tokens, for contiguous rows


def padding_layout(mask: Tensor) -> Padding:
    return _once(mask, "padding", _padding_layout)


def _padding_layout(mask: Tensor) -> Padding:
    tokens = mask != 0
    width = tokens.shape[1]
    lengths = tokens.sum(dim=1, dtype=torch.int32)
    starts = tokens.int().argmax(dim=1).int()
    ends = width - tokens.flip(1).int().argmax(dim=1).int()
    ends = torch.where(lengths == 0, starts, ends)
    last_tokens = torch.where(ends == width, width - starts, 0)
    return Padding(
        tokens.flatten().nonzero().flatten(),
        F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)),
        int(lengths.max()),
        starts,
        bool((ends - starts == lengths).all()),
        int(last_tokens.min()),
    )


def packed_offsets(numbers: Tensor) -> tuple[Tensor, int]:
    """(offsets, longest) of sequences by their numbers (batch, 1, seqlen); a sequence ends with its batch row."""
    return _once(numbers, "packed", lambda x: _offsets_of_starts(x[:, 0].diff(dim=1) != 0))


def packed_by_position(position_ids: Tensor | None, batch: int, queries: int, keys: int) -> tuple[Tensor, int] | None:
    """(offsets, longest) if the positions of a batch of one start anew somewhere. Positions go up by one otherwise."""
    if position_ids is None or batch != 1 or position_ids.dim() != 2 or queries != keys or queries == 1:
        return None
    if tuple(position_ids.shape) != (1, queries):
        return None
    offsets, longest = _offsets_of_starts(position_ids.diff(dim=1) != 1)
    return None if longest == queries else (offsets, longest)


def _offsets_of_starts(starts: Tensor) -> tuple[Tensor, int]:
    """starts (batch, seqlen - 1): whether element i + 1 starts a sequence. Element 0 always does."""
    every = F.pad(starts, (1, 0), value=True).flatten()
    places = F.pad(every.nonzero().flatten(), (0, 1), value=every.numel())
    return places.int(), int(places.diff().max())


# A caller's mask may be a buffer that is filled anew for each request, by means that no version counter sees (in
# inference mode there is none). What is computed from a mask is therefore kept only with a copy that belongs to one
# forward of the model, whose layers are all handed the same tensor.


def _own(mask: Tensor) -> Tensor:
    """A copy of the mask that can keep what is computed from it."""
    copy = mask.clone()
    if not copy.is_inference():
        copy._flashwave_kept = {}
    return copy


def _once(tensor: Tensor, name: str, compute: Callable) -> Any:
    """compute(tensor), once for all layers of a forward where the tensor is the forward's own."""
    kept = getattr(tensor, "_flashwave_kept", None)
    if kept is None:
        return compute(tensor)
    if name not in kept or kept[name][0] != tensor._version:
        kept[name] = (tensor._version, compute(tensor))
    return kept[name][1]
