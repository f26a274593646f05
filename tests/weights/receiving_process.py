"""
A rollout's `Receiver` as a process: ``receiving_process.py ADDRESS NODE SIGNAL VERSION``.

It sends itself SIGNAL (0: never) before the second bucket of policy version VERSION.
"""

import asyncio
import hashlib
import os
import sys
from collections.abc import Mapping

from torch import Tensor

from asyncrl.config.sections.weights import Weights
from asyncrl.errors import TransferError
from asyncrl.messages.session import Bye, Stop, StoreValue
from asyncrl.messages.weights import Abort, Member, Transfer, TransferFailed
from asyncrl.messages.wire import CODEC
from asyncrl.weights.contents.header import HEADER_FORMAT
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.groups.group import LibraryGroup
from asyncrl.weights.groups.network_interface import Deadline
from asyncrl.weights.publish import Receiver
from asyncrl.wire.zmq_link import ZmqLink

LAYOUT = Layout([TensorSpec(name=name, shape=(1 << 20,), dtype="float32") for name in "abcdef"], 4 << 20)


def die_in_second_bucket(signal: int, policy_version: int) -> None:
    """Count versions by their headers. There must be later buckets: a signal may take effect a moment late."""
    broadcast = LibraryGroup.broadcast
    version = bucket = 0

    def counted(self: LibraryGroup, tensor: Tensor, root: int, deadline: Deadline) -> None:
        nonlocal version, bucket
        version, bucket = (version + 1, 0) if len(tensor) == HEADER_FORMAT.size else (version, bucket + 1)
        if (version, bucket) == (policy_version, 2):
            os.kill(os.getpid(), signal)
        broadcast(self, tensor, root, deadline)

    LibraryGroup.broadcast = counted  # type: ignore[method-assign]


async def main(address: str, node: str) -> None:
    link = ZmqLink(address, node, CODEC)
    receiver = Receiver(LAYOUT, Member(node, "r1"), link.send, Weights())

    async def receive(transfer: Transfer) -> None:
        try:
            await receiver.transfer(transfer)
        except TransferError as error:
            await link.send(TransferFailed(transfer.transfer_group, transfer.policy_version, str(error)))
        else:
            await link.send(Bye(digest(receiver.weights())))

    await link.send(Bye("ready"))
    async with asyncio.TaskGroup() as tasks:
        async for message in link:
            match message:
                case StoreValue():
                    receiver.deliver(message)
                case Abort():
                    receiver.abort(message)
                case Transfer():
                    tasks.create_task(receive(message))
                case Stop():
                    break
    await receiver.aclose()
    await link.aclose()


def digest(weights: Mapping[str, Tensor]) -> str:
    """sha256 of all bytes, in the layout's order."""
    return hashlib.sha256(b"".join(weights[spec.name].numpy().tobytes() for spec in LAYOUT.specs)).hexdigest()


if __name__ == "__main__":
    if signal := int(sys.argv[3]):
        die_in_second_bucket(signal, int(sys.argv[4]))
    asyncio.run(main(*sys.argv[1:3]))
