"""
One end of a weight transfer, on the interface that it finds: ``transfer_process.py trainer|rollout BROKER SECRET``.

The trainer's process also is the broker, as far as a transfer needs one. Each end writes a line of JSON to stdout:
``interface``, the address on which it listened, and ``digest`` of the weights, or ``error``.
"""

import asyncio
import json
import sys
from pathlib import Path

import torch

from asyncrl.config.sections.weights import Weights
from asyncrl.errors import TransferError
from asyncrl.files.access import read_secret
from asyncrl.messages.session import Bye
from asyncrl.messages.weights import Abort, Member, Transfer
from asyncrl.messages.wire import CODEC
from asyncrl.runtime.local_address import local_address
from asyncrl.weights.publish import Publisher, Receiver
from asyncrl.wire.addresses import port_of, tcp
from asyncrl.wire.curve import hub_keys_of
from asyncrl.wire.memory import MemoryLink
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink
from tests.weights.party import Rendezvous, forward
from tests.weights.receiving_process import LAYOUT, digest

TRAINER, ROLLOUT = Member("trainer", "t1"), Member("rollout", "r1")
DEADLINE_S = 60.0


async def train(run: RunAddress, interface: str) -> str:
    """Send one version to the rollout once it is there; returns the digest of what was sent."""
    hub = ZmqHub(tcp("*", port_of(run.broker)), CODEC, keys=hub_keys_of(read_secret(Path(sys.argv[3]))))
    link: MemoryLink = hub.local.connect("trainer")
    rendezvous = Rendezvous(hub)
    publisher = Publisher(LAYOUT, TRAINER, link.send, Weights(), interface=interface)
    tasks = [asyncio.create_task(rendezvous.run()), asyncio.create_task(forward(link, publisher))]
    weights = {spec.name: torch.randn(spec.shape) for spec in LAYOUT.specs}
    publisher.stage(1, weights.items())
    try:
        await rendezvous.others.get()
        order = Transfer(1, 1, [TRAINER, ROLLOUT], True, DEADLINE_S)
        hub.send("rollout", order)
        moving = asyncio.create_task(publisher.transfer(order))
        _, answer = await rendezvous.others.get()
        if isinstance(answer, Bye) and answer.reason != digest(weights):
            publisher.abort(Abort(1, answer.reason))
        await moving
        return digest(weights)
    finally:
        for task in tasks:
            task.cancel()
        await publisher.aclose()
        await hub.aclose()


async def roll_out(run: RunAddress, interface: str) -> str:
    """Receive one version; returns its digest."""
    link = ZmqLink(run.broker, "rollout", CODEC, keys=run.keys())
    receiver = Receiver(LAYOUT, ROLLOUT, link.send, Weights(), interface=interface)
    await link.send(Bye("ready"))
    order = await link.receive()
    assert isinstance(order, Transfer)
    forwarding = asyncio.create_task(forward(link, receiver))
    try:
        await receiver.transfer(order)
        await link.send(Bye(received := digest(receiver.weights())))
        return received
    except TransferError as error:
        await link.send(Bye(str(error)))
        raise
    finally:
        forwarding.cancel()
        await receiver.aclose()
        await link.aclose()


async def main(role: str, run: RunAddress) -> dict[str, str]:
    interface = local_address(run.broker, "")
    try:
        async with asyncio.timeout(DEADLINE_S):
            return {"interface": interface, "digest": await ENDS[role](run, interface)}
    except TransferError as error:
        return {"interface": interface, "error": str(error)}


ENDS = {"trainer": train, "rollout": roll_out}


if __name__ == "__main__":
    role, broker, secret = sys.argv[1:]
    result = asyncio.run(main(role, RunAddress(broker, Path(secret))))
    sys.stdout.write(json.dumps(result) + "\n")
