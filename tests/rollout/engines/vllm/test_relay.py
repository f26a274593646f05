"""asyncrl/rollout/engines/vllm/relay.py"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import torch

from asyncrl.config.sections.weights import Weights
from asyncrl.errors import EngineDied, EngineError, TransferError
from asyncrl.messages.codec import Message
from asyncrl.messages.session import StoreGet, StoreSet, StoreValue
from asyncrl.messages.weights import Abort, Member, Transfer, TransferFailed
from asyncrl.rollout.engines.vllm import relay
from asyncrl.rollout.engines.vllm.relay import ReceiverSetup, ReceiverThread, WorkerChannel, WorkersReceiver
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.publish import Publisher
from asyncrl.weights.shared import SharedTensors, shared_staging
from asyncrl.weights.staging import Staging
from asyncrl.wire.addresses import LOOPBACK
from asyncrl.wire.memory import MemoryHub
from tests.weights.party import LONG_S, Rendezvous, forward, same
from tests.weights.shared_memory import shared_memory

MESSAGES: list[Message] = [
    Transfer(3, 7, [Member("trainer-0", "t"), Member("rollout-0", "r", 2)], True, 30.0),
    StoreValue("3", "rank/0", b"\x00\xff" * 100_000),
    StoreSet("3", "rank/1", b""),
    StoreGet("3", "rank/0"),
    Abort(3, "rollout-1 was silent"),
]


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[WorkerChannel, WorkerChannel]]:
    """Both ends of one socket."""
    arrived: asyncio.Queue[WorkerChannel] = asyncio.Queue()
    path = str(folder / "socket")
    server = await asyncio.start_unix_server(lambda *ends: arrived.put_nowait(WorkerChannel(*ends)), path)
    near = WorkerChannel(*await asyncio.open_unix_connection(path))
    far = await arrived.get()
    server.close()
    yield near, far
    near.close()
    far.close()
    await asyncio.sleep(0)  # Sockets are closed in the next turn.


def test_messages_arrive_unchanged_and_end_when_the_other_end_disconnects(tmp_path):
    async def play() -> list[Message]:
        async with pair(tmp_path) as (near, far):
            for message in MESSAGES:
                await near.send(message)
            near.close()
            return [message async for message in far]

    assert asyncio.run(play()) == MESSAGES


def test_a_truncated_message_ends_the_channel(tmp_path):
    async def play() -> list[Message]:
        async with pair(tmp_path) as (near, far):
            near.post(MESSAGES[2])
            near._writer.write(b"\x10\x00\x00\x00half")
            near.close()
            return [message async for message in far]

    assert asyncio.run(play()) == [MESSAGES[2]]


def test_sending_to_a_disconnected_end_is_a_connection_error(tmp_path):
    async def play() -> None:
        async with pair(tmp_path) as (near, far):
            far.close()
            with pytest.raises(ConnectionError):
                await asyncio.gather(*(near.send(MESSAGES[1]) for _ in range(100)))

    asyncio.run(play())


# ── test receiving ────────────────────────────────────────────────────────────────────────────
# A worker's receiver thread, between a socket and a transfer. Needs no vLLM.

CPU = torch.device("cpu")
NODE, TRAINER = Member("rollout-0", "r"), Member("trainer-0", "t")


async def answer_to(order: Transfer, folder: Path) -> Message:
    """Send one message to a receiver thread, return its answer, and wait for the thread to end."""
    connected: asyncio.Queue[WorkerChannel] = asyncio.Queue()
    path = str(folder / "socket")
    server = await asyncio.start_unix_server(lambda *ends: connected.put_nowait(WorkerChannel(*ends)), path)
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


# ── test relay ────────────────────────────────────────────────────────────────────────────────
# Relay and receiver threads: two workers of one engine, as threads instead of processes.

SPECS = [TensorSpec(name=name, shape=(100,), dtype="float32") for name in "abc"]
WEIGHTS = Weights(bucket_bytes=512)
TRAINER_RELAY, NODE_RELAY = Member("trainer-0", "t"), Member("rollout-0", "r", ranks=2)
SHORT_S = 0.3


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {spec.name: torch.full(spec.shape, value) for spec in SPECS}


def order(policy_version: int, *, transfer_group: int = 1, deadline_s: float = 20.0) -> Transfer:
    return Transfer(transfer_group, policy_version, [TRAINER_RELAY, NODE_RELAY], True, deadline_s)


class Workers:
    """Workers as vLLM's RPC reaches them."""

    def __init__(self, specs: list[TensorSpec], count: int) -> None:
        self._specs = specs
        self._count = count
        self.ends: list[ReceiverThread] = []

    async def call(self, method: str, setup_json: str) -> None:
        assert method == "asyncrl_connect"
        setup = msgspec.json.decode(setup_json, type=ReceiverSetup)
        setup = msgspec.structs.replace(setup, specs=self._specs)
        for local_rank in range(min(self._count, setup.member.ranks)):
            self.ends.append(ReceiverThread(setup, local_rank=local_rank, device=CPU, beside=CPU))
            self.ends[-1].start()

    async def engine_died(self) -> EngineDied:
        return EngineDied("it was killed")

    def values(self) -> list[dict[str, float]]:
        return [{name: float(t.mean()) for name, t in end.receiver.weights().items()} for end in self.ends]


