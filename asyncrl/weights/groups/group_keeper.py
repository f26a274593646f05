"""
Which process group a transfer runs in, and the thread it runs on.

    Transfer ─▶ of the kept group's epoch? ─ yes ───────────────────────▶ exchange ─▶ keep
                                           ─ no, keep ──▶ close it, form ─▶ exchange ─▶ keep
                                           ─ no, a pair ─▶ form ──────────▶ exchange ─▶ close
                                                                            └─ failed ─▶ close; the epoch is dead

Invariants: transfers run one after another, in the order they came; no part of one waits longer than its deadline;
a failed epoch is never used again; a one-off pair, failed or not, leaves the kept group alone.
"""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from asyncrl.errors import TransferError
from asyncrl.messages import Member, StoreValue, Transfer
from asyncrl.weights.groups.deadline import Deadline
from asyncrl.weights.groups.device import backend_for
from asyncrl.weights.groups.group import CPU, Group, form
from asyncrl.weights.groups.store import LinkStore, Send

Exchange = Callable[[Group, Deadline], None]
"""What is sent or received once the group stands. Blocks."""

GRACE_S = 1.0
"""A broadcast to n ranks waits for up to log2(n) peers in turn, each until the deadline. The caller waits no longer
than this, the thread may."""
LEAVE_S = 1.0
"""For a thread to notice that a rendezvous was given up. One that has not by then is inside the library."""
CLOSING = "this node is closing"


class GroupKeeper:
    """
    Runs transfers on a thread of its own, so that the event loop and the trainer's next step go on.

    Args:
        member: Who we are among the members of a transfer.
        send: `Link.send` of the link to the broker; carries the rendezvous.
        backend: ``weights.backend``: a collective library, or ``auto`` for the device's.
        interface: Address that our groups listen on.
        local_rank: Which of the member's processes we are.
        device: Where the tensors lie.

    Raises:
        ConfigError: The backend cannot reach the device, or is not installed.
    """

    def __init__(
        self,
        member: Member,
        send: Send,
        *,
        backend: str,
        interface: str,
        local_rank: int = 0,
        device: torch.device = CPU,
    ) -> None:
        self._member = member
        self._local_rank = local_rank
        self._send = send
        self._backend = backend_for(backend, device.type)
        self._device = device
        self._interface = interface
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="asyncrl-weights")
        self._groups: dict[int, Group] = {}
        """By epoch: the kept one, and for as long as it works the one-off pair."""
        self._dead: set[int] = set()
        self._store: LinkStore | None = None
        """Of the group that is being formed."""
        self._closed = False

    async def run(self, transfer: Transfer, rank: int, exchange: Exchange) -> float:
        """
        Get the transfer's group and do the exchange in it.

        Returns:
            Seconds it took, rendezvous included.

        Raises:
            TransferError: It was not done by the deadline; names the members and the reason.
        """
        deadline = Deadline(transfer.deadline_s)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(transfer.deadline_s + GRACE_S):
                await loop.run_in_executor(self._thread, self._run, transfer, rank, exchange, deadline, loop)
        except TimeoutError:
            self._give_up(transfer.transfer_group)
            raise self._error(transfer, "the deadline has passed") from None
        except asyncio.CancelledError:
            self._give_up(transfer.transfer_group)
            raise
        return deadline.elapsed_s()

    def rank(self, transfer: Transfer) -> int:
        """
        Our place in the group.

        Raises:
            TransferError: We are none of them.
        """
        if self._member not in transfer.members:
            raise self._error(transfer, f"{self._member.node} ({self._member.incarnation}) is not a member")
        before = transfer.members[: transfer.members.index(self._member)]
        return sum(member.ranks for member in before) + self._local_rank

    def deliver(self, value: StoreValue) -> None:
        """Hand in what the broker answers to a rendezvous. Answers to one that is over are ignored."""
        store = self._store
        if store is not None and store.group == value.group:
            store.deliver(value)

    async def aclose(self) -> None:
        """
        Give up what has not begun to move, let the rest end by its deadline, and end the thread. Idempotent.

        A connection that is just being made cannot be given up. It is left alone, and ends by its deadline, if the
        library knows one (see `group`); the process, if it ends meanwhile, waits for it.
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
            self._dead.add(transfer.transfer_group)
            if isinstance(error, TransferError | RuntimeError):  # torch raises the latter for whatever went wrong
                raise self._error(transfer, _reason(error)) from error
            raise
        finally:
            if not transfer.keep or transfer.transfer_group in self._dead:
                self._close([transfer.transfer_group])

    def _group(self, transfer: Transfer, rank: int, deadline: Deadline, loop: asyncio.AbstractEventLoop) -> Group:
        if transfer.transfer_group in self._dead:
            raise TransferError("this epoch failed before; a new one is needed")
        if transfer.transfer_group not in self._groups:
            if transfer.keep:
                self._close(list(self._groups))
            self._groups[transfer.transfer_group] = self._form(transfer, rank, deadline, loop)
        return self._groups[transfer.transfer_group]

    def _form(self, transfer: Transfer, rank: int, deadline: Deadline, loop: asyncio.AbstractEventLoop) -> Group:
        names = [member.node for member in transfer.members for _ in range(member.ranks)]
        self._store = store = LinkStore(str(transfer.transfer_group), names, self._send, loop, deadline)
        try:
            if self._closed:  # looked at after the store is in place, for aclose to find it
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

    def _give_up(self, transfer_group: int) -> None:
        self._dead.add(transfer_group)
        store = self._store
        if store is not None and store.group == str(transfer_group):
            store.abandon("the transfer was cancelled")

    def _error(self, transfer: Transfer, reason: str) -> TransferError:
        others = ", ".join(member.node for member in transfer.members if member != self._member)
        what = f"transfer of policy_version {transfer.policy_version} with {others} in epoch {transfer.transfer_group}"
        return TransferError(f"{what} failed: {reason}")


def _reason(error: BaseException) -> str:
    """The library's message without its source file in front and its advice behind."""
    return re.sub(r"^\[[^]]*\] ", "", str(error)).partition(". This is ")[0]
