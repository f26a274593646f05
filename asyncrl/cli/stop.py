"""
`asyncrl stop`: ends a run early, as Ctrl-C under `asyncrl run` does.

    Interrupt ─▶ the trainer saves a checkpoint, rollouts store what they sample ─▶ Finished ─▶ all leave
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct

from asyncrl.cli.session import ANSWER_S, operator
from asyncrl.cli.status import SERVICES, how_to_resume, live_address, opened
from asyncrl.errors import ConfigError, LinkError, Unanswered
from asyncrl.messages.supervisor import Finished, Interrupt, Paused, Stacks, StacksWanted
from asyncrl.records.evaluation_metrics import failed_note
from asyncrl.records.formatting import share
from asyncrl.records.resuming import pause_notes
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import RunOverview, is_going_on, is_served, is_supervised, overview
from asyncrl.terminal import command_line
from asyncrl.wire.addresses import is_loopback
from asyncrl.wire.run_address import RunAddress, locate

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
        return _ended_elsewhere(where, await interrupt(locate(where, key), wait_s))
    directory = opened(where)
    if is_served(directory):
        await interrupt(locate(where, key), wait_s)
        await wait_until_left(directory)
    elif is_supervised(directory):
        raise LinkError(
            f"{where} has no broker at this moment: `asyncrl run` is starting or ending it; try again in some seconds"
        )
    return kept_lines(overview(directory.path), where)


class RunEnd(Struct, frozen=True):
    """End of a run as its broker told it."""

    finished: Finished
    run_dir: str
    """Run directory on the broker's machine."""
    paused_by: str = ""
    """Operator who paused sampling; empty if nobody did."""


async def interrupt(run: RunAddress, wait_s: float) -> RunEnd:
    """End the run at the broker. Raises as `stop`."""
    paused_by = ""
    async with operator(run) as session:
        await session.link.send(Interrupt())
        try:
            async with asyncio.timeout(wait_s):
                while not isinstance(message := await session.link.receive(), Finished):
                    if isinstance(message, Paused):  # Whoever joins a paused run is told that first.
                        paused_by = message.by if message.is_paused else ""
        except TimeoutError:
            raise LinkError(
                f"the run was told to end, but has not within {wait_s:g} s: its trainer may still be writing a "
                f"checkpoint; `asyncrl status` says what its nodes do"
            ) from None
        return RunEnd(message, session.welcome.run_dir, paused_by)


async def wait_until_left(
    directory: RunDirectory,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until no process holds the run, for at most `LEAVE_S`; raises `LinkError` if one still does."""
    deadline_s = clock() + LEAVE_S
    while is_going_on(directory):
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
    after = f"after {run.step} of {run.steps} steps{accuracy}"
    lines = [f"{run.run} is over: {run.status} {after}"]
    if run.status == "stopped":
        lines = [f"{run.run} has no broker to tell: it stopped {after}, and goes on as soon as one serves it"]
    lines.append(f"checkpoint  {run.checkpoint or run.no_checkpoint}")
    if run.status != "finished":
        lines.append(f"resume      {how_to_resume(where)}")
        lines += [f"paused      {note}" for note in pause_notes(run.paused_by, where)]
    return lines


def _ended_elsewhere(address: str, told: RunEnd) -> list[str]:
    end, run_dir = told.finished, told.run_dir
    lines = [f"the run is over: {end.status}{f' ({end.cause})' if end.cause else ''}"]
    lines.append(f"kept        {run_dir}, on the broker's machine")
    if end.status != "finished":
        is_alone = is_loopback(address) and not RunDirectory(Path(run_dir)).local_key.exists()
        command = f"{command_line('asyncrl', 'resume', run_dir)}, there; or " if is_alone else ""
        lines.append(f"resume      {command}{SERVICES}")
        lines += [f"paused      {note}" for note in pause_notes(told.paused_by, address)]
    return lines


# ── stacks ────────────────────────────────────────────────────────────────────────────────────
# `asyncrl stacks`: where the threads and tasks of a node are.
#
#     broker ─▶ the node's event loop answers ─▶ text
#        └─▶ no answer in time: the loop hangs ─▶ SIGUSR2, if the process is on this machine ─▶ its log has its threads

DUMP_S = 3.0
"""Seconds for a process to write its stacks: a signal handler of the interpreter does it, whatever its threads do."""
STACKS_POLL_S = 0.05
BROKER, BROKERS = "broker-0", ("broker", "broker-0", "spool")
"""Name of the broker's log, and names of its process."""


def stacks(where: str, key: Path | None, node: str) -> str:
    """
    Stacks of a node, from its event loop, or from its log if that does not answer.

    Raises:
        ConfigError: There is no such run or node.
        LinkError: Neither the node nor a process on this machine answers.
    """
    try:
        return asyncio.run(ask(live_address(where, key), node))
    except LinkError as error:
        reason = str(error)
    if "://" in where:
        raise LinkError(f"{reason}; on its machine, `kill -USR2 PID` makes it write them to its log")
    return f"{reason}; its threads, from its log:\n{from_log(opened(where), node, reason)}"


async def ask(run: RunAddress, node: str) -> str:
    """Ask the node through the broker. Raises `ConfigError` for a wrong name, `LinkError` without an answer."""
    async with operator(run) as session:
        try:
            answer = await session.ask(StacksWanted(node), Stacks, is_answer=lambda told: told.node == node)
        except Unanswered as error:
            raise LinkError(f"{node} did not answer within {ANSWER_S:g} s: its event loop hangs ({error})") from None
    if answer.problem:
        raise ConfigError(answer.problem)
    return answer.text


def from_log(
    directory: RunDirectory,
    node: str,
    reason: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Have the process of a node write its stacks to its log here. Raises `LinkError`, which begins with ``reason``."""
    log = directory.logs / f"{BROKER if node in BROKERS else node}.log"
    pid = pid_of(directory, node)
    if pid is None or not log.is_file():
        raise LinkError(f"{reason}; its process is not one of this machine that logs to {directory.logs}")
    before = seen = log.stat().st_size
    os.kill(pid, signal.SIGUSR2)
    deadline_s = clock() + DUMP_S
    while clock() < deadline_s:
        sleep(STACKS_POLL_S)
        size = log.stat().st_size
        if before < size == seen:  # It grows no more.
            with log.open("rb") as file:
                file.seek(before)
                return file.read().decode(errors="replace")
        seen = size
    raise LinkError(f"{reason}; process {pid} wrote nothing to {log} within {DUMP_S:g} s either")


def pid_of(directory: RunDirectory, node: str) -> int | None:
    """Process of a node on this machine; None if it has none that is known."""
    if node in BROKERS:
        found = directory.lock.read_text().strip() if directory.lock.is_file() else ""
    else:
        joined = [event for event in directory.read_events() if event.get("event") == "node.joined"]
        last = [str(event.get("incarnation", "")) for event in joined if event.get("node") == node][-1:]
        found = last[0].rpartition("-")[2] if last else ""
    return int(found) if found.isdigit() and _is_ours(int(found)) else None


def _is_ours(pid: int) -> bool:
    """True if the process is a node of asyncrl: the number may belong to another one by now."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"asyncrl.cli.node" in command or b"asyncrl-node" in command
