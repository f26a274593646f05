"""`asyncrl why RUN --staleness` as a process beside the broker, which must not wait for a simulation."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import msgspec

from asyncrl.actor.supervise import dies_with, why
from asyncrl.broker.staleness_control import StalenessChoice
from asyncrl.errors import AsyncrlError

DEADLINE_S = 300.0


async def choose_staleness(path: Path) -> StalenessChoice:
    """
    Fit a plan to the run in ``path``, with the lowest priority.

    Raises `AsyncrlError` if the process fails, or is not done within `DEADLINE_S` seconds.
    """
    command = ("nice", "-n", "19", sys.executable, "-m", "asyncrl", "why", str(path), "--staleness", "--json")
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, preexec_fn=dies_with(os.getpid())
        )
    except OSError as error:
        raise AsyncrlError(f"the process that fits a plan for the staleness was not started: {error}") from error
    try:
        async with asyncio.timeout(DEADLINE_S):
            out, errors = await process.communicate()
    except TimeoutError:
        raise AsyncrlError(f"no plan for the staleness was fitted within {DEADLINE_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    if process.returncode:
        cause = why(errors) or "no message"
        raise AsyncrlError(f"no plan for the staleness was fitted (exit code {process.returncode}): {cause}")
    try:
        return msgspec.json.decode(out, type=StalenessChoice)
    except msgspec.DecodeError as error:
        raise AsyncrlError(f"the process that fits a plan for the staleness gave no choice: {error}") from error
