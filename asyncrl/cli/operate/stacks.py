"""
`asyncrl stacks`: where the threads and tasks of a node are.

    broker ─▶ the node's event loop answers ─▶ text
       └─▶ no answer in time: the loop hangs ─▶ SIGUSR2, if the process is on this machine ─▶ its log has its threads
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from asyncrl.cli.operate.session import ANSWER_S, operator
from asyncrl.cli.operate.status import live_address, opened
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import ConfigError, LinkError, Unanswered
from asyncrl.messages.supervisor import Stacks, StacksWanted
from asyncrl.observe.run_directory import RunDirectory

DUMP_S = 3.0
"""Seconds for a process to write its stacks: a signal handler of the interpreter does it, whatever its threads do."""
POLL_S = 0.05
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
        sleep(POLL_S)
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
