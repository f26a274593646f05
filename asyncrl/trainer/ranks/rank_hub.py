"""
Control of the further ranks by the first one: welcome them, send them work, notice when one is gone, let them find each
other.

    shard ── Hello, Checked, PartWritten, Beat ─▶ RankHub ── Welcome, Batch, Work, Stop ─▶ shard
    every rank's store ── StoreSet, StoreGet ─▶ RankHub ── StoreValue ─▶ store
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from asyncrl.errors import AsyncrlError, LinkClosed, LinkError, RankDied
from asyncrl.files.checkpoints import FileEntry
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Hello, Reject, StoreGet, StoreSet, StoreValue, Welcome
from asyncrl.messages.trainer import Checked, PartWritten, Refusal
from asyncrl.weights.groups.network_interface import Deadline
from asyncrl.weights.groups.rendezvous import Rendezvous
from asyncrl.weights.groups.store import LinkStore
from asyncrl.wire.link import Hub, Link

Answer = TypeVar("Answer")


class OtherRanks(Protocol):
    """The further ranks, as the first one uses them."""

    def broadcast(self, message: Message, /) -> None:
        """Send a message to every further rank."""

    async def refused(self, step: int, /) -> list[Refusal]:
        """
        Wait until every further rank has checked its trajectories of ``step``. Returns what they refuse.

        Raises `AsyncrlError`, which names the rank, if the step is impossible on one.
        """

    async def written(self, step: int, /) -> dict[str, FileEntry]:
        """Wait until every further rank has written its part of the checkpoint after ``step``. Returns the files."""


class NoOtherRanks:
    """`OtherRanks` of a trainer of one process."""

    def broadcast(self, _message: Message) -> None: ...

    async def refused(self, _step: int) -> list[Refusal]:
        return []

    async def written(self, _step: int) -> dict[str, FileEntry]:
        return {}


class RankHub:
    """
    Connections to ranks 1 and higher over ``hub``, which the caller owns.

    Args:
        names: Node name of each of these ranks.
        silence_s: A rank that sends nothing for so long counts as dead.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        names: Sequence[str],
        welcome: Welcome,
        silence_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub = hub
        self._names = names
        self._welcome = welcome
        self._silence_s = silence_s
        self._clock = clock
        self._all_joined = asyncio.Event()
        if not names:
            self._all_joined.set()
        self._rendezvous = Rendezvous()
        self._ranks: dict[str, str] = {}
        """Name and host of each rank that has joined, by peer."""
        self._heard_s: dict[str, float] = {}
        """Time of the last message, by peer."""
        self._checked = _Answers[Checked](len(names))
        self._written = _Answers[dict[str, FileEntry]](len(names))

    async def listen(self) -> None:
        """Welcome ranks and receive their beats until the hub is closed."""
        while True:
            try:
                peer, message = await self._hub.receive()
            except LinkClosed:
                return
            if peer in self._ranks:
                self._heard_s[peer] = self._clock()
            match message:
                case Hello():
                    self._join(peer, message)
                case Checked() if peer in self._ranks:
                    self._checked.put(message.step, peer, message)
                case PartWritten(step=step, files=files) if peer in self._ranks:
                    self._written.put(step, peer, files)
                case StoreSet(group=group, key=key, value=value):
                    for waiting in self._rendezvous.set(group, key, value):
                        self._hub.send(waiting, StoreValue(group, key, value))
                case StoreGet(group=group, key=key):
                    if (found := self._rendezvous.get(group, key, peer)) is not None:
                        self._hub.send(peer, StoreValue(group, key, found))

    async def wait_for_all(self, deadline_s: float) -> None:
        """Wait until all ranks have joined; raises `RankDied` after ``deadline_s``."""
        try:
            await asyncio.wait_for(self._all_joined.wait(), deadline_s)
        except TimeoutError:
            joined = {peer.rpartition(".")[0] for peer in self._ranks}
            missing = [name for name in self._names if name not in joined]
            raise RankDied(
                f"{', '.join(missing)} of the trainer's {len(self._names)} further ranks did not join in "
                f"{deadline_s:g} s"
            ) from None

    def broadcast(self, message: Message) -> None:
        """Send a message to every rank that has joined."""
        for peer in self._ranks:
            self._hub.send(peer, message)

    async def refused(self, step: int) -> list[Refusal]:
        """See `OtherRanks`. Called for one step at a time."""
        answers = await self._checked.of_all(step)
        if problem := next((checked.problem for checked in answers if checked.problem), ""):
            raise AsyncrlError(problem)
        return [refusal for checked in answers for refusal in checked.refused]

    async def written(self, step: int) -> dict[str, FileEntry]:
        """See `OtherRanks`. Called for one step at a time."""
        return {name: entry for files in await self._written.of_all(step) for name, entry in files.items()}

    def require_all(self) -> None:
        """Raise `RankDied`, which names the rank, if one has been silent for too long."""
        for peer, heard_s in self._heard_s.items():
            if (silent_s := self._clock() - heard_s) > self._silence_s:
                raise RankDied(f"{self._ranks[peer]} has been silent for {silent_s:.0f} s: it is dead or stuck")

    def _join(self, peer: str, hello: Hello) -> None:
        """Welcome a rank, unless it is none of this group, such as one of an earlier group."""
        if hello.role != "shard" or hello.node not in self._names:
            self._hub.send(peer, Reject(f"{hello.node} is no rank of this trainer"))
            return
        self._ranks[peer] = f"{hello.node} on {hello.host}" if hello.host else hello.node
        self._heard_s[peer] = self._clock()
        self._hub.send(peer, self._welcome)
        if len(self._ranks) == len(self._names):
            self._all_joined.set()


class _Answers(Generic[Answer]):
    """Answers of every further rank for each step."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._answers: defaultdict[int, dict[str, Answer]] = defaultdict(dict)
        """Answers by step and peer, for steps that nobody has asked for yet."""
        self._came = asyncio.Event()

    def put(self, step: int, peer: str, answer: Answer) -> None:
        self._answers[step][peer] = answer
        self._came.set()

    async def of_all(self, step: int) -> list[Answer]:
        """Wait for the answers of all ranks for a step. Called for one step at a time."""
        while len(self._answers[step]) < self._num_ranks:
            self._came.clear()
            await self._came.wait()
        return list(self._answers.pop(step).values())


# ── rank store ────────────────────────────────────────────────────────────────────────────────
# Rendezvous of the ranks over a link to the first rank's hub, beside the link for their work.
#
#     rank 0 ─ memory ─┐
#     rank 1 ─ link ───┼─ StoreSet, StoreGet ─▶ RankHub ── StoreValue ─▶ the rank that asked
#     rank 2 ─ link ───┘
#
# A link of its own is read all the time, also while the rank loads its model.

GROUP = "ranks"


@asynccontextmanager
async def rank_store(link: Link, names: Sequence[str], deadline_s: float) -> AsyncIterator[LinkStore]:
    """
    The store of the group of all ranks, for use in another thread. It is abandoned, and the link closed, at the end.

    Args:
        names: Each rank, for error messages.
        deadline_s: Limit of all waits together.
    """
    store = LinkStore(GROUP, names, link.send, asyncio.get_running_loop(), Deadline(deadline_s))
    receiving = asyncio.create_task(_deliver(link, store))
    try:
        yield store
    finally:
        store.abandon("the group is no longer needed")
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await link.aclose()


async def _deliver(link: Link, store: LinkStore) -> None:
    try:
        while True:
            if isinstance(message := await link.receive(), StoreValue):
                store.deliver(message)
    except LinkError as error:
        store.abandon(f"the link to the first rank is gone: {error}")
