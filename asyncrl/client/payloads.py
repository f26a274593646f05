"""Client of the run's spools: fetches trajectories by reference, checks and decodes them."""

import asyncio
import zlib
from collections.abc import Sequence

import msgspec

from asyncrl.client.spools import SpoolLinks
from asyncrl.errors import DecodeError, NotATrajectory
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Trajectory
from asyncrl.messages.words import AtFault

_decoder = msgspec.msgpack.Decoder(Trajectory)


class PayloadClient:
    """
    Fetches payloads from all spools, for any number of concurrent callers.

    Args:
        spools: Owned by the caller. Payloads arrive only while its `run` is running.
    """

    def __init__(self, spools: SpoolLinks) -> None:
        self._spools = spools

    async def fetch(self, ref: SpoolRef, deadline_s: float) -> Trajectory:
        """
        Fetch one trajectory.

        Raises:
            SpoolAway: Its spool is away, at once; the payload can be read when it is back.
            DecodeError: The spool no longer has it, or the payload is damaged.
            TimeoutError: It has not arrived within ``deadline_s``.
        """
        async with asyncio.timeout(deadline_s):
            payload = await self._spools.request(ref, waits=False)
        return read_trajectory(ref, payload)

    async def fetch_all(self, refs: Sequence[SpoolRef], deadline_s: float) -> list[Trajectory | None]:
        """
        Fetch trajectories, in the order of ``refs``; None for those whose spool was given up.

        Raises:
            DecodeError: One of them cannot be read.
            TimeoutError: Not all arrived within ``deadline_s``.
        """
        payloads = await self.fetch_payloads(refs, deadline_s)
        return [
            None if payload is None else read_trajectory(ref, payload)
            for ref, payload in zip(refs, payloads, strict=True)
        ]

    async def fetch_payloads(self, refs: Sequence[SpoolRef], deadline_s: float) -> list[memoryview | None]:
        """
        Fetch payloads as they are, in the order of ``refs``; None for those whose spool was given up.

        Raises `TimeoutError` if they do not arrive within ``deadline_s``, which includes the wait for spools that are
        away.
        """
        async with asyncio.timeout(deadline_s):
            # Futures and not tasks: with hundreds at a time, a task each costs more than reading the payloads.
            payloads = [self._spools.request(ref, waits=True) for ref in refs]
            return [await payload for payload in payloads]


def read_trajectory(ref: SpoolRef, payload: memoryview | None) -> Trajectory:
    """
    Decode a payload. The arrays of the trajectory stay views into it.

    Raises:
        NotATrajectory: It is what its sender stored, but no trajectory.
        DecodeError: The payload is empty (the spool no longer has it), damaged, or None (the spool was given up).
    """
    place = f"the payload at {ref.spool}, segment {ref.segment}, offset {ref.offset}"
    if payload is None:
        raise DecodeError(f"{place} is lost: its spool was away for too long")
    if not payload:
        raise DecodeError(f"the spool no longer has {place}")
    if (found := zlib.crc32(payload)) != ref.crc32:
        raise DecodeError(f"{place} is damaged: expected checksum {ref.crc32:#010x}, got {found:#010x}")
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotATrajectory(f"{place} is not a trajectory: {error}") from error


def at_fault(error: DecodeError) -> AtFault:
    """Role that an error of `read_trajectory` is held against: whoever stored the payload, or did not keep it."""
    return "rollout" if isinstance(error, NotATrajectory) else "spool"
