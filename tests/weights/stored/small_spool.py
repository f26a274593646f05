"""A spool that keeps weights on disk, behind links in memory that a test may cut."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path

from asyncrl.messages.codec import Message
from asyncrl.messages.weights import FetchWeights, ListWeights, PutWeights
from asyncrl.spool.weights import WeightStore
from asyncrl.wire.memory import MemoryHub, MemoryLink

About = PutWeights | ListWeights | FetchWeights


class SmallSpool:
    """
    The real store behind a hub.

    ``before`` is called with the name of the link and each message before it is answered; its answer, if it gives one,
    replaces that of the store. Links in ``muted`` get no answers.
    """

    def __init__(self, store: WeightStore) -> None:
        self.store = store
        self.asked: list[About] = []
        self.before: Callable[[str, About], Message | None] = lambda _peer, _message: None
        self.muted: set[str] = set()
        self.hub = MemoryHub()
        self._names = count()

    def connect(self) -> MemoryLink:
        return self.hub.connect(f"link-{next(self._names)}")

    async def serve(self) -> None:
        while True:
            peer, message = await self.hub.receive()
            assert isinstance(message, About)
            self.asked.append(message)
            answer = self.before(peer, message)
            if peer not in self.muted:
                self.hub.send(peer, answer or self.store.answer(message))

    @property
    def parts_asked(self) -> list[tuple[int, int]]:
        """Version and part of each `FetchWeights`."""
        return [(m.weights.policy_version, m.part) for m in self.asked if isinstance(m, FetchWeights)]


@asynccontextmanager
async def small_spool(folder: Path) -> AsyncIterator[SmallSpool]:
    with closing(WeightStore(folder)) as store:
        spool = SmallSpool(store)
        serving = asyncio.create_task(spool.serve())
        try:
            yield spool
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
