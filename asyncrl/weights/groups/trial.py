"""
Test of a collective library on this machine: two processes form a group, broadcast bytes and compare checksums.

    trial ── TrialPart ─▶ rank 0, a process ── broadcast ─┐
       │  ── TrialPart ─▶ rank 1, a process ◀─────────────┘
       └─ equal checksums? ◀── TrialResult ── both

The ranks are processes because a failing library may end its process, and because NCCL and HCCL need a process per
rank. The test also detects a library that reports a broadcast as done without sending a byte.
"""

import asyncio
from asyncio.subprocess import PIPE
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from asyncrl.workers.child import module_command

START_S = 60.0
"""Time for a process to start, in addition to its deadline: importing torch takes 20 s on a busy machine."""

COMMAND = tuple(module_command("asyncrl.weights.groups.trial_rank"))


class TrialPart(Struct, frozen=True):
    """Task of one rank."""

    backend: str
    device: str
    rank: int
    store: str
    """File that both ranks can write, for the rendezvous."""
    num_bytes: int
    deadline_s: float
    """Limit for forming the group and the broadcasts."""


class TrialResult(Struct, frozen=True, kw_only=True):
    """Result of one rank, or of the whole trial."""

    checksum: str = ""
    """sha256 of the bytes that rank 0 sent or rank 1 received."""
    seconds: float = 0.0
    """Duration of one broadcast, after connecting."""
    failure: str = ""
    """Error message; empty if the broadcast succeeded."""


async def trial(backend: str, devices: tuple[str, str], num_bytes: int, deadline_s: float) -> TrialResult:
    """Broadcast from the first device (such as ``cuda:0``) to the second over the loopback, and compare checksums."""
    with TemporaryDirectory(prefix="asyncrl-trial-") as folder:
        store = f"{folder}/store"
        parts = [TrialPart(backend, device, rank, store, num_bytes, deadline_s) for rank, device in enumerate(devices)]
        results = await _run_ranks(parts, deadline_s + START_S)
    return combine(results)


def combine(results: list[TrialResult]) -> TrialResult:
    """The slowest rank's result if the ranks' checksums agree, otherwise a failure."""
    for result in results:
        if result.failure:
            return result
    if len({result.checksum for result in results}) > 1:
        failure = "the broadcast reported no error, but the received bytes differ from the sent bytes"
        return TrialResult(failure=failure)
    return max(results, key=lambda result: result.seconds)


async def _run_ranks(parts: list[TrialPart], timeout_s: float) -> list[TrialResult]:
    """The results of all ranks, or of the first failed rank alone: the others only wait for it."""
    ranks = [asyncio.create_task(_run_rank(part)) for part in parts]
    results = []
    try:
        async with asyncio.timeout(timeout_s):
            for ended in asyncio.as_completed(ranks):
                results.append(await ended)
                if results[-1].failure:
                    return results[-1:]
    except TimeoutError:
        return [TrialResult(failure=f"a process was still running after {timeout_s:g} s and was killed")]
    finally:
        for rank in ranks:
            rank.cancel()
        await asyncio.gather(*ranks, return_exceptions=True)
    return results


async def _run_rank(part: TrialPart) -> TrialResult:
    process = await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        answer, errors = await process.communicate(msgspec.json.encode(part))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = next(reversed(errors.decode(errors="replace").strip().splitlines()), "no message")
        return TrialResult(failure=f"the process of rank {part.rank} exited with code {process.returncode}: {last}")
    return msgspec.json.decode(answer, type=TrialResult)
