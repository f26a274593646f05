"""
An operator's session with the broker of a running run: a handshake as a supervisor, beats, and answers in time.

    asyncrl status RUN ─▶ Hello ─▶ Welcome ─▶ StatusWanted ─▶ Status ─▶ Bye
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from msgspec import Struct

from asyncrl.errors import LinkError, Unanswered
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Beat, Welcome
from asyncrl.messages.supervisor import Finished
from asyncrl.wire.handshake import identity, join, leave, send_beats
from asyncrl.wire.link import Link
from asyncrl.wire.run_address import RunAddress

ANSWER_S = 5.0
"""Seconds for the broker to answer a handshake, or a question that it answers at once."""

Answer = TypeVar("Answer", bound=Message)


class Operator(Struct, frozen=True, eq=False):
    """A link to the broker, and its welcome."""

    link: Link
    welcome: Welcome
    name: str
    """Name of this operator in the run."""

    async def ask(
        self,
        question: Message,
        answer: type[Answer],
        wait_s: float | None = None,
        *,
        is_answer: Callable[[Answer], bool] = lambda _: True,
    ) -> Answer:
        """
        Send a question and wait for its answer: the first message of this type for which ``is_answer`` is true.

        Raises `LinkError` if the run or the connection ends first, and `Unanswered` if there is none within ``wait_s``
        seconds, by default `ANSWER_S`.
        """
        limit_s = ANSWER_S if wait_s is None else wait_s
        await self.link.send(question)
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    message = await self._receive()
                    if isinstance(message, answer) and is_answer(message):
                        return message
        except TimeoutError:
            raise Unanswered(
                f"the broker got {type(question).__name__} and gave no answer within {limit_s:g} s that can be read: "
                f"it is busy, hangs, or is of another version"
            ) from None

    async def pause(self, seconds: float) -> None:
        """Wait, and raise `LinkError` at once if the run ends: its broker waits for everybody to leave."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    await self._receive()

    async def _receive(self) -> Message:
        message = await self.link.receive()
        if isinstance(message, Finished):
            cause = f" ({message.cause})" if message.cause else ""
            raise LinkError(f"the run has just ended: {message.status}{cause}")
        return message


@contextlib.asynccontextmanager
async def operator(run: RunAddress) -> AsyncIterator[Operator]:
    """Join a run as a supervisor. Raises `LinkError` if its broker does not answer, or refuses this operator's key."""
    found = run.credentials()
    # A name that the key, if there is one, is for.
    who = identity("supervisor", f"{found.name if found and found.name else 'operator'}-{os.getpid()}")
    link, welcome = await join(run, who, ANSWER_S)
    beats = asyncio.create_task(send_beats(link, welcome.beat_s, Beat))
    try:
        yield Operator(link, welcome, who.node)
    finally:
        beats.cancel()
        await leave(link, "done")
