"""
Kernels of scaled dot-product attention, chosen by a rule instead of for each shape.

    CUDA          flash ─▶ efficient ─▶ math      the first that takes the arguments
    elsewhere     torch's only one

Left alone, torch prefers cuDNN on newer GPUs, which makes a plan for each new shape and stride and keeps all of them.
Decoding and packed rows make new shapes all the time.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

ORDER = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels that work for every shape without preparation, the fastest first."""


def ready_kernels(device: torch.device) -> AbstractContextManager[None]:
    """Attention of this block takes kernels that need no preparation. Sets switches of the process, until the end."""
    return sdpa_kernel(ORDER, set_priority=True) if device.type == "cuda" else nullcontext()
