"""Answers to requests over a link on which each request gets one, in order."""

import asyncio
from typing import TypeVar

from asyncrl.actor.link import Link
from asyncrl.actor.message import Message
from asyncrl.errors import LinkError

Answer = TypeVar("Answer", bound=Message)

ANSWER_S = 60.0
"""Seconds in which a spool answers, unless it has much to read for it; the link is opened again after that."""


async def receive_answer(link: Link, kind: type[Answer], deadline_s: float | None = None) -> Answer:
    """The next message, which must be of this kind; raises `LinkError` if none comes in time (`ANSWER_S`)."""
    limit_s = ANSWER_S if deadline_s is None else deadline_s
    try:
        async with asyncio.timeout(limit_s):
            message = await link.receive()
    except TimeoutError:
        raise LinkError(f"the spool did not answer within {limit_s:g} s") from None
    if not isinstance(message, kind):
        raise LinkError(f"the spool answered with {type(message).__name__}, expected {kind.__name__}")
    return message
