"""A worker's receiver thread, between a socket and a transfer. Needs no vLLM."""

import asyncio
from pathlib import Path

import torch

from asyncrl.actor.message import Message
from asyncrl.config.addresses import LOOPBACK
from asyncrl.config.sections.weights import Weights
from asyncrl.messages.weights import Member, Transfer, TransferFailed
from asyncrl.rollout.engines.vllm.channel import Channel, ReceiverSetup
from asyncrl.rollout.engines.vllm.receiving import ReceiverThread
from asyncrl.weights.contents.layout import TensorSpec

CPU = torch.device("cpu")
NODE, TRAINER = Member("rollout-0", "r"), Member("trainer-0", "t")


async def answer_to(order: Transfer, folder: Path) -> Message:
    """Send one message to a receiver thread, return its answer, and wait for the thread to end."""
    connected: asyncio.Queue[Channel] = asyncio.Queue()
    path = str(folder / "socket")
    server = await asyncio.start_unix_server(lambda *ends: connected.put_nowait(Channel(*ends)), path)
    specs = [TensorSpec(name="w", shape=(4,), dtype="float32")]
    setup = ReceiverSetup(socket_path=path, member=NODE, specs=specs, weights=Weights(), interface=LOOPBACK)
    thread = ReceiverThread(setup, local_rank=0, device=CPU, beside=CPU)
    thread.start()
    channel = await connected.get()
    await channel.send(order)
    answer = await anext(aiter(channel))
    channel.close()
    await asyncio.to_thread(thread.join)
    server.close()
    return answer


def test_a_failed_transfer_is_answered_and_the_thread_ends_when_the_node_disconnects(tmp_path: Path) -> None:
    order = Transfer(3, 7, [NODE, TRAINER], True, 5.0)  # the trainer must be first

    answer = asyncio.run(answer_to(order, tmp_path))

    assert isinstance(answer, TransferFailed)
    assert (answer.transfer_group, answer.policy_version) == (3, 7)
    assert "rank 0" in answer.reason
