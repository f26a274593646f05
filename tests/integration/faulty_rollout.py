"""
A rollout with a fault: ``faulty_rollout.py FAULT [asyncrl-node's options]``.

    freezes         stops itself by SIGSTOP in the middle of its second transfer with several receivers
    other-shapes    its parameters have other shapes
    other-names     its parameters have other names
    other-buckets   its buckets have another size
    damages         receives every version, and reports that it is damaged
    computes        computes one decode step for `COMPUTES_S`, as a large model on a slow machine does
    hangs           never ends a decode step, and beats

Other processes of the run start and treat it like `asyncrl-node`.
"""

import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import torch

from asyncrl.cli.node import main
from asyncrl.errors import TransferError
from asyncrl.rollout.engines.transformers.slots import SlotTable
from asyncrl.runtime import rollout
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.group_keeper import GroupKeeper
from asyncrl.weights.publish import Receiver

COMPUTES_S = float(os.environ.get("COMPUTES_S", "8"))
STEPS_BEFORE = 20
"""Decode steps before the one that takes long."""
FROZEN_TRANSFER, FROZEN_BROADCAST = 2, 8
"""More buckets follow than the kernel's socket buffers hold, so the trainer must wait."""
RECEIVE_BYTES = 1 << 20
"""Size of a receive buffer; the kernel's own choice grows with the traffic, up to more than a version."""


def freeze() -> None:
    """Freeze in a transfer of the kept group; transfers between a pair do not count."""
    run = GroupKeeper.run
    num_transfers = 0

    async def run_frozen(self: GroupKeeper, transfer: Any, rank: int, exchange: Any) -> float:
        nonlocal num_transfers
        num_transfers += transfer.keep
        freezes = (transfer.keep, num_transfers) == (True, FROZEN_TRANSFER)

        def bounded(group: Any, deadline: Any) -> Any:
            bound_receive_buffers()
            return exchange(Freezing(group) if freezes else group, deadline)

        return await run(self, transfer, rank, bounded)

    GroupKeeper.run = run_frozen  # type: ignore[method-assign]


def bound_receive_buffers() -> None:
    """Bound those of all TCP connections of this process, which a library has made."""
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        try:
            is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
        except OSError:
            continue  # It was the folder's own descriptor.
        if not is_socket:
            continue
        with socket.socket(fileno=os.dup(number)) as connection:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)


class Freezing:
    """A group that stops its process during a broadcast."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._num_broadcasts = 0

    def broadcast(self, *arguments: Any) -> None:
        self._num_broadcasts += 1
        if self._num_broadcasts == FROZEN_BROADCAST:
            os.kill(os.getpid(), signal.SIGSTOP)
        self._group.broadcast(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


def renamed(specs: list[Any], bucket_bytes: int) -> Layout:
    return Layout([msgspec.structs.replace(spec, name=f"model.{spec.name}") for spec in specs], bucket_bytes)


def reshaped(specs: list[Any], bucket_bytes: int) -> Layout:
    return Layout([msgspec.structs.replace(spec, shape=(*spec.shape, 1)) for spec in specs], bucket_bytes)


def cut_elsewhere(specs: list[Any], bucket_bytes: int) -> Layout:
    return Layout(specs, 2 * bucket_bytes)


async def damaged(self: Receiver, transfer: Any) -> float:
    await RECEIVE(self, transfer)
    raise TransferError("a bit has flipped on its way")


RECEIVE = Receiver.transfer
STEP = SlotTable.step


def compute() -> None:
    """Keep a core busy with a kernel, as a model does."""
    matrix, end_s = torch.ones(256, 256), time.monotonic() + COMPUTES_S
    while time.monotonic() < end_s:
        torch.mm(matrix, matrix)


def at_step(number: int, block: Callable[[], object]) -> Callable[[SlotTable], Any]:
    """A decode step that calls ``block`` before the step ``number``."""
    steps = count()

    def step(self: SlotTable) -> Any:
        if next(steps) == number:
            block()
        return STEP(self)

    return step


if __name__ == "__main__":
    match sys.argv.pop(1):
        case "freezes":
            freeze()
        case "other-shapes":
            rollout.Layout = reshaped  # type: ignore[assignment, attr-defined]
        case "other-names":
            rollout.Layout = renamed  # type: ignore[assignment, attr-defined]
        case "other-buckets":
            rollout.Layout = cut_elsewhere  # type: ignore[assignment, attr-defined]
        case "damages":
            Receiver.transfer = damaged  # type: ignore[method-assign]
        case "computes":
            SlotTable.step = at_step(STEPS_BEFORE, compute)  # type: ignore[method-assign, assignment]
        case "hangs":
            SlotTable.step = at_step(STEPS_BEFORE, threading.Event().wait)  # type: ignore[method-assign, assignment]
        case fault:
            sys.exit(f"{Path(__file__).name}: {fault!r} is not one of the faults")
    main()
