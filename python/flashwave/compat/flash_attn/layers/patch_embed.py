"""flash_attn.layers.patch_embed: an image cut into patches, each projected."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

__all__ = ["PatchEmbed"]


def _pair(value) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


class PatchEmbed(nn.Module):
    def __init__(
        self,
        img_size=224,
        patch_size=16,
        in_chans=3,
        embed_dim=768,
        norm_layer=None,
        flatten=True,
        bias=True,
        fused_bias_fc=False,
    ):
        """fused_bias_fc changes nothing in what is computed."""
        super().__init__()
        self.img_size, self.patch_size = _pair(img_size), _pair(patch_size)
        self.grid_size = tuple(size // patch for size, patch in zip(self.img_size, self.patch_size))
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.flatten = flatten
        self.proj = nn.Linear(in_chans * self.patch_size[0] * self.patch_size[1], embed_dim, bias=bias)
        self.norm = norm_layer(embed_dim) if norm_layer else nn.Identity()

    def forward(self, x):
        """x (batch, channels, height, width); the result is (batch, patches, embed_dim), or with its grid."""
        if x.shape[-2:] != self.img_size:
            raise ValueError(f"x: its image is {tuple(x.shape[-2:])}, img_size is {self.img_size}")
        patches = F.unfold(x, self.patch_size, stride=self.patch_size).transpose(1, 2)  # (c, h, w) of each, in a row
        out = self.proj(patches)
        return self.norm(out if self.flatten else out.unflatten(1, self.grid_size))
