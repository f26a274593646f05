"""One rank of a collective trial, as a process: reads a `TrialPart` on stdin, writes a `TrialResult` to stdout."""

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

from asyncrl.errors import AsyncrlError
from asyncrl.weights.groups.device import torch_device
from asyncrl.weights.groups.group import ProcessGroup, form
from asyncrl.weights.groups.network_interface import Deadline
from asyncrl.weights.groups.trial import TrialPart, TrialResult

LOOPBACK = "127.0.0.1"
SIZE = 2


def run_part(part: TrialPart) -> TrialResult:
    deadline = Deadline(part.deadline_s)
    distributed: Any = torch.distributed  # the stubs lack FileStore
    store = distributed.FileStore(part.store, SIZE)
    store.set_timeout(timedelta(seconds=part.deadline_s))
    try:
        device = torch_device(part.device)
        group = form(part.backend, store, part.rank, SIZE, interface=LOOPBACK, deadline=deadline, device=device)
        result = _exchange(group, part, device, deadline)
        group.close()
    except (AsyncrlError, RuntimeError) as error:  # torch raises RuntimeError for every failure
        return TrialResult(failure=next(iter(str(error).splitlines()), type(error).__name__))
    return result


def _exchange(group: ProcessGroup, part: TrialPart, device: torch.device, deadline: Deadline) -> TrialResult:
    """Broadcast twice and time the second: the first opens connections."""
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
    checksum = hashlib.sha256(buffer.cpu().numpy().tobytes()).hexdigest()
    return TrialResult(checksum=checksum, seconds=seconds)


if __name__ == "__main__":
    # Collective libraries write to stdout, where only the result may go: redirect their output to stderr.
    with os.fdopen(os.dup(1), "wb") as stdout:
        os.dup2(2, 1)
        part = msgspec.json.decode(sys.stdin.buffer.read(), type=TrialPart)
        stdout.write(msgspec.json.encode(run_part(part)))
