"""Failures of a step that another start of the trainer would meet again, told to the broker before this one ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from asyncrl.actor.link import Link
from asyncrl.errors import LinkError, RankDied, SpoolAway
from asyncrl.messages.trainer import StepFailed

OF_OTHERS = (LinkError, RankDied, SpoolAway)
"""Errors that say nothing about the step: another process is gone, or does not answer."""
REASON_CHARS = 2048


@asynccontextmanager
async def told(link: Link, step: int) -> AsyncIterator[None]:
    """Tell the broker of an error of the block, which is work on ``step``, and raise it."""
    try:
        yield
    except OF_OTHERS:
        raise
    except Exception as error:
        with suppress(LinkError):
            await link.send(StepFailed(step, f"{type(error).__name__}: {error}"[:REASON_CHARS]))
        raise
