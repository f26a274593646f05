"""
Asks all machines of a cluster.

    listen on the broker's address, unless a broker does ─▶ facts of all machines, at once ─▶ transfers, in rounds
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from asyncrl.node.machine.cluster.cluster_file import Cluster, Machine
from asyncrl.node.machine.cluster.findings import Findings
from asyncrl.node.machine.cluster.pairs import Pair, connecting_pairs, rounds
from asyncrl.node.machine.cluster.probe_messages import (
    Answer,
    Facts,
    Listen,
    Listening,
    Look,
    NoAnswer,
    Send,
    Sent,
    Unable,
)
from asyncrl.node.machine.cluster.remote import ask, asked

UNEXPECTED = NoAnswer("its answer belongs to another question: install the same asyncrl on all machines")


async def survey(cluster: Cluster) -> Findings:
    """Ask every machine, and try every pair that connects. Each step has the deadline of the cluster."""
    async with _broker_listens(cluster) as listening:
        silent = {name: answer for name, answer in listening.items() if isinstance(answer, NoAnswer)}
        asked_now = [machine for machine in cluster.machine if machine.name not in silent]
        looked = await asyncio.gather(*(_look(cluster, machine) for machine in asked_now))
    looks: dict[str, Facts | Unable | NoAnswer] = silent | {
        machine.name: answer for machine, (answer, _) in zip(asked_now, looked, strict=True)
    }
    return Findings(
        cluster=cluster,
        looks=looks,
        clock_offsets_s={machine.name: offset_s for machine, (_, offset_s) in zip(asked_now, looked, strict=True)},
        bind_problem="".join(map(_bind_problem, listening.values())),
        transfers=await _transfers(cluster, looks),
    )


@asynccontextmanager
async def _broker_listens(cluster: Cluster) -> AsyncIterator[dict[str, Listening | Unable | NoAnswer]]:
    """
    Listen on the broker's address, on the machine of the broker, while others try to connect to it.

    Yields the answer by name of the machine; nothing if no machine has the role broker.
    """
    machine = next((machine for machine in cluster.machine if "broker" in machine.roles), None)
    if machine is None:
        yield {}
        return
    question = Listen(
        host=cluster.broker_host,
        port=cluster.broker_port,
        token=secrets.token_hex(),
        listen_s=2 * cluster.deadline_s,
    )
    async with asked(machine, question, cluster.deadline_s) as answer:
        yield {machine.name: _expected(answer, Listening)}


def _bind_problem(answer: Listening | Unable | NoAnswer) -> str:
    """Reason why the broker's address cannot be listened on; a broker that does it already is none."""
    return answer.reason if isinstance(answer, Unable) and not answer.address_in_use else ""


async def _look(cluster: Cluster, machine: Machine) -> tuple[Facts | Unable | NoAnswer, float]:
    """Facts of a machine, and its clock minus this one's, in seconds."""
    question = Look(
        broker_host=cluster.broker_host,
        broker_port=cluster.broker_port,
        address=machine.address,
        key=machine.key,
        model=cluster.model_of(machine),
        dir=machine.dir,
    )
    answer = _expected(await ask(machine, question, cluster.deadline_s), Facts)
    return answer, answer.clock_s - time.time() if isinstance(answer, Facts) else 0.0


async def _transfers(
    cluster: Cluster, looks: Mapping[str, Facts | Unable | NoAnswer]
) -> dict[Pair, Sent | Unable | NoAnswer]:
    """Result of each pair that connects, of machines that told their address."""
    machines = {machine.name: machine for machine in cluster.machine}
    addresses = {name: facts.address for name, facts in looks.items() if isinstance(facts, Facts) and facts.address}
    found: dict[Pair, Sent | Unable | NoAnswer] = {}
    for pairs in rounds([pair for pair in connecting_pairs(cluster.machine) if addresses.keys() >= set(pair)]):
        done = await asyncio.gather(*(_transfer(cluster, machines[a], machines[b], addresses[b]) for a, b in pairs))
        found.update(zip(pairs, done, strict=True))
    return found


async def _transfer(cluster: Cluster, sender: Machine, listener: Machine, host: str) -> Sent | Unable | NoAnswer:
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
