"""flash_attn.utils.generation: the state of a cache, which `modules.mha.MHA` takes, and sampling from logits.

Generation itself (`decode`, `GenerationMixin`, CUDA graphs of it) is transformers' `model.generate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from flashwave.compat._refused import refuse_names

__all__ = [
    "InferenceParams",
    "modify_logits_for_min_p_filtering",
    "modify_logits_for_top_k_filtering",
    "modify_logits_for_top_p_filtering",
    "sample",
]

__getattr__ = refuse_names(
    "flash_attn.utils.generation",
    "decode decode_speculative GenerationMixin update_graph_cache capture_graph allocate_inference_cache",
    "model.generate() of transformers, with attn_implementation='flash_attention_2' or 'flashwave'",
)


@dataclass
class InferenceParams:
    """Where the next tokens of a batch go in a cache of max_seqlen positions."""

    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    batch_size_offset: int = 0
    key_value_memory_dict: dict = field(default_factory=dict)
    lengths_per_sample: Tensor | None = None

    def reset(self, max_seqlen: int, max_batch_size: int) -> None:
        self.max_seqlen, self.max_batch_size, self.seqlen_offset = max_seqlen, max_batch_size, 0
        if self.lengths_per_sample is not None:
            self.lengths_per_sample.zero_()


def modify_logits_for_top_k_filtering(logits: Tensor, top_k: int) -> None:
    """All but the top_k largest become -inf, in place."""
    smallest = torch.topk(logits, top_k).values[..., -1:]
    logits.masked_fill_(logits < smallest, -torch.inf)


def modify_logits_for_min_p_filtering(logits: Tensor, min_p: float) -> None:
    """Tokens less probable than min_p become -inf, in place."""
    if 0.0 < min_p < 1.0:
        logits.masked_fill_(logits.softmax(dim=-1) < min_p, -torch.inf)


def modify_logits_for_top_p_filtering(logits: Tensor, top_p: float) -> None:
    """The least probable tokens become -inf, in place, as many as have 1 - top_p of the probability together."""
    if not 0.0 < top_p < 1.0:
        return
    ordered, places = torch.sort(logits, descending=False)
    removed = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1.0 - top_p
    logits.masked_fill_(removed.scatter(-1, places, removed), -torch.inf)


def sample(logits: Tensor, top_k: int = 1, top_p: float = 0.0, min_p: float = 0.0, temperature: float = 1.0) -> Tensor:
    """One token for each row of (batch, vocabulary); top_k=1 takes the largest."""
    if top_k == 1:
        return logits.argmax(dim=-1)
    if top_p > 1.0:
        raise ValueError(f"top_p: {top_p} is more than 1")
    logits = logits.clone()
    if top_k > 0:
        modify_logits_for_top_k_filtering(logits, min(top_k, logits.shape[-1]))
    logits /= temperature
    modify_logits_for_min_p_filtering(logits, min_p)
    modify_logits_for_top_p_filtering(logits, top_p)
    return torch.multinomial(logits.softmax(dim=-1), num_samples=1).squeeze(-1)
