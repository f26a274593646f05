"""
Weight transfers without tensors: all members meet, and each finishes some time after the last one arrived.

    Publisher.transfer ─┐
    Receiver.transfer ──┼─ all present? ─▶ each finishes after a random delay, or fails if a fault says so
    Receiver.transfer ──┘  not by the deadline ─▶ `TransferError` for every waiting member

The weights are the list of steps they were trained on.
"""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

from asyncrl.errors import TransferError
from asyncrl.messages import Member, StoreValue, Transfer, Transferred
from tests.simulation.checkpoints import Trained

Meeting = tuple[tuple[Member, ...], int, int]


class Transfers:
    """Stand-in for the collective library."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.break_next = 0
        """Number of members' transfers still to fail."""
        self._present: dict[Meeting, set[str]] = {}
        self._complete: dict[Meeting, asyncio.Event] = {}
        self._weights: dict[Meeting, Trained] = {}

    async def take_part(self, transfer: Transfer, member: Member, weights: Trained | None = None) -> Trained:
        """
        Send ``weights`` as the trainer, or receive them.

        Raises:
            TransferError: Not all members arrived in time, or this member's connection broke.
        """
        meeting = (tuple(transfer.members), transfer.transfer_group, transfer.policy_version)
        if weights is not None:
            self._weights[meeting] = weights
        present = self._present.setdefault(meeting, set())
        complete = self._complete.setdefault(meeting, asyncio.Event())
        present.add(member.incarnation)
        if len(present) == len(transfer.members):
            complete.set()
        try:
            async with asyncio.timeout(transfer.deadline_s):
                await complete.wait()
        except TimeoutError:
            raise TransferError("the deadline has passed") from None
        await asyncio.sleep(self.dice.expovariate(1 / 0.01))
        if self.break_next:
            self.break_next -= 1
            raise TransferError("the connection was closed by the peer")
        return self._weights[meeting]


class Publisher:
    """Stand-in for `weights.publish.Publisher`."""

    def __init__(self, transfers: Transfers, member: Member) -> None:
        self._transfers = transfers
        self._member = member
        self._staged: dict[int, Trained] = {}

    def stage(self, policy_version: int, weights: Trained) -> None:
        self._staged[policy_version] = weights
        self._staged.pop(policy_version - 2, None)

    async def transfer(self, transfer: Transfer) -> Transferred:
        version = transfer.policy_version
        if version not in self._staged:
            raise TransferError(f"version {version} is not staged, but {max(self._staged)}")
        await self._transfers.take_part(transfer, self._member, self._staged[version])
        return Transferred(transfer.transfer_group, version, 0.01, 1)

    def deliver(self, value: StoreValue) -> None:
        """Ignored: there is no rendezvous."""


class Receiver:
    """Stand-in for `WeightReceiver`."""

    def __init__(self, transfers: Transfers, member: Member) -> None:
        self._transfers = transfers
        self._member = member
        self._staged: Trained | None = None

    async def transfer(self, transfer: Transfer) -> float:
        self._staged = None
        self._staged = await self._transfers.take_part(transfer, self._member)
        return 0.01

    def weights(self) -> Mapping[str, Any]:
        if self._staged is None:
            raise TransferError("no complete policy version is staged")
        return {"trained": self._staged}

    def deliver(self, value: StoreValue) -> None:
        """Ignored: there is no rendezvous."""
