"""
Whether a collective library works here: two processes form a group with it, and bytes are seen to arrive.

    trial ── Part ─▶ rank 0, a process ── broadcast ─┐
       │  ── Part ─▶ rank 1, a process ◀─────────────┘
       └─ same checksum from both? ◀── Outcome ── both

Processes of their own because a library that fails may take its process along, and because two ranks of NCCL or HCCL
need two. A library that ends a broadcast without having moved anything fails here.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

START_S = 60.0
"""What a process may take beyond its deadline: to import torch takes twenty seconds on a busy machine."""

COMMAND = (sys.executable, "-m", "asyncrl.weights.groups.trial_rank")


class TrialPart(Struct, frozen=True, kw_only=True):
    """What one rank is to do."""

    backend: str
    device: str
    rank: int
    store: str
    """A file that both ranks can write, for their addresses."""
    num_bytes: int
    deadline_s: float
    """For everything, the group included."""


class TrialResult(Struct, frozen=True, kw_only=True):
    """What came of it."""

    checksum: str = ""
    """sha256 of the bytes that rank 0 has sent and the other one received."""
    seconds: float = 0.0
    """Of one broadcast on the connected group."""
    failure: str = ""
    """Why there is no checksum; otherwise empty."""


class Trial(Struct, frozen=True, kw_only=True):
    """How both went together."""

    backend: str
    devices: tuple[str, str]
    num_bytes: int
    seconds: float = 0.0
    """Of one broadcast on the connected group."""
    bytes_per_s: float = 0.0
    """From the first device to the second."""
    failure: str = ""
    """Empty if every byte arrived."""


async def trial(backend: str, devices: tuple[str, str], num_bytes: int, deadline_s: float) -> Trial:
    """
    Broadcast from the first device to the second over this machine's loopback, and compare checksums.

    Args:
        backend: ``gloo``, ``nccl`` or ``hccl``.
        devices: ``cpu``, ``cuda:0``, ``npu:1``; a process for each.
        num_bytes: How much moves.
        deadline_s: For the group and the broadcast.
    """
    with TemporaryDirectory(prefix="asyncrl-trial-") as folder:
        parts = [
            TrialPart(
                backend=backend,
                device=device,
                rank=rank,
                store=f"{folder}/store",
                num_bytes=num_bytes,
                deadline_s=deadline_s,
            )
            for rank, device in enumerate(devices)
        ]
        outcomes = await _play(parts, deadline_s + START_S)
    seconds, failure = max(outcome.seconds for outcome in outcomes), verdict(outcomes)
    rate = 0.0 if failure else num_bytes / seconds
    return Trial(
        backend=backend, devices=devices, num_bytes=num_bytes, seconds=seconds, bytes_per_s=rate, failure=failure
    )


def verdict(outcomes: list[TrialResult]) -> str:
    """What is wrong with what the ranks report; empty if nothing is."""
    for outcome in outcomes:
        if outcome.failure:
            return outcome.failure
    if len({outcome.checksum for outcome in outcomes}) > 1:
        return "the broadcast ended without an error, but what arrived is not what was sent"
    return ""


async def _play(parts: list[TrialPart], timeout_s: float) -> list[TrialResult]:
    """What all report; only what the first one that failed reports: the others then wait for it in vain."""
    ranks = [asyncio.create_task(_rank(part)) for part in parts]
    outcomes = []
    try:
        async with asyncio.timeout(timeout_s):
            for ended in asyncio.as_completed(ranks):
                outcomes.append(await ended)
                if outcomes[-1].failure:
                    return outcomes[-1:]
    except TimeoutError:
        return [TrialResult(failure=f"a process was still busy after {timeout_s:g} s, and was killed")]
    finally:
        for rank in ranks:
            rank.cancel()
        await asyncio.gather(*ranks, return_exceptions=True)
    return outcomes


async def _rank(part: TrialPart) -> TrialResult:
    process = await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        answer, complaint = await process.communicate(msgspec.json.encode(part))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = next(reversed(complaint.decode(errors="replace").strip().splitlines()), "no message")
        return TrialResult(failure=f"the process of rank {part.rank} ended with {process.returncode}: {last}")
    return msgspec.json.decode(answer, type=TrialResult)