@asynccontextmanager
async def engine(
    specs: list[TensorSpec] = SPECS, count: int = 2, *, node: Member = NODE_RELAY, staging: Staging | None = None
) -> AsyncIterator[tuple[Publisher, WorkersReceiver, Workers]]:
    hub = MemoryHub()
    trainer, link = hub.connect("trainer"), hub.connect("node")
    publisher = Publisher(Layout(SPECS, WEIGHTS.bucket_bytes), TRAINER_RELAY, trainer.send, WEIGHTS)
    workers = Workers(specs, count)
    connect = WorkersReceiver.connect
    receiver = await connect(
        workers.call,
        SPECS,
        node,
        link.send,
        WEIGHTS,
        interface=LOOPBACK,
        get_cause=workers.engine_died,
        staging=staging,
    )
    coroutines = [Rendezvous(hub).run(), forward(trainer, publisher), forward(link, receiver)]
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield publisher, receiver, workers
    finally:
        await receiver.aclose()
        await publisher.aclose()
        for task in tasks:
            task.cancel()
        for end in workers.ends:
            await asyncio.to_thread(end.join)


def test_every_worker_of_an_engine_receives_each_version():
    async def play() -> None:
        async with engine() as (publisher, receiver, workers):
            for version in (1, 2, 3):
                publisher.stage(version, tensors(version).items())
                _, seconds = await asyncio.gather(publisher.transfer(order(version)), receiver.transfer(order(version)))
                assert seconds > 0
                assert workers.values() == [dict.fromkeys("abc", float(version))] * 2
            assert receiver.weights() == {}, "the workers hold them"

    asyncio.run(play())


def test_one_worker_receives_for_all_into_memory_of_the_node():
    node = Member("rollout-0", "r", ranks=1)

    async def play() -> None:
        staging = shared_staging(Layout(SPECS, WEIGHTS.bucket_bytes))
        async with engine(node=node, staging=staging) as (publisher, receiver, workers):
            assert len(workers.ends) == 1
            for version in (1, 2):
                publisher.stage(version, tensors(version).items())
                sent = Transfer(1, version, [TRAINER_RELAY, node], True, LONG_S)
                await asyncio.gather(publisher.transfer(sent), receiver.transfer(sent))
                assert same(SharedTensors.locate(receiver.weights()).map(), tensors(float(version)))

            with pytest.raises(TransferError):
                await receiver.transfer(Transfer(1, 3, [TRAINER_RELAY, node], True, SHORT_S))
            with pytest.raises(TransferError, match="no complete policy version is staged"):
                receiver.weights()

        del staging
        assert shared_memory() == [], "closing frees it"

    asyncio.run(play())


