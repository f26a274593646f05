"""Checkpoints are in the run directory where it is visible, and in this machine's state elsewhere."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.config.config import to_json
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError, LinkRefused, LinkReset, MachineLost, RankDied
from asyncrl.files.checkpoints import step_folders
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Beat, Bye, Draining, Reject, Stop, StoreGet, StoreSet, StoreValue, Welcome
from asyncrl.messages.spool import SpoolAddress, SpoolSet
from asyncrl.messages.trainer import Assembled, Disbanded, Take, TrainerMachine
from asyncrl.messages.wire import CODEC
from asyncrl.runtime import trainer_machines
from asyncrl.runtime.ranks import HubAddress, MachinePlace
from asyncrl.runtime.sessions import NodeSession, RunNode, ToldToStop
from asyncrl.runtime.trainer_machines import (
    MemberLink,
    checkpoint_folder,
    checkpoint_sender,
    fetch_checkpoint,
    train_together,
)
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.checkpoints import CheckpointStore, FileServer
from asyncrl.spool.segments import Segments
from asyncrl.wire.handshake import hello, identity
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.workers.child import Child
from tests.files.test_checkpoints import write_checkpoint


def folder(run_dir: Path, run_id: str, state: Path) -> Path:
    welcome = Welcome(1, str(run_dir), b"", SpoolSet(), 1.0, run_id)
    return checkpoint_folder(welcome, {"XDG_STATE_HOME": str(state)})


def test_the_run_directory_holds_them_if_its_ledger_is_that_of_the_run(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        assert folder(tmp_path, ledger.run_id, tmp_path) == tmp_path / "checkpoints"
        assert folder(tmp_path, "another", tmp_path) == tmp_path / "asyncrl/runs/another/checkpoints"


def test_a_machine_without_the_run_directory_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert folder(tmp_path / "elsewhere", "r", tmp_path) == tmp_path / "asyncrl/runs/r/checkpoints"


def test_a_damaged_ledger_is_none_of_this_run(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("no ledger")
    assert folder(tmp_path, "r", tmp_path) == tmp_path / "asyncrl/runs/r/checkpoints"


def test_without_a_state_home_it_is_below_the_home(tmp_path: Path) -> None:
    welcome = Welcome(1, str(tmp_path), b"", SpoolSet(), 1.0, "r")
    assert checkpoint_folder(welcome, {"HOME": "/h"}) == Path("/h/.local/state/asyncrl/runs/r/checkpoints")


def test_a_run_without_an_identity_has_them_in_its_directory(tmp_path: Path) -> None:
    assert folder(tmp_path, "", tmp_path) == tmp_path / "checkpoints"


# ── test machines ─────────────────────────────────────────────────────────────────────────────
# A machine waits for the others, trains with them as first or further one, and leaves with the cause.

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
        self.stopping = asyncio.Event()

    def train(self, work: Callable[..., Awaitable[None]]) -> "asyncio.Task[None]":
        node = RunNode(self.who, RunAddress("ipc://x"), wait_s=None, stopping=self.stopping)
        session = NodeSession(node, self.who, self.link, Welcome(1, "", to_json(CONFIG), SpoolSet(), 60.0))
        return asyncio.create_task(train_together(session, "127.0.0.1", work))

    def say(self, message: Message) -> None:
        self.hub.send(self.who.peer, message)

    async def heard(self) -> Message:
        while isinstance(message := (await self.hub.receive())[1], Beat):
            pass
        return message


def no_work(_: NodeSession, **__: object) -> Awaitable[None]:
    raise AssertionError("only the first machine trains")


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Programs of the ranks that a further machine starts. Each name is that of its rank."""
    programs: list[str] = []

    async def start(
        stack: AsyncExitStack, _: NodeSession, place: MachinePlace, hub: HubAddress, *, leave_s: float
    ) -> list[Child]:
        assert hub == HUB
        names = [place.names[rank] for rank in place.own]
        command = [sys.executable, "-c"]
        children = [Child(name, [*command, program], None, {}) for name, program in zip(names, programs, strict=True)]
        for child in children:
            stack.push_async_callback(child.end, leave_s)
            await child.start()
        return children

    monkeypatch.setattr(trainer_machines, "start_ranks", start)
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
    assert hello(identity("trainer", "a")).host == socket.gethostname()


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

    monkeypatch.setattr(trainer_machines, "with_ranks", with_ranks)

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
    monkeypatch.setattr(trainer_machines, "DRAIN_S", 0.0)

    async def scene() -> None:
        stage = Stage("b")
        training = await following(stage)
        stage.stopping.set()
        await training
        assert await stage.heard() == Draining()
        assert await stage.heard() == Bye("told to stop")

    play(scene)


# ── test member link ──────────────────────────────────────────────────────────────────────────
# A machine's link hears of the end of its group at any time, and says Bye once the cause is known.

PEER = "trainer-a.0"


def test_the_end_of_the_group_is_known_though_nobody_receives() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = MemberLink(hub.connect(PEER), 60.0)
        hub.send(PEER, Stop("first"))
        hub.send(PEER, Disbanded("b on host-b (rank 1) was lost"))
        assert str(await link.lost) == "b on host-b (rank 1) was lost"
        assert await link.receive() == Stop("first")
        await link.leave("done")

    asyncio.run(scene())


