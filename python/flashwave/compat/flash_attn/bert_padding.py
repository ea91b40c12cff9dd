"""flash_attn.bert_padding: flashwave.padding under its upstream name."""

from __future__ import annotations

from flashwave import padding
from flashwave.compat._finder import states_at_least
from flashwave.padding import (
    IndexFirstAxis,
    IndexFirstAxisResidual,
    IndexPutFirstAxis,
    index_first_axis,
    index_first_axis_residual,
    index_put_first_axis,
    pad_input,
    unpad_input_for_concatenated_sequences,
)

__all__ = [
    "IndexFirstAxis",
    "IndexFirstAxisResidual",
    "IndexPutFirstAxis",
    "index_first_axis",
    "index_first_axis_residual",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """`flashwave.padding.unpad_input`; without its fifth value if `install` was asked to be a flash-attn before 2.7."""
    results = padding.unpad_input(hidden_states, attention_mask, unused_mask)
    return results if states_at_least("2.7") else results[:4]
