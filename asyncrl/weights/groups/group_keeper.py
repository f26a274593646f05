"""
Process groups of weight transfers, and the thread that runs the transfers.

    Transfer ─▶ in the kept transfer group? ─ yes ───────────────────────────▶ exchange ─▶ keep
                                            ─ no, keep ───▶ close kept, form ─▶ exchange ─▶ keep
                                            ─ no, one-off ─▶ form ────────────▶ exchange ─▶ close
                                                                                └─ failed ─▶ close; never used again

``transfer_group`` numbers the process groups; the broker assigns the numbers.

Invariants: transfers run one after another, in order of arrival; no part of a transfer waits longer than its deadline;
a failed group is never used again; a one-off group, failed or not, does not affect the kept group.
"""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from asyncrl.config.sections import Weights
from asyncrl.errors import TransferError
from asyncrl.messages import Member, StoreValue, Transfer
from asyncrl.weights.groups.deadline import Deadline
from asyncrl.weights.groups.device import backend_for
from asyncrl.weights.groups.group import CPU, Group, form
from asyncrl.weights.groups.store import LinkStore, Send

Exchange = Callable[[Group, Deadline], None]
"""Sends or receives a version over the formed group. Blocks."""

GRACE_S = 1.0
"""Time that the caller waits after the deadline. The thread may wait longer: a broadcast to n ranks waits for up to
log2(n) peers in turn, each until the deadline."""
LEAVE_S = 1.0
"""Time for the thread to leave an abandoned rendezvous. A thread that takes longer is inside the library."""
CLOSING = "this node is closing"


class GroupKeeper:
    """
    Runs transfers on a thread of its own, so that the event loop and the trainer's next step continue.

    Args:
        member: This node, as listed in transfers.
        local_rank: Index of this process among the member's processes.

    Raises:
        ConfigError: The backend cannot send from the device, or is not installed.
    """

    def __init__(
        self, member: Member, send: Send, config: Weights, *, local_rank: int = 0, device: torch.device = CPU
    ) -> None:
        self._member = member
        self._local_rank = local_rank
        self._send = send
        self._backend = backend_for(config.backend, device.type)
        self._device = device
        self._interface = config.interface
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="asyncrl-weights")
        self._groups: dict[int, Group] = {}
        """The kept group and, during its transfer, a one-off group, by ``transfer_group``."""
        self._failed: set[int] = set()
        self._store: LinkStore | None = None
        """Store of the group that is being formed."""
        self._closed = False

    async def run(self, transfer: Transfer, rank: int, exchange: Exchange) -> float:
        """
        Run ``exchange`` in the transfer's group, formed if necessary; returns the duration in seconds.

        Raises:
            TransferError: The transfer failed, or exceeded its deadline; names the members and the reason.
        """
        deadline = Deadline(transfer.deadline_s)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(transfer.deadline_s + GRACE_S):
                await loop.run_in_executor(self._thread, self._run, transfer, rank, exchange, deadline, loop)
        except TimeoutError:
            self._abandon(transfer.transfer_group)
            raise self._error(transfer, "the deadline has passed") from None
        except asyncio.CancelledError:
            self._abandon(transfer.transfer_group)
            raise
        return deadline.elapsed_s()

    def rank(self, transfer: Transfer) -> int:
        """This process's rank in the transfer's group; raises `TransferError` if this node is not a member."""
        if self._member not in transfer.members:
            raise self._error(transfer, f"{self._member.node} ({self._member.incarnation}) is not a member")
        before = transfer.members[: transfer.members.index(self._member)]
        return sum(member.ranks for member in before) + self._local_rank

    def deliver(self, value: StoreValue) -> None:
        """Handle the broker's answer to a rendezvous; answers to an earlier one are ignored."""
        store = self._store
        if store is not None and store.group == value.group:
            store.deliver(value)

    async def aclose(self) -> None:
        """
        Abandon a rendezvous, wait for a running exchange until its deadline, and end the thread. Idempotent.

        A connection attempt cannot be abandoned. It is not waited for, and ends by its deadline if the library has one
        (see `group`); the exit of the process does wait for it.
        """
        if self._closed:
            return
        self._closed = True
        limit_s = None
        if self._store is not None:
            self._store.abandon(CLOSING)
            limit_s = LEAVE_S
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._close, list(self._groups))
        closed, _ = await asyncio.wait([closing], timeout=limit_s)
        self._thread.shutdown(wait=bool(closed))
        if closed:
            closing.result()

    # ── on the thread ───────────────────────────────────────────────────────────────────────

    def _run(
        self, transfer: Transfer, rank: int, exchange: Exchange, deadline: Deadline, loop: asyncio.AbstractEventLoop
    ) -> None:
        try:
            group = self._group(transfer, rank, deadline, loop)
            if self._closed:
                raise TransferError(CLOSING)
            exchange(group, deadline)
        except BaseException as error:
            self._failed.add(transfer.transfer_group)
            if isinstance(error, TransferError | RuntimeError):  # torch raises RuntimeError for every failure
                raise self._error(transfer, _reason(error)) from error
            raise
        finally:
            if not transfer.keep or transfer.transfer_group in self._failed:
                self._close([transfer.transfer_group])

    def _group(self, transfer: Transfer, rank: int, deadline: Deadline, loop: asyncio.AbstractEventLoop) -> Group:
        if transfer.transfer_group in self._failed:
            raise TransferError("this transfer group failed before; use a new one")
        if transfer.transfer_group not in self._groups:
            if transfer.keep:
                self._close(list(self._groups))
            self._groups[transfer.transfer_group] = self._form(transfer, rank, deadline, loop)
        return self._groups[transfer.transfer_group]

    def _form(self, transfer: Transfer, rank: int, deadline: Deadline, loop: asyncio.AbstractEventLoop) -> Group:
        names = [member.node for member in transfer.members for _ in range(member.ranks)]
        self._store = store = LinkStore(str(transfer.transfer_group), names, self._send, loop, deadline)
        try:
            if self._closed:  # checked after `_store` is set, so that aclose either sees the store or is seen here
                raise TransferError(CLOSING)
            return form(
                self._backend,
                store,
                rank,
                len(names),
                interface=self._interface,
                deadline=deadline,
                device=self._device,
            )
        finally:
            self._store = None

    def _close(self, transfer_groups: list[int]) -> None:
        for transfer_group in transfer_groups:
            if group := self._groups.pop(transfer_group, None):
                group.close()

    # ── from any thread ─────────────────────────────────────────────────────────────────────

    def _abandon(self, transfer_group: int) -> None:
        self._failed.add(transfer_group)
        store = self._store
        if store is not None and store.group == str(transfer_group):
            store.abandon("the transfer was cancelled")

    def _error(self, transfer: Transfer, reason: str) -> TransferError:
        others = ", ".join(member.node for member in transfer.members if member != self._member)
        what = f"transfer of policy_version {transfer.policy_version} with {others}"
        return TransferError(f"{what} in transfer group {transfer.transfer_group} failed: {reason}")


def _reason(error: BaseException) -> str:
    """The library's message without the leading source file and the trailing advice."""
    return re.sub(r"^\[[^]]*\] ", "", str(error)).partition(". This is ")[0]
