"""
Process groups of weight transfers, and the thread that runs the transfers.

    Transfer ─▶ in the kept transfer group? ─ yes ───────────────────────────▶ exchange ─▶ keep
                                            ─ no, keep ───▶ close kept, form ─▶ exchange ─▶ keep
                                            ─ no, one-off ─▶ form ────────────▶ exchange ─▶ close
                                                                                └─ failed ─▶ close; never used again

``transfer_group`` numbers the process groups; the broker assigns the numbers.

`abort` ends a transfer before its deadline, in every phase:

    not begun       `run` raises
    rendezvous      the store raises
    connecting      the thread is left behind, and closes its group when the library returns
    broadcasting    the deadline is over, and the group is closed; gloo's connections are shut down, for the other ranks

Invariants: transfers run one after another, in order of arrival; no part of a transfer waits longer than its deadline;
a failed group is never used again; a one-off group, failed or not, does not affect the kept group; a thread that was
left behind touches neither staging memory nor the other groups.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import torch

from asyncrl.config.sections.weights import Weights
from asyncrl.errors import TransferError
from asyncrl.messages.session import StoreValue
from asyncrl.messages.weights import Abort, Member, Transfer
from asyncrl.weights.groups.device import backend_for, device_thread
from asyncrl.weights.groups.group import CPU, ProcessGroup, form
from asyncrl.weights.groups.network_interface import Deadline
from asyncrl.weights.groups.store import LinkStore, Send, shut_down
from asyncrl.wire.addresses import LOOPBACK

Exchange = Callable[[ProcessGroup, Deadline], None]
"""Sends or receives a version over the formed group. Blocks."""

GRACE_S = 1.0
"""Time that the caller waits after the deadline. The thread may wait longer: a broadcast to n ranks waits for up to
log2(n) peers in turn, each until the deadline."""
LEAVE_S = 0.5
"""Time for the thread to leave an aborted transfer. A thread that takes longer is inside the library."""
CLOSING = "this node is closing"
THREAD = "asyncrl-weights"


class _Running:
    """A transfer from the call of `GroupKeeper.run` to its end."""

    def __init__(self, transfer: Transfer, limit: asyncio.Timeout) -> None:
        self.transfer = transfer
        self.deadline = Deadline(transfer.deadline_s)
        self.limit = limit
        """Time at which the caller gives up."""
        self.is_forming = False
        """True while its group is being formed."""
        self.aborted = ""
        """Reason for which it was aborted."""


class GroupKeeper:
    """
    Runs transfers on a thread of its own, so that the event loop and the trainer's next step continue.

    Args:
        member: This node, as listed in transfers.
        interface: Address of this machine on which its groups listen.
        local_rank: Index of this process among the member's processes.

    Raises:
        ConfigError: The backend cannot send from the device, or is not installed.
    """

    def __init__(
        self,
        member: Member,
        send: Send,
        config: Weights,
        *,
        interface: str = LOOPBACK,
        local_rank: int = 0,
        device: torch.device = CPU,
    ) -> None:
        self._member = member
        self._local_rank = local_rank
        self._send = send
        self._backend = backend_for(config.backend, device.type)
        self._device = device
        self._interface = interface
        self._thread = device_thread(device, THREAD)
        self._groups: dict[int, ProcessGroup] = {}
        """The kept group and, during its transfer, a one-off group, by ``transfer_group``."""
        self._stores: dict[int, LinkStore] = {}
        """Store of each of these groups, and of groups that are being formed."""
        self._failed: dict[int, str] = {}
        """Reason by ``transfer_group``."""
        self._running: list[_Running] = []
        self._closed = False

    async def run(self, transfer: Transfer, rank: int, exchange: Exchange) -> float:
        """
        Run ``exchange`` in the transfer's group, formed if necessary; returns the duration in seconds.

        Raises:
            TransferError: The transfer failed, or exceeded its deadline; names the members and the reason.
        """
        loop = asyncio.get_running_loop()
        async with self._limited(transfer) as running:
            await loop.run_in_executor(self._thread, self._run, running, rank, exchange, loop)
        return running.deadline.elapsed_s()

    @asynccontextmanager
    async def _limited(self, transfer: Transfer) -> AsyncIterator[_Running]:
        """Raise `TransferError` if the block does not end by the transfer's deadline, or soon after an abort."""
        limit = asyncio.timeout(transfer.deadline_s + GRACE_S)
        running = _Running(transfer, limit)
        self._running.append(running)
        try:
            async with limit:
                yield running
        except TimeoutError:
            self._end(running, "the deadline has passed")
            self._leave(running)
            raise self._error(transfer, running.aborted) from None
        except asyncio.CancelledError:
            self._end(running, "the transfer was cancelled")
            self._leave(running)
            raise
        finally:
            self._running.remove(running)

    def rank(self, transfer: Transfer) -> int:
        """This process's rank in the transfer's group; raises `TransferError` if this node is not a member."""
        if self._member not in transfer.members:
            raise self._error(transfer, f"{self._member.node} ({self._member.incarnation}) is not a member")
        before = transfer.members[: transfer.members.index(self._member)]
        return sum(member.ranks for member in before) + self._local_rank

    def deliver(self, value: StoreValue) -> None:
        """Handle the broker's answer to a rendezvous; answers to an earlier one are ignored."""
        if store := self._stores.get(int(value.group)):
            store.deliver(value)

    def abort(self, abort: Abort) -> None:
        """
        Fail the transfer of a group for the given reason: `run` raises within `LEAVE_S`, or at once if not begun.

        An abort of a group that is not, or no longer, in use has no further effect.
        """
        self._failed.setdefault(abort.transfer_group, abort.reason)
        for running in self._running:
            if running.transfer.transfer_group == abort.transfer_group and not running.aborted:
                self._end(running, abort.reason)
                if not running.limit.expired():  # As it is in a process that was frozen beyond its deadline.
                    running.limit.reschedule(asyncio.get_running_loop().time() + LEAVE_S)

    async def aclose(self) -> None:
        """
        Abort a running transfer, wait until its thread has left it, and end the thread. Idempotent.

        A connection attempt cannot be aborted. It is not waited for, and ends by its deadline if the library has one
        (see `group`); the exit of the process does wait for it.
        """
        if self._closed:
            return
        self._closed = True
        limit_s = LEAVE_S if any(running.is_forming for running in self._running) else None
        for running in self._running:
            self._end(running, CLOSING)
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._close, list(self._groups))
        closed, _ = await asyncio.wait([closing], timeout=limit_s)
        self._thread.shutdown(wait=bool(closed))
        if closed:
            closing.result()

    # ── on the thread ───────────────────────────────────────────────────────────────────────

    def _run(self, running: _Running, rank: int, exchange: Exchange, loop: asyncio.AbstractEventLoop) -> None:
        transfer = running.transfer
        try:
            exchange(self._group(running, rank, loop), running.deadline)
        except BaseException as error:
            reason = running.aborted or _reason(error)
            self._failed.setdefault(transfer.transfer_group, reason)
            if isinstance(error, TransferError | RuntimeError):  # torch raises RuntimeError for every failure
                raise self._error(transfer, reason) from error
            raise
        finally:
            if not transfer.keep or transfer.transfer_group in self._failed:
                self._close([transfer.transfer_group])

    def _group(self, running: _Running, rank: int, loop: asyncio.AbstractEventLoop) -> ProcessGroup:
        transfer_group = running.transfer.transfer_group
        if reason := self._failed.get(transfer_group):
            raise TransferError(f"this transfer group failed before ({reason}); use a new one")
        if transfer_group not in self._groups:
            if running.transfer.keep:
                self._close(list(self._groups))
            group = self._form(running, rank, loop)
            if running.aborted:  # Another thread may have taken over.
                group.close()
                raise TransferError(running.aborted)
            self._groups[transfer_group] = group
        return self._groups[transfer_group]

    def _form(self, running: _Running, rank: int, loop: asyncio.AbstractEventLoop) -> ProcessGroup:
        transfer = running.transfer
        names = [member.node for member in transfer.members for _ in range(member.ranks)]
        store = LinkStore(str(transfer.transfer_group), names, self._send, loop, running.deadline)
        self._stores[transfer.transfer_group] = store
        running.is_forming = True
        try:
            if running.aborted or self._closed:  # Checked now, so that `_end` sees the store or is seen here.
                raise TransferError(running.aborted or CLOSING)
            return form(
                self._backend,
                store,
                rank,
                len(names),
                interface=self._interface,
                deadline=running.deadline,
                device=self._device,
            )
        finally:
            running.is_forming = False

    def _close(self, transfer_groups: list[int]) -> None:
        for transfer_group in transfer_groups:
            self._stores.pop(transfer_group, None)
            if group := self._groups.pop(transfer_group, None):
                group.close()

    # ── on the event loop ───────────────────────────────────────────────────────────────────

    def _end(self, running: _Running, reason: str) -> None:
        """Make every wait of the thread raise, except for one inside a library that connects."""
        running.aborted = running.aborted or reason
        self._failed.setdefault(running.transfer.transfer_group, running.aborted)
        running.deadline.expire()
        if store := self._stores.get(running.transfer.transfer_group):
            store.abandon(running.aborted)
            if self._backend == "gloo":
                shut_down(store.values())

    def _leave(self, running: _Running) -> None:
        """Leave a thread behind that is stuck while it connects; the next transfer gets another."""
        if running.is_forming and not self._closed:
            self._thread.shutdown(wait=False)
            self._thread = device_thread(self._device, THREAD)

    def _error(self, transfer: Transfer, reason: str) -> TransferError:
        others = ", ".join(member.node for member in transfer.members if member != self._member)
        what = f"transfer of version {transfer.policy_version} with {others}"
        return TransferError(f"{what} in transfer group {transfer.transfer_group} failed: {reason}")


def _reason(error: BaseException) -> str:
    """The library's message without the leading source file and the trailing advice."""
    return re.sub(r"^\[[^]]*\] ", "", str(error)).partition(". This is ")[0]
