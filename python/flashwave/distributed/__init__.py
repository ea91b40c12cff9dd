"""Attention over sequences that are cut into shards, one for each process of a torch.distributed group.

Three ways to do it, all with every keyword of `flash_attn_func` and exact to the last positions of masks, ALiBi, sinks
and dropout (docs/distributed.md says which is for what):

- `ring_attention`: keys and values go round the group, a step at a time, while the shard that is there is attended to;
- `allgather_attention`: every process gets all keys and values, a few heads at a time;
- `ulysses_attention`: processes exchange tokens for heads, and back.
"""

from .gather import allgather_attention, allgather_attention_varlen
from .layout import LAYOUTS, shard, unshard
from .ring import ring_attention, ring_attention_varlen
from .ulysses import ulysses_attention, ulysses_attention_varlen

__all__ = [
    "LAYOUTS",
    "allgather_attention",
    "allgather_attention_varlen",
    "ring_attention",
    "ring_attention_varlen",
    "shard",
    "ulysses_attention",
    "ulysses_attention_varlen",
    "unshard",
]
