"""One rank of a collective trial: reads a `TrialPart` on stdin, writes a `TrialResult` to stdout."""

import hashlib
import os
import random
import sys
import time
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed
from torch import Tensor

from asyncrl.errors import AsyncrlError
from asyncrl.weights.groups.deadline import Deadline
from asyncrl.weights.groups.device import torch_device
from asyncrl.weights.groups.group import Group, form
from asyncrl.weights.groups.trial import TrialPart, TrialResult

LOOPBACK = "127.0.0.1"
SIZE = 2


def play(part: TrialPart) -> TrialResult:
    """Do one rank's part."""
    deadline = Deadline(part.deadline_s)
    distributed: Any = torch.distributed  # its stubs do not know the store
    store = distributed.FileStore(part.store, SIZE)
    store.set_timeout(timedelta(seconds=part.deadline_s))
    try:
        device = torch_device(part.device)
        group = form(part.backend, store, part.rank, SIZE, interface=LOOPBACK, deadline=deadline, device=device)
        outcome = _exchange(group, part, device, deadline)
        group.close()
    except (AsyncrlError, RuntimeError) as error:  # torch raises the latter for whatever went wrong
        return TrialResult(failure=next(iter(str(error).splitlines()), type(error).__name__))
    return outcome


def _exchange(group: Group, part: TrialPart, device: torch.device, deadline: Deadline) -> TrialResult:
    """Twice, because the first broadcast opens connections."""
    payload = torch.frombuffer(bytearray(random.Random(0).randbytes(part.num_bytes)), dtype=torch.uint8)
    buffer = torch.zeros(part.num_bytes, dtype=torch.uint8, device=device)
    start_s = 0.0
    for _ in range(2):
        if part.rank == 0:
            buffer.copy_(payload)
        else:
            buffer.zero_()
        start_s = time.perf_counter()
        group.broadcast(buffer, 0, deadline)
    seconds = time.perf_counter() - start_s
    return TrialResult(checksum=_checksum(buffer), seconds=seconds)


def _checksum(buffer: Tensor) -> str:
    return hashlib.sha256(buffer.cpu().numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    # Libraries of collectives write what they please to stdout; only the answer may go there.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        asked = msgspec.json.decode(sys.stdin.buffer.read(), type=TrialPart)
        answers.write(msgspec.json.encode(play(asked)))
