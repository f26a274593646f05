"""
`asyncrl stop`: ends a run early, as Ctrl-C under `asyncrl run` does.

    Interrupt ─▶ the trainer saves a checkpoint, rollouts store what they sample ─▶ Finished ─▶ all leave
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from asyncrl.cli.operate.resume import SERVICES, how_to_resume
from asyncrl.cli.operate.session import operator
from asyncrl.cli.operate.status import opened
from asyncrl.client.run_address import RunAddress, locate
from asyncrl.config.addresses import is_loopback
from asyncrl.errors import LinkError
from asyncrl.evaluation.metrics import failed_note
from asyncrl.messages.supervisor import Finished, Interrupt
from asyncrl.observe.formatting import share
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.run_overview import RunOverview, is_served, is_supervised, overview

LEAVE_S = 30.0
"""Seconds for the processes of a run that is over to leave, after which it can be resumed."""
POLL_S = 0.1


async def stop(where: str, key: Path | None, wait_s: float) -> list[str]:
    """
    End a run, wait for its end, and return lines that say what was kept and how to resume it.

    Raises:
        ConfigError: There is no such run.
        LinkError: Its broker does not run, does not answer, or has not ended the run within ``wait_s`` seconds.
    """
    if "://" in where:
        return _ended_elsewhere(where, *await interrupt(locate(where, key), wait_s))
    directory = opened(where)
    if not is_served(directory):
        return _not_running(directory, where)
    await interrupt(locate(where, key), wait_s)
    await wait_until_left(directory)
    return kept_lines(overview(directory.path), where)


async def interrupt(run: RunAddress, wait_s: float) -> tuple[Finished, str]:
    """End the run at the broker; returns its end and the run directory on the broker's machine. Raises as `stop`."""
    async with operator(run) as session:
        await session.link.send(Interrupt())
        try:
            async with asyncio.timeout(wait_s):
                while not isinstance(message := await session.link.receive(), Finished):
                    pass
        except TimeoutError:
            raise LinkError(
                f"the run was told to end, but has not within {wait_s:g} s: its trainer may still be writing a "
                f"checkpoint; `asyncrl status` says what its nodes do"
            ) from None
        return message, session.welcome.run_dir


async def wait_until_left(
    directory: RunDirectory,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until no process holds the run, for at most `LEAVE_S`; raises `LinkError` if one still does."""
    deadline_s = clock() + LEAVE_S
    while is_served(directory) or is_supervised(directory):
        if clock() > deadline_s:
            raise LinkError(f"the run is over, but its processes have not left within {LEAVE_S:g} s; see its logs")
        await sleep(POLL_S)


def kept_lines(run: RunOverview, where: str) -> list[str]:
    """Sentences on what is on disk of a run that is over."""
    accuracy = (
        f", held-out accuracy {share(run.accuracy)}{failed_note(run.accuracy_failed)}"
        if run.accuracy is not None
        else ""
    )
    lines = [f"{run.run} is over: {run.status} after {run.step} of {run.steps} steps{accuracy}"]
    lines.append(f"checkpoint  {run.checkpoint or 'none: it starts from the base model again'}")
    if run.status != "finished":
        lines.append(f"resume      {how_to_resume(where)}")
    return lines


def _ended_elsewhere(address: str, end: Finished, run_dir: str) -> list[str]:
    lines = [f"the run is over: {end.status}{f' ({end.cause})' if end.cause else ''}"]
    lines.append(f"kept        {run_dir}, on the broker's machine")
    if end.status != "finished":
        command = f"asyncrl resume {run_dir}, there; or " if is_loopback(address) else ""
        lines.append(f"resume      {command}{SERVICES}")
    return lines


def _not_running(directory: RunDirectory, where: str) -> list[str]:
    if is_supervised(directory):
        raise LinkError(
            f"{where} has no broker at this moment: `asyncrl run` is starting or ending it; try again in some seconds"
        )
    return kept_lines(overview(directory.path), where)
