"""
Weight transfers without tensors: all members meet, and each finishes some time after the last one arrived.

    Publisher.transfer ─┐
    Receiver.transfer ──┼─ all present? ─▶ each finishes after a random delay, or fails if a fault says so
    Receiver.transfer ──┘  not by the deadline, or aborted ─▶ `TransferError` for every waiting member

The weights are the list of steps they were trained on.
"""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

from asyncrl.errors import TransferError
from asyncrl.messages.session import StoreValue
from asyncrl.messages.weights import Abort, Member, Transfer, Transferred, Uploaded
from tests.simulation.checkpoints import Trained

Meeting = tuple[tuple[Member, ...], int, int]


class Transfers:
    """Stand-in for the collective library."""

    def __init__(self, dice: Random, transfer_s: float) -> None:
        self.dice = dice
        self._transfer_s = transfer_s
        self.break_next = 0
        """Number of members' transfers still to fail."""
        self.stored: dict[int, Trained] = {}
        """Versions at the spool, which outlive every process."""
        self._present: dict[Meeting, set[str]] = {}
        self._complete: dict[Meeting, asyncio.Event] = {}
        self._weights: dict[Meeting, Trained] = {}

    async def take_part(
        self, transfer: Transfer, member: Member, aborts: "Aborts", weights: Trained | None = None
    ) -> Trained:
        """
        Send ``weights`` as the trainer, or receive them.

        Raises:
            TransferError: Not all members arrived in time, it was aborted, or this member's connection broke.
        """
        meeting = (tuple(transfer.members), transfer.transfer_group, transfer.policy_version)
        if weights is not None:
            self._weights[meeting] = weights
        present = self._present.setdefault(meeting, set())
        complete = self._complete.setdefault(meeting, asyncio.Event())
        aborted = aborts.of(transfer.transfer_group)
        if not aborted.is_set():
            present.add(member.incarnation)
        if len(present) == len(transfer.members):
            complete.set()
        waits = [asyncio.create_task(event.wait()) for event in (complete, aborted)]
        await asyncio.wait(waits, timeout=transfer.deadline_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not complete.is_set() or aborted.is_set():
            raise TransferError("it was aborted" if aborted.is_set() else "the deadline has passed")
        await asyncio.sleep(self.dice.expovariate(1 / self._transfer_s))
        if self.breaks():
            raise TransferError("the connection was closed by the peer")
        return self._weights[meeting]

    def breaks(self) -> bool:
        """True if a fault lets this part of a transfer fail."""
        self.break_next -= (is_broken := self.break_next > 0)
        return is_broken


class Aborts:
    """Aborted transfer groups of one member."""

    def __init__(self) -> None:
        self._events: dict[int, asyncio.Event] = {}

    def of(self, transfer_group: int) -> asyncio.Event:
        return self._events.setdefault(transfer_group, asyncio.Event())


class Publisher:
    """Stand-in for `weights.publish.Publisher`."""

    num_buckets = 0

    def __init__(self, transfers: Transfers, member: Member) -> None:
        self._transfers = transfers
        self._member = member
        self._staged: dict[int, Trained] = {}
        self._aborts = Aborts()

    def stage(self, policy_version: int, weights: Trained) -> None:
        self._staged[policy_version] = weights
        self._staged.pop(policy_version - 2, None)

    def staged(self, policy_version: int) -> Trained | None:
        return self._staged.get(policy_version)

    async def transfer(self, transfer: Transfer) -> Transferred:
        version = transfer.policy_version
        if version not in self._staged:
            raise TransferError(f"version {version} is not staged, but {max(self._staged)}")
        await self._transfers.take_part(transfer, self._member, self._aborts, self._staged[version])
        return Transferred(transfer.transfer_group, version, 0.01, 1)

    def deliver(self, value: StoreValue) -> None:
        """Ignored: there is no rendezvous."""

    def abort(self, abort: Abort) -> None:
        self._aborts.of(abort.transfer_group).set()


class Receiver:
    """Stand-in for `WeightReceiver`."""

    def __init__(self, transfers: Transfers, member: Member) -> None:
        self._transfers = transfers
        self._member = member
        self._staged: Trained | None = None
        self._aborts = Aborts()

    async def transfer(self, transfer: Transfer) -> float:
        self._staged = None
        self._staged = await self._transfers.take_part(transfer, self._member, self._aborts)
        return 0.01

    def weights(self) -> Mapping[str, Any]:
        if self._staged is None:
            raise TransferError("no complete policy version is staged")
        return {"trained": self._staged}

    def deliver(self, value: StoreValue) -> None:
        """Ignored: there is no rendezvous."""

    def abort(self, abort: Abort) -> None:
        self._aborts.of(abort.transfer_group).set()


class Uploader:
    """Stand-in for `weights.stored.upload.Uploader`."""

    def __init__(self, transfers: Transfers, publisher: Publisher) -> None:
        self._transfers = transfers
        self._publisher = publisher

    async def upload(self, policy_version: int) -> Uploaded:
        staged = self._publisher.staged(policy_version)
        await asyncio.sleep(self._transfers.dice.expovariate(1 / 0.05))
        problem = "the spool did not answer" if self._transfers.breaks() else ""
        if staged is None:
            problem = f"policy_version {policy_version} is not staged any more"
        elif not problem:
            self._transfers.stored[policy_version] = staged
        return Uploaded(policy_version, 0.05, 1, problem)

    async def upload_anchor(self) -> None:
        """Nothing: every stored version is complete."""


class Downloader:
    """Stand-in for `weights.stored.download.Downloader`; slower than a transfer, so that its rollout lags."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._staged: Trained | None = None

    async def transfer(self, transfer: Transfer) -> float:
        self._staged = None
        assert not transfer.members
        await asyncio.sleep(self._transfers.dice.expovariate(1 / 0.4))
        if self._transfers.breaks():
            raise TransferError("part 3 of 7 is damaged")
        self._staged = self._transfers.stored[transfer.policy_version]
        return 0.4

    def weights(self) -> Mapping[str, Any]:
        assert self._staged is not None
        return {"trained": self._staged}

    def deliver(self, value: StoreValue) -> None:
        raise AssertionError("a rollout outside the collective has no rendezvous")

    def abort(self, abort: Abort) -> None:
        raise AssertionError("a rollout outside the collective is in no transfer that others abort")
