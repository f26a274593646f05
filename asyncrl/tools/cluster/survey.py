"""
Asks all machines of a cluster.

    listen on the broker's address, unless a broker does ─▶ facts of all machines, at once ─▶ transfers, in rounds
"""

import asyncio
import os
import secrets
import shlex
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import IO, TypeVar

import msgspec

from asyncrl.tools.cluster.judgement import (
    ClusterFindings,
    ClusterMachines,
    Machine,
    Pair,
    connecting_pairs,
    rounds,
)
from asyncrl.tools.cluster.probe import (
    Answer,
    Facts,
    Listen,
    Listening,
    Look,
    NoAnswer,
    Question,
    Send,
    Sent,
    Unable,
)
from asyncrl.wire.addresses import host_of, port_of

# ── remote ────────────────────────────────────────────────────────────────────────────────────
# Asks machines: runs `asyncrl doctor --probe` through the command of each, with a deadline, and reads its answer.
#
# A question goes through standard input, so that no shell on the way changes it and no list of processes shows it.

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


# ── survey ────────────────────────────────────────────────────────────────────────────────────

UNEXPECTED = NoAnswer("its answer belongs to another question: install the same asyncrl on all machines")


async def survey(cluster: ClusterMachines) -> ClusterFindings:
    """Ask every machine, and try every pair that connects. Each step has the deadline of the cluster."""
    async with _broker_listens(cluster) as listening:
        silent = {name: answer for name, answer in listening.items() if isinstance(answer, NoAnswer)}
        asked_now = [machine for machine in cluster.machine if machine.name not in silent]
        looked = await asyncio.gather(*(_look(cluster, machine) for machine in asked_now))
    looks: dict[str, Facts | Unable | NoAnswer] = silent | {
        machine.name: answer for machine, (answer, _) in zip(asked_now, looked, strict=True)
    }
    return ClusterFindings(
        cluster=cluster,
        looks=looks,
        clock_offsets_s={machine.name: offset_s for machine, (_, offset_s) in zip(asked_now, looked, strict=True)},
        # A broker that listens there already is no problem.
        bind_problem="".join(
            answer.reason for answer in listening.values() if isinstance(answer, Unable) and not answer.address_in_use
        ),
        transfers=await _transfers(cluster, looks),
    )


@asynccontextmanager
async def _broker_listens(cluster: ClusterMachines) -> AsyncIterator[dict[str, Listening | Unable | NoAnswer]]:
    """
    Listen on the broker's address, on the machine of the broker, while others try to connect to it.

    Yields the answer by name of the machine; nothing if no machine has the role broker.
    """
    machine = next((machine for machine in cluster.machine if "broker" in machine.roles), None)
    if machine is None:
        yield {}
        return
    question = Listen(
        host=host_of(cluster.broker),
        port=port_of(cluster.broker),
        token=secrets.token_hex(),
        listen_s=2 * cluster.deadline_s,
    )
    async with asked(machine, question, cluster.deadline_s) as answer:
        yield {machine.name: _expected(answer, Listening)}


async def _look(cluster: ClusterMachines, machine: Machine) -> tuple[Facts | Unable | NoAnswer, float]:
    """Facts of a machine, and its clock minus this one's, in seconds."""
    question = Look(
        broker_host=host_of(cluster.broker),
        broker_port=port_of(cluster.broker),
        address=machine.address,
        key=machine.key,
        model=cluster.model_of(machine),
        dir=machine.dir,
    )
    answer = _expected(await ask(machine, question, cluster.deadline_s), Facts)
    return answer, answer.clock_s - time.time() if isinstance(answer, Facts) else 0.0


async def _transfers(
    cluster: ClusterMachines, looks: Mapping[str, Facts | Unable | NoAnswer]
) -> dict[Pair, Sent | Unable | NoAnswer]:
    """Result of each pair that connects, of machines that told their address."""
    machines = {machine.name: machine for machine in cluster.machine}
    addresses = {name: facts.address for name, facts in looks.items() if isinstance(facts, Facts) and facts.address}
    found: dict[Pair, Sent | Unable | NoAnswer] = {}
    for pairs in rounds([pair for pair in connecting_pairs(cluster.machine) if addresses.keys() >= set(pair)]):
        done = await asyncio.gather(*(_transfer(cluster, machines[a], machines[b], addresses[b]) for a, b in pairs))
        found.update(zip(pairs, done, strict=True))
    return found


async def _transfer(
    cluster: ClusterMachines, sender: Machine, listener: Machine, host: str
) -> Sent | Unable | NoAnswer:
    token = secrets.token_hex()
    question = Listen(host=host, token=token, listen_s=cluster.deadline_s + cluster.transfer_s)
    async with asked(listener, question, cluster.deadline_s) as answer:
        listening = _expected(answer, Listening)
        if not isinstance(listening, Listening):
            return listening
        order = Send(host=host, port=listening.port, token=token, send_s=cluster.transfer_s)
        return _expected(await ask(sender, order, cluster.deadline_s + cluster.transfer_s), Sent)


A = TypeVar("A", Facts, Listening, Sent)


def _expected(answer: Answer | NoAnswer, kind: type[A]) -> A | Unable | NoAnswer:
    """The answer if it is of a kind, or the reason why there is none."""
    return answer if isinstance(answer, (kind, Unable, NoAnswer)) else UNEXPECTED
