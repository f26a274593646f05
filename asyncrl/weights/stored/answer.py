"""Answers of the spool to requests about stored weights."""

import asyncio
from typing import TypeVar

from asyncrl.actor.link import Link
from asyncrl.actor.message import Message
from asyncrl.errors import LinkError

Answer = TypeVar("Answer", bound=Message)

ANSWER_S = 60.0
"""Seconds for an answer of the spool, after which the link is opened again."""


async def receive_answer(link: Link, kind: type[Answer]) -> Answer:
    """The next message, which must be of this kind; raises `LinkError` if none comes within `ANSWER_S`."""
    try:
        async with asyncio.timeout(ANSWER_S):
            message = await link.receive()
    except TimeoutError:
        raise LinkError(f"the spool did not answer within {ANSWER_S:g} s") from None
    if not isinstance(message, kind):
        raise LinkError(f"the spool answered with {type(message).__name__}, expected {kind.__name__}")
    return message