def test_a_machine_whose_place_is_taken_is_refused() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = MemberLink(hub.connect(PEER), 60.0)
        hub.send(PEER, Reject("another process has joined as trainer-a"))
        with pytest.raises(LinkRefused, match="another process has joined as trainer-a"):
            await link.receive()
        await link.leave("LinkRefused")

    asyncio.run(scene())


def test_the_bye_of_the_role_is_held_back_until_the_machine_leaves() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = MemberLink(hub.connect(PEER), 60.0)
        for message in (Take(1), Bye("RankDied: connection closed")):
            await link.send(message)
        await link.aclose()
        await link.leave("MachineLost: b was lost")
        assert [await hub.receive() for _ in range(2)] == [(PEER, Take(1)), (PEER, Bye("MachineLost: b was lost"))]

    asyncio.run(scene())


def test_the_last_beat_is_repeated_while_the_role_sends_none() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = MemberLink(hub.connect(PEER), 0.001)
        assert await hub.receive() == (PEER, Beat())
        await link.send(Beat(tokens=7))
        while await hub.receive() != (PEER, Beat(tokens=7)):
            pass
        assert await hub.receive() == (PEER, Beat(tokens=7))
        await link.leave("done")

    asyncio.run(scene())


def test_a_broker_that_restarts_resets_it() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = MemberLink(hub.connect(PEER), 60.0)
        hub.forget(PEER)
        with pytest.raises(LinkReset):
            await link.receive()
        await link.leave("LinkReset")

    asyncio.run(scene())


# ── checkpoint copies ─────────────────────────────────────────────────────────────────────────────
# A trainer copies its checkpoints if, and only if, its machine does not see the run directory.


RUN = RunAddress("ipc:///nowhere")
WHO = identity("trainer", "trainer-0")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine's own state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def welcome(run_dir: Path, spool: str = "", run_id: str = "r", *, copies: bool = True) -> Welcome:
    settings = {"model": {"path": "m"}, "data": {"train": "t"}, "checkpoint": {"copy_to_broker": copies}}
    spools = SpoolSet([SpoolAddress("spool", spool)] if spool else [])
    return Welcome(1, str(run_dir), to_json(decode(settings)), spools, 1.0, run_id)


def beside_a_spool(tmp_path: Path, scene: Callable[[Welcome], Awaitable[None]]) -> Path:
    """Run ``scene`` on another machine than that of the spool; returns the folder of checkpoints there."""
    there = tmp_path / "there" / "checkpoints"

    async def main() -> None:
        hub, broker = ZmqHub("ipc://*", CODEC), MemoryHub()
        segments = Segments(tmp_path / "spool")
        # A machine sees another one's folder under no path; here, the same folder has two.
        (tmp_path / "theirs").symlink_to(tmp_path / "there")
        files = FileServer({}, tmp_path / "digests.json", tmp_path / "theirs" / "checkpoints")
        store = CheckpointStore(there)
        actor = SpoolActor("spool", segments, hub, broker.connect("spool"), files=files, checkpoints=store)
        serving = asyncio.create_task(actor.run())
        try:
            async with asyncio.timeout(30):
                await scene(welcome(tmp_path / "theirs", hub.address))
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await hub.aclose()
            segments.close()

    asyncio.run(main())
    return there


def test_a_checkpoint_is_copied_there_and_fetched_by_an_empty_machine(tmp_path: Path, state: Path) -> None:
    async def scene(welcome: Welcome) -> None:
        here = checkpoint_folder(welcome)
        assert here.is_relative_to(state)
        write_checkpoint(here, 20)
        sender = checkpoint_sender(here, welcome, RUN, WHO)
        assert sender is not None
        await sender.send()
        (state / "asyncrl").rename(state / "of the machine before")
        await fetch_checkpoint(welcome, RUN, WHO)
        assert (here / "step_000020" / "model").read_bytes() == b"weights"

    assert list(step_folders(beside_a_spool(tmp_path, scene))) == [20]


def test_a_trainer_that_sees_the_run_directory_copies_nothing(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        here = welcome(tmp_path, "ipc:///nowhere", ledger.run_id)
    assert checkpoint_sender(checkpoint_folder(here), here, RUN, WHO) is None
    asyncio.run(fetch_checkpoint(here, RUN, WHO))


def test_copies_can_be_turned_off(tmp_path: Path) -> None:
    there = welcome(tmp_path, "ipc:///nowhere", copies=False)
    assert checkpoint_sender(checkpoint_folder(there), there, RUN, WHO) is None


def test_without_a_spool_at_the_broker_it_is_said_that_checkpoints_stay(tmp_path: Path) -> None:
    with capture_logs() as logs:
        there = welcome(tmp_path)
        assert checkpoint_sender(checkpoint_folder(there), there, RUN, WHO) is None
    assert [(line["event"], line["cause"]) for line in logs] == [
        ("checkpoint.stays", "broker.spool is false: no spool takes a copy of it")
    ]
    asyncio.run(fetch_checkpoint(welcome(tmp_path), RUN, WHO))
