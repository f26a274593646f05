"""
AdamW's moments on the host: while a bucket of parameters is updated, its moments are on the device.

    host      m v │ m v │ m v        page-locked, 8 bytes for each element
               ▼ ▲
    device     m v                   one bucket at a time
"""

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from asyncrl.trainer.model.host_memory import host_empty

BUCKET = 1 << 28
"""Bytes of the moments that are on the device at a time; a larger parameter has a bucket of its own."""
NAMES = ("exp_avg", "exp_avg_sq")
ITEM = 8
"""Bytes of the two moments of an element."""


def moment_buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters in their order, cut where the moments of this rank's rows would exceed `BUCKET`."""
    found: list[list[nn.Parameter]] = [[]]
    num_bytes = 0
    for parameter in parameters:
        own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        num_bytes += ITEM * own.numel()
        if found[-1] and num_bytes > BUCKET:
            found.append([])
            num_bytes = ITEM * own.numel()
        found[-1].append(parameter)
    return found


@contextmanager
def moments_on_device(state: MutableMapping[Tensor, Any]) -> Iterator[None]:
    """The moments in an AdamW's state are beside their parameters inside the block, and on the host after it."""
    waiting = {weight: {name: moments[name] for name in NAMES} for weight, moments in state.items()}
    for weight, moments in waiting.items():
        state[weight] |= {name: moment.to(weight.device, non_blocking=True) for name, moment in moments.items()}
    yield
    for weight, moments in state.items():
        host = waiting.get(weight) or {name: host_empty(moments[name]) for name in NAMES}
        for name in NAMES:
            host[name].copy_(moments[name], non_blocking=True)
        moments.update(host)
    for device in {weight.device for weight in state} - {torch.device("cpu")}:
        torch.get_device_module(device).current_stream().synchronize()  # a checkpoint may read them now