def test_a_worker_with_another_model_is_named():
    async def play() -> None:
        other = [TensorSpec(name=name, shape=(99,), dtype="float32") for name in "abc"]
        async with engine(other) as (publisher, receiver, _):
            publisher.stage(1, tensors(1).items())
            ends = publisher.transfer(order(1)), receiver.transfer(order(1))
            _, failure = await asyncio.gather(*ends, return_exceptions=True)
            assert isinstance(failure, TransferError)
            assert re.match("worker [01] of the engine: .*different models", str(failure))

    asyncio.run(play())


def test_a_lost_worker_ends_the_engine_during_a_transfer_and_at_the_next(monkeypatch):
    async def play() -> None:
        async with engine() as (_, receiver, workers):
            for end in workers.ends:
                monkeypatch.setattr(end, "_transfer", _never)
            underway = asyncio.create_task(receiver.transfer(order(1)))
            await asyncio.sleep(0)
            receiver._channels[1].close()
            for transfer in (underway, receiver.transfer(order(2))):
                with pytest.raises(EngineDied, match=r"^worker 1 of the engine is gone: it was killed$"):
                    await transfer

    asyncio.run(play())


def test_any_error_of_a_worker_is_its_answer_and_the_next_transfer_may_succeed(monkeypatch):
    async def play() -> None:
        async with engine() as (publisher, receiver, workers):
            receives = workers.ends[0].receiver.transfer

            async def raises(order: Transfer) -> float:
                await receives(order)
                raise KeyError("embed")

            publisher.stage(1, tensors(1).items())
            with monkeypatch.context() as patch:
                patch.setattr(workers.ends[0].receiver, "transfer", raises)
                with pytest.raises(TransferError, match=r"worker [01] of the engine: KeyError: 'embed'"):
                    await asyncio.gather(publisher.transfer(order(1)), receiver.transfer(order(1)))
            publisher.stage(2, tensors(2).items())
            await asyncio.gather(
                publisher.transfer(order(2, transfer_group=2)), receiver.transfer(order(2, transfer_group=2))
            )

    asyncio.run(play())


def test_an_abort_reaches_every_worker_and_late_answers_do_not_disturb_the_next_transfer():
    async def play() -> None:
        async with engine() as (publisher, receiver, workers):
            underway = asyncio.create_task(receiver.transfer(order(1, deadline_s=1000.0)))
            await asyncio.sleep(0)
            receiver.abort(Abort(1, "rollout-1 was silent"))
            async with asyncio.timeout(LONG_S):
                with pytest.raises(TransferError, match=r"worker [01] of the engine: .*rollout-1 was silent"):
                    await underway
            publisher.stage(1, tensors(1).items())
            again = order(1, transfer_group=2)
            await asyncio.gather(publisher.transfer(again), receiver.transfer(again))
            assert workers.values() == [dict.fromkeys("abc", 1.0)] * 2

    asyncio.run(play())


def test_a_worker_that_does_not_answer_is_named_after_the_deadline(monkeypatch):
    monkeypatch.setattr(relay, "GRACE_S", SHORT_S)

    async def play() -> None:
        async with engine() as (_, receiver, workers):
            for end in workers.ends:
                monkeypatch.setattr(end, "_transfer", _never)
            with pytest.raises(TransferError, match=r"worker 0 of the engine does not answer: .*had 0.01 s"):
                await receiver.transfer(order(1, deadline_s=0.01))

    asyncio.run(play())


def test_workers_that_do_not_connect_are_an_engine_error(monkeypatch):
    monkeypatch.setattr(relay, "CONNECT_S", SHORT_S)

    async def play() -> None:
        async with engine(count=0):
            pass

    with pytest.raises(EngineError, match=r"2 workers did not connect within 0\.3 s"):
        asyncio.run(play())


async def _never(_: Transfer) -> None:
    """Does not answer."""
