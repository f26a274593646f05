"""A broker actor in a run directory, and links to it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from asyncrl.broker import actor, ending
from asyncrl.broker.actor import BrokerActor
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.replay import replay
from asyncrl.config.config import Config
from asyncrl.errors import RunFailed
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Bye, Hello, Stop, Welcome
from asyncrl.messages.spool import SpoolAddress, Stored
from asyncrl.messages.supervisor import Finished
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role
from asyncrl.records.events import EventKind
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.wire.memory import MemoryHub, MemoryLink
from tests.broker.driver import SPOOL, Node, a_config, a_scheduler

CONFIG = a_config(
    run={"steps": 3, "seed": 5},
    data={"train": "train.jsonl", "held_out": "held_out.jsonl"},
    evaluation={"every_versions": 0},
    checkpoint={"every_steps": 1},
    broker={"samples": False},
)


class WatchedDirectory(RunDirectory):
    """Sets an event after each append."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.appended = asyncio.Event()

    def append_event(self, kind: EventKind, /, **fields: object) -> None:
        super().append_event(kind, **fields)
        self.appended.set()

    def append_metrics(self, metrics: Mapping[str, float]) -> None:
        super().append_metrics(metrics)
        self.appended.set()


class House:
    """A broker in a run directory, and links to it."""

    def __init__(self, parent: Path, config: Config = CONFIG) -> None:
        self.config = config
        self.now_s = 100.0
        path = parent / "run"
        self.directory = WatchedDirectory(path if path.exists() else RunDirectory.create(parent, "run").path)
        self.hub = MemoryHub()
        self.ledger = Ledger(self.directory.ledger)
        self.scheduler = a_scheduler(config, num_held_out=2, broker_term=self.ledger.broker_term)
        replay(self.scheduler, read_records(self.directory.ledger))
        self.broker = BrokerActor(
            config,
            self.scheduler,
            self.hub,
            self.ledger,
            self.directory,
            connect=lambda _: MemoryHub().connect("broker"),
            run_id="run-1",
            broker_term=self.ledger.broker_term,
            clock=lambda: self.now_s,
        )

    async def joined(self, role: Role, name: str, incarnation: str = "0", *, protocol: int = PROTOCOL) -> MemoryLink:
        """Connect and say Hello."""
        link = self.hub.connect(f"{name}.{incarnation}")
        spool = SpoolAddress(name, "tcp://127.0.0.1:5555") if role == "spool" else None
        await link.send(Hello(protocol, role, name, incarnation, spool=spool))
        return link

    async def welcomed(self, role: Role, name: str) -> MemoryLink:
        link = await self.joined(role, name)
        assert isinstance(await link.receive(), Welcome)
        return link

    async def play(self, node: Node, spool: list[Stored]) -> None:
        """Run a fake node until it gets `Stop`."""
        link = self.hub.connect(node.peer)
        while True:
            while node.outbox:
                await link.send(node.outbox.popleft())
            while spool:
                self.hub.deliver(SPOOL, spool.pop())
            if actions := node.actions():
                actions[0][1]()
                continue
            message = await link.receive()
            if isinstance(message, Stop):
                await link.send(Bye("done"))
                return
            node.take(message)

    async def happened(self, kind: str, times: int = 1) -> None:
        while len(self.events(kind)) < times:
            self.directory.appended.clear()
            await self.directory.appended.wait()

    async def stepped(self, step: int) -> None:
        while not any(line["step"] == step for line in self.directory.read_metrics()):
            self.directory.appended.clear()
            await self.directory.appended.wait()

    def events(self, kind: str) -> list[dict[str, object]]:
        return [event for event in self.directory.read_events() if event["event"] == kind]

    @property
    def summary(self) -> RunSummary:
        summary = self.directory.read_summary()
        assert summary
        return summary

    @property
    def cause(self) -> str:
        return self.summary.cause


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tick fast, and do not wait for nodes that never say Bye."""
    monkeypatch.setattr(actor, "TICK_S", 0.001)
    monkeypatch.setattr(ending, "GOODBYE_S", 0.05)


def run(parent: Path, script: Callable[[House], Awaitable[None]], config: Config = CONFIG) -> House:
    """Run ``script`` beside the broker, then stop the broker."""

    async def main() -> House:
        house = House(parent, config)
        running = asyncio.create_task(house.broker.run())
        try:
            await script(house)
            house.broker.stop()
            await asyncio.wait([running])
            if (error := running.exception()) and not isinstance(error, RunFailed):
                raise error
        finally:
            running.cancel()
            await asyncio.wait([running])
            house.ledger.close()
        if error:
            assert str(error) == house.cause
        return house

    return asyncio.run(main())


async def ended(*links: MemoryLink) -> list[Message]:
    """Wait for the end and say Bye on each link. Returns the last message to each."""
    last: list[Message] = []
    for link in links:
        while not isinstance(message := await link.receive(), Stop | Finished):
            pass
        last.append(message)
        await link.send(Bye("done"))
    return last
