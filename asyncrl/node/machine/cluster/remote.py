"""
Asks machines: runs `asyncrl doctor --probe` through the command of each, with a deadline, and reads its answer.

A question goes through standard input, so that no shell on the way changes it and no list of processes shows it.
"""

import asyncio
import os
import shlex
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import IO

import msgspec

from asyncrl.node.machine.cluster.cluster_file import Machine
from asyncrl.node.machine.cluster.probe_messages import Answer, NoAnswer, Question

LINE_BYTES = 1 << 20
END_S = 5.0
"""Time limit of the end of a process that was killed."""
PROBE = ("doctor", "--probe")


async def ask(machine: Machine, question: Question, deadline_s: float) -> Answer | NoAnswer:
    """Answer of a machine to a question, or the reason why there is none."""
    async with asked(machine, question, deadline_s) as answer:
        return answer


@asynccontextmanager
async def asked(machine: Machine, question: Question, deadline_s: float) -> AsyncIterator[Answer | NoAnswer]:
    """Context in which the command of a question, such as a listener, goes on after its answer."""
    command = [*machine.command, *PROBE]
    with tempfile.TemporaryFile() as errors:  # a pipe could fill up, and the command would hang
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                limit=LINE_BYTES,
            )
        except OSError as error:
            yield NoAnswer(f"cannot run `{shlex.join(command)}`: {error.strerror}")
            return
        try:
            yield await _answer(process, question, shlex.join(command), errors, deadline_s)
        finally:
            await _end(process)


async def _answer(
    process: asyncio.subprocess.Process, question: Question, shown: str, errors: IO[bytes], deadline_s: float
) -> Answer | NoAnswer:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(deadline_s):
            with suppress(ConnectionError):  # The command has ended, and its exit code says why.
                process.stdin.write(msgspec.json.encode(question) + b"\n")
                await process.stdin.drain()
            # A login shell may print a greeting first.
            while line := await process.stdout.readline():
                if line.startswith(b"{"):
                    answer: Answer = msgspec.json.decode(line, type=Answer)
                    return answer
            code = await process.wait()
    except TimeoutError:
        return NoAnswer(f"`{shown}` gave no answer within {deadline_s:g} s{_said(errors)}")
    except (ValueError, msgspec.DecodeError) as error:
        return NoAnswer(f"`{shown}` gave an answer that asyncrl here does not understand: {error}")
    return NoAnswer(f"`{shown}` ended with exit code {code}{_said(errors)}")


def _said(errors: IO[bytes]) -> str:
    """The last line on standard error, for a message."""
    errors.seek(0)
    lines = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1].strip()}" if lines else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the command and its children. The far end of an ssh connection sees the end of its input."""
    if process.stdin:
        process.stdin.close()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await process.wait()
