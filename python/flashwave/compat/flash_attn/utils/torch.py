"""flash_attn.utils.torch: the decorators of autograd functions under autocast."""

from __future__ import annotations

from functools import partial

import torch

__all__ = ["custom_bwd", "custom_fwd"]

custom_fwd = partial(torch.amp.custom_fwd, device_type="cuda")
custom_bwd = partial(torch.amp.custom_bwd, device_type="cuda")
