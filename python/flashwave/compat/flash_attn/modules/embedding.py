"""flash_attn.modules.embedding in plain torch. The tensor-parallel embeddings are not provided."""

from __future__ import annotations

import torch
from torch import nn

from flashwave.compat._refused import refuse_names

__all__ = ["BertEmbeddings", "GPT2Embeddings"]

__getattr__ = refuse_names(
    "flash_attn.modules.embedding",
    "VocabParallelEmbedding ColumnParallelEmbedding ParallelGPT2Embeddings",
    "nn.Embedding under torch.distributed.tensor.parallel",
)


class GPT2Embeddings(nn.Module):
    """Words, and positions if there are any."""

    def __init__(
        self,
        embed_dim,
        vocab_size,
        max_position_embeddings,
        padding_idx=None,
        word_embed_proj_dim=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        width = embed_dim if word_embed_proj_dim is None else word_embed_proj_dim
        self.word_embeddings = nn.Embedding(vocab_size, width, padding_idx=padding_idx, **factory)
        self.project_in = None if width == embed_dim else nn.Linear(width, embed_dim, bias=False, **factory)
        self.max_position_embeddings = max_position_embeddings
        if max_position_embeddings > 0:
            self.position_embeddings = nn.Embedding(max_position_embeddings, embed_dim, **factory)

    def forward(self, input_ids, position_ids=None):
        """input_ids, position_ids: (batch, seqlen)."""
        x = self.word_embeddings(input_ids)
        if self.project_in is not None:
            x = self.project_in(x)
        if self.max_position_embeddings > 0:
            x = x + self.position_embeddings(_or_counted(position_ids, input_ids))
        return x


class BertEmbeddings(nn.Module):
    """Words, and positions and types of tokens if there are any."""

    def __init__(
        self,
        embed_dim,
        vocab_size,
        max_position_embeddings,
        type_vocab_size,
        padding_idx=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.word_embeddings = nn.Embedding(vocab_size, embed_dim, padding_idx=padding_idx, **factory)
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        if max_position_embeddings > 0:
            self.position_embeddings = nn.Embedding(max_position_embeddings, embed_dim, **factory)
        if type_vocab_size > 0:
            self.token_type_embeddings = nn.Embedding(type_vocab_size, embed_dim, **factory)

    def forward(self, input_ids, position_ids=None, token_type_ids=None):
        """All (batch, seqlen); tokens are of type 0 unless said otherwise."""
        x = self.word_embeddings(input_ids)
        if self.max_position_embeddings > 0:
            x = x + self.position_embeddings(_or_counted(position_ids, input_ids))
        if self.type_vocab_size > 0:
            types = torch.zeros_like(input_ids[0]) if token_type_ids is None else token_type_ids
            x = x + self.token_type_embeddings(types)
        return x


def _or_counted(position_ids, input_ids):
    return torch.arange(input_ids.shape[1], device=input_ids.device) if position_ids is None else position_ids
