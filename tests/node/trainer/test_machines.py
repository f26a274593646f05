"""A machine waits for the others, trains with them as first or further one, and leaves with the cause."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import msgspec
import pytest

from asyncrl.actor.link import Link
from asyncrl.actor.memory import MemoryHub
from asyncrl.actor.message import Message
from asyncrl.actor.supervise import Child
from asyncrl.client.handshake import identity
from asyncrl.client.run_address import RunAddress
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError, LinkReset, MachineLost, RankDied
from asyncrl.messages.session import Beat, Bye, Draining, Stop, StoreGet, StoreSet, StoreValue, Welcome
from asyncrl.messages.spool import SpoolSet
from asyncrl.messages.trainer import Assembled, Disbanded, TrainerMachine
from asyncrl.node.runner import ToldToStop
from asyncrl.node.trainer import machines
from asyncrl.node.trainer.first_rank import Work
from asyncrl.node.trainer.machines import machine_hello, train_together
from asyncrl.node.trainer.place import HubAddress, Place, Session

CONFIG = decode({"model": {"path": "m"}, "data": {"train": "t"}, "trainer": {"nodes": 2}})
MACHINES = [TrainerMachine("a", "host-a"), TrainerMachine("b", "host-b")]
HUB = HubAddress("tcp://a:1", b"secret")
SLEEPS = "import time; time.sleep(60)"


class Stage:
    """Machine ``node`` and its broker."""

    def __init__(self, node: str) -> None:
        self.who = identity("trainer", node)
        self.hub = MemoryHub()
        self.link = self.hub.connect(self.who.peer)
        self.session = Session(
            CONFIG, RunAddress("ipc://x"), self.who, Welcome(1, "", b"", SpoolSet(), 60.0), "127.0.0.1"
        )
        self.stopping = asyncio.Event()

    def train(self, work: Callable[[Link], Work]) -> "asyncio.Task[None]":
        return asyncio.create_task(train_together(self.session, self.link, work, self.stopping))

    def say(self, message: Message) -> None:
        self.hub.send(self.who.peer, message)

    async def heard(self) -> Message:
        while isinstance(message := (await self.hub.receive())[1], Beat):
            pass
        return message


def no_work(_: Link) -> Work:
    raise AssertionError("only the first machine trains")


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Programs of the ranks that a further machine starts. Each name is that of its rank."""
    programs: list[str] = []

    async def start(stack: AsyncExitStack, _: Session, place: Place, hub: HubAddress, *, leave_s: float) -> list[Child]:
        assert hub == HUB
        names = [place.names[rank] for rank in place.own]
        command = [sys.executable, "-c"]
        children = [Child(name, [*command, program], None, {}) for name, program in zip(names, programs, strict=True)]
        for child in children:
            stack.push_async_callback(child.end, leave_s)
            await child.start()
        return children

    monkeypatch.setattr(machines, "start_ranks", start)
    return programs


async def following(stage: Stage) -> "asyncio.Task[None]":
    """The further machine, whose ranks have an address to connect to."""
    training = stage.train(no_work)
    stage.say(Assembled(3, MACHINES))
    assert await stage.heard() == StoreGet("trainer-3", "hub")
    stage.say(StoreValue("trainer-3", "hub", msgspec.msgpack.encode(HUB)))
    return training


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await scene()

    asyncio.run(main())


def test_a_machine_names_its_host_when_it_says_hello() -> None:
    assert machine_hello(identity("trainer", "a")).host == socket.gethostname()


def test_a_machine_that_waits_leaves_when_it_is_told_to_stop() -> None:
    async def scene() -> None:
        stage = Stage("a")
        training = stage.train(no_work)
        stage.stopping.set()
        with pytest.raises(ToldToStop):
            await training
        assert await stage.heard() == Bye("told to stop")

    play(scene)


def test_a_machine_that_waits_leaves_when_the_run_is_over() -> None:
    async def scene() -> None:
        stage = Stage("a")
        training = stage.train(no_work)
        stage.say(Stop("over"))
        await training
        assert await stage.heard() == Bye("done")

    play(scene)


def test_the_first_machine_tells_where_its_hub_is_and_ends_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def with_ranks(session, work, place, *, announce, lost):
        assert (place.index, place.size) == (0, 2)
        await announce(HUB)
        raise await lost

    monkeypatch.setattr(machines, "with_ranks", with_ranks)

    async def scene() -> None:
        stage = Stage("a")
        training = stage.train(lambda _: None)  # type: ignore[arg-type,return-value]
        stage.say(Assembled(3, MACHINES))
        assert await stage.heard() == StoreSet("trainer-3", "hub", msgspec.msgpack.encode(HUB))
        stage.say(Disbanded("b on host-b (rank 1) was lost"))
        with pytest.raises(MachineLost, match="b on host-b"):
            await training
        assert await stage.heard() == Bye("MachineLost: b on host-b (rank 1) was lost")

    play(scene)


def test_a_further_machine_runs_its_ranks_to_their_end(ranks: list[str]) -> None:
    ranks.append("")

    async def scene() -> None:
        stage = Stage("b")
        await (await following(stage))
        assert await stage.heard() == Bye("done")

    play(scene)


@pytest.mark.parametrize(
    ("program", "kind"), [("raise SystemExit(78)", ConfigError), ("import os; os.abort()", RankDied)]
)
def test_a_rank_that_fails_ends_its_machine_with_the_cause(
    ranks: list[str], program: str, kind: type[Exception]
) -> None:
    ranks.append(program)

    async def scene() -> None:
        stage = Stage("b")
        with pytest.raises(kind, match="b-rank-1 ") as raised:
            await (await following(stage))
        assert raised.type is kind, "no other machine is to blame"
        assert await stage.heard() == Bye(f"{kind.__name__}: {raised.value}")

    play(scene)


def test_the_loss_of_the_first_machine_ends_the_ranks_of_the_others(ranks: list[str]) -> None:
    ranks.append(SLEEPS)

    async def scene() -> None:
        stage = Stage("b")
        training = await following(stage)
        stage.say(Disbanded("a on host-a (rank 0) was lost: silent for 10 s"))
        with pytest.raises(MachineLost, match="a on host-a"):
            await training

    play(scene)


def test_a_restart_of_the_broker_ends_the_ranks(ranks: list[str]) -> None:
    ranks.append(SLEEPS)

    async def scene() -> None:
        stage = Stage("b")
        training = await following(stage)
        stage.hub.forget(stage.who.peer)
        with pytest.raises(LinkReset):
            await training

    play(scene)


def test_a_further_machine_that_is_told_to_stop_says_so(ranks: list[str]) -> None:
    ranks.append(SLEEPS)

    async def scene() -> None:
        stage = Stage("b")
        training = await following(stage)
        stage.stopping.set()
        assert await stage.heard() == Draining(), "it first has a checkpoint written"
        stage.say(Disbanded("b on host-b (rank 1) is to stop, and a checkpoint has just been written"))
        await training
        assert await stage.heard() == Bye("told to stop")

    play(scene)


def test_a_further_machine_leaves_without_a_checkpoint_after_a_while(
    ranks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.append(SLEEPS)
    monkeypatch.setattr(machines, "DRAIN_S", 0.0)

    async def scene() -> None:
        stage = Stage("b")
        training = await following(stage)
        stage.stopping.set()
        await training
        assert await stage.heard() == Draining()
        assert await stage.heard() == Bye("told to stop")

    play(scene)
