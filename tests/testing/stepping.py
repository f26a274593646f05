"""A `FakeEngine` that writes one token of every running request at each turn of the event loop."""

import asyncio
from contextlib import suppress

from asyncrl.engine import Completion, Request
from asyncrl.errors import EngineError
from asyncrl.testing import FakeEngine


class SteppingEngine(FakeEngine):
    """Finishes a request at its ``max_tokens``."""

    def __init__(self) -> None:
        super().__init__()
        self._decoding: asyncio.Task[None] | None = None
        self.is_closed = False

    async def generate(self, request: Request) -> Completion:
        if self.is_closed:
            raise EngineError("the engine is closed")
        if self._decoding is None:
            self._decoding = asyncio.create_task(self._decode())
        return await super().generate(request)

    async def aclose(self) -> None:
        self.is_closed = True
        if self._decoding:
            self._decoding.cancel()
            with suppress(asyncio.CancelledError):
                await self._decoding
        await super().aclose()

    async def _decode(self) -> None:
        while True:
            await asyncio.sleep(0)
            await self._may_write.wait()
            self.step()

    def step(self) -> None:
        self.write(1)
        for index in reversed(range(len(self.running))):
            if self.running[index].num_tokens >= self.running[index].request.sampling.max_tokens:
                self.finish(index, "length")
