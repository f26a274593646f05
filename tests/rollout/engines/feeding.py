"""A trainer's publisher connected to an engine of either kind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from transformers import PreTrainedModel

from asyncrl.config.sections.weights import Weights
from asyncrl.engine import Engine, MultiProcessEngine, WeightReceiver
from asyncrl.messages.weights import Member, Transfer
from asyncrl.runtime.rollout import receiving_ranks
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.contents.names import checkpoint_specs, checkpoint_tensors
from asyncrl.weights.publish import Publisher, Receiver
from asyncrl.wire.addresses import LOOPBACK
from asyncrl.wire.memory import MemoryHub
from tests.weights.party import Rendezvous, forward

TRAINER = Member("trainer-0", "t")


class Feed:
    """Publishes weights as trainer and rollout actor do together."""

    def __init__(
        self, engine: Engine, member: Member, publisher: Publisher, receiver: WeightReceiver, *, is_in_place: bool
    ) -> None:
        self._engine = engine
        self._member = member
        self._publisher = publisher
        self._receiver = receiver
        self._is_in_place = is_in_place

    async def publish(self, model: PreTrainedModel, policy_version: int) -> None:
        """Return once the engine decodes with the model's weights."""
        self._publisher.stage(policy_version, checkpoint_tensors(model))
        order = Transfer(1, policy_version, [TRAINER, self._member], True, 30.0)
        if self._is_in_place:
            await self._engine.pause()
        await asyncio.gather(self._publisher.transfer(order), self._receiver.transfer(order))
        await self._engine.pause()
        await self._engine.swap(policy_version, self._receiver.weights())
        await self._engine.resume()


@asynccontextmanager
async def feed(engine: Engine, model: PreTrainedModel, weights: Weights) -> AsyncIterator[Feed]:
    hub = MemoryHub()
    trainer, node = hub.connect("trainer"), hub.connect("node")
    member = Member("rollout-0", "r", receiving_ranks(engine, weights))
    layout = Layout(checkpoint_specs(model, "float32"), weights.bucket_bytes)
    publisher = Publisher(layout, TRAINER, trainer.send, weights)
    receiver: WeightReceiver
    if isinstance(engine, MultiProcessEngine):
        receiver = await engine.receiver(member, node.send, weights, interface=LOOPBACK)
    else:
        receiver = Receiver(layout, member, node.send, weights)
    coroutines = [Rendezvous(hub).run(), forward(trainer, publisher), forward(node, receiver)]
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield Feed(engine, member, publisher, receiver, is_in_place=weights.staging == "bucket")
    finally:
        await receiver.aclose()
        await publisher.aclose()
        for task in tasks:
            task.cancel()
