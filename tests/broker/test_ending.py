"""Who is told of the end of a run, in which order."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from asyncrl.broker import ending
from asyncrl.broker.ending import RunEnding
from asyncrl.broker.nodes.node import NodeBook
from asyncrl.errors import LinkReset, RunFailed, RunInterrupted
from asyncrl.messages.session import Drain, Hello, Stop
from asyncrl.messages.spool import SpoolAddress
from asyncrl.messages.supervisor import Finished
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role
from asyncrl.wire.memory import MemoryHub, MemoryLink


class Stage:
    """An ending with nodes that the test plays."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.nodes = NodeBook()
        self.events: list[str] = []
        files: Any = SimpleNamespace(
            conclude=lambda cause, **_: cause, event=lambda kind, **_: self.events.append(kind)
        )
        samples: Any = SimpleNamespace(wait=self._written)
        self.ending = RunEnding(self.nodes, self.hub, files, samples)

    async def _written(self, _: float | None) -> None:
        self.events.append("samples")

    def join(self, role: Role, name: str) -> MemoryLink:
        spool = SpoolAddress(name, "memory") if role == "spool" else None
        node = self.nodes.join(f"{name}.1", Hello(PROTOCOL, role, name, "1", spool=spool), 0.0)
        node.is_ready = True
        return self.hub.connect(f"{name}.1")

    def leaves(self, name: str) -> None:
        self.nodes.leave(f"{name}.1")
        self.ending.nodes_changed()


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await scene(Stage())

    asyncio.run(main())


def test_spools_serve_until_all_others_have_left() -> None:
    async def scene(stage: Stage) -> None:
        trainer, spool = stage.join("trainer", "trainer-0"), stage.join("spool", "far")
        saying = asyncio.create_task(stage.ending.say_goodbye())
        assert await trainer.receive() == Stop("the run is complete")
        hearing = asyncio.create_task(spool.receive())
        await asyncio.sleep(0)
        assert not hearing.done()
        stage.leaves("trainer-0")
        assert await hearing == Stop("the run is complete")
        stage.leaves("far")
        await saying

    play(scene)


def test_the_broker_waits_for_nobody_longer_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "GOODBYE_S", 0.01)

    async def scene(stage: Stage) -> None:
        reward, spool = stage.join("reward", "reward-0"), stage.join("spool", "far")
        stage.ending.stop("the disk is full")
        await stage.ending.say_goodbye()
        assert await reward.receive() == await spool.receive() == Stop("the disk is full", failed=True)
        assert type(stage.ending.error) is RunFailed

    play(scene)


def test_an_interrupted_run_has_the_trainer_and_then_rollouts_store_what_they_have() -> None:
    async def scene(stage: Stage) -> None:
        trainer, rollout = stage.join("trainer", "trainer-0"), stage.join("rollout", "rollout-0")
        supervisor = stage.join("supervisor", "supervisor-0")
        stage.ending.stop("the run was interrupted", is_interrupted=True)
        saying = asyncio.create_task(stage.ending.say_goodbye())
        assert await trainer.receive() == Drain("trainer-0")
        stage.leaves("trainer-0")
        assert await rollout.receive() == Drain("rollout-0")
        stage.leaves("rollout-0")
        assert await supervisor.receive() == Finished("interrupted", "the run was interrupted")
        stage.leaves("supervisor-0")
        await saying
        assert stage.events == ["run.interrupted", "samples"]
        assert isinstance(stage.ending.error, RunInterrupted)

    play(scene)


def test_links_of_a_suspended_run_are_reset() -> None:
    async def scene(stage: Stage) -> None:
        trainer = stage.join("trainer", "trainer-0")
        stage.ending.suspend("told to stop")
        await stage.ending.say_goodbye()
        with pytest.raises(LinkReset):
            await trainer.receive()
        assert stage.events == ["samples", "run.suspended"]

    play(scene)


def test_the_first_end_counts() -> None:
    async def scene(stage: Stage) -> None:
        assert stage.ending.stop("the disk is full")
        assert not stage.ending.stop("the run was interrupted", is_interrupted=True)
        stage.ending.suspend("told to stop")
        assert (stage.ending.cause, stage.ending.is_suspended) == ("the disk is full", False)

    play(scene)
