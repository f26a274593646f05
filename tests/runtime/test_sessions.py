"""A node ends with its run, even if the broker has left before it could say so."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from asyncrl.config.sections import broker
from asyncrl.errors import (
    ConfigError,
    EngineError,
    LinkClosed,
    LinkError,
    LinkRefused,
    LinkReset,
    LinkSilent,
    NodeStalled,
    ToldToLeave,
    WrongHub,
)
from asyncrl.files.lock import locked
from asyncrl.messages.codec import Message
from asyncrl.messages.session import AskTurn, Asleep, Beat, Bye, Reject, Sleep, Stop, Wake, Welcome
from asyncrl.messages.spool import Spools, SpoolSet
from asyncrl.records.metrics import Sample
from asyncrl.records.metrics_targets import Sources, collect_in, discoverable
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.runtime import sessions
from asyncrl.runtime import sessions as sessions_module
from asyncrl.runtime.process import StopEvent
from asyncrl.runtime.service_manager import ServiceManager, report_to
from asyncrl.runtime.sessions import (
    QUIET_LOOKS,
    RENEWAL_S,
    RunNode,
    ToldToStop,
    collect_earlier_models,
    is_over,
    join_steadily,
    load_with_beats,
    serve,
    unless_told,
    until_over,
    until_run_is_over,
    wait_for_turn,
)
from asyncrl.wire.handshake import Identity, identity
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.run_address import POLL_S, RunAddress


def summary(status) -> RunSummary:
    return RunSummary(
        name="x",
        status=status,
        seed=0,
        steps=1,
        steps_planned=1,
        versions=1,
        wall_s=1.0,
        trained_tokens=1,
        staleness_mean=0.0,
        staleness_max=0,
    )


def test_a_run_is_over_when_it_is_complete_and_nobody_serves_it(tmp_path):
    directory = RunDirectory(tmp_path)
    assert not is_over(directory), "not created yet"
    directory.write_summary(summary("failed"))
    assert not is_over(directory), "it may be continued"
    directory.write_summary(summary("finished"))
    assert is_over(directory)
    with locked(directory.lock, "held"):
        assert not is_over(directory), "a broker extends it"


def test_a_broker_that_appears_in_time_keeps_the_node():
    """It extends the run, and starts at the same moment as the node."""
    seen = [*[True] * (QUIET_LOOKS - 1), False, *[True] * QUIET_LOOKS]
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    left = list(seen)
    asyncio.run(until_over(RunDirectory(Path()), is_over=lambda _: left.pop(0), sleep=sleep))
    assert (len(sleeps), left) == (len(seen), [])


def test_work_ends_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "LOOK_S", 0.001)
    RunDirectory(tmp_path).write_summary(summary("finished"))
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    asyncio.run(until_over_or_done(tmp_path, work))
    assert ended == ["work"]


@pytest.mark.parametrize("run_dir", [None, Path("/nowhere")])
def test_work_that_ends_by_itself_is_awaited_and_its_error_raised(run_dir):
    async def work() -> None:
        raise LinkError("no broker")

    with pytest.raises(LinkError, match="no broker"):
        asyncio.run(until_over_or_done(run_dir, work))


async def until_over_or_done(run_dir: Path | None, work: Callable[[], Awaitable[None]]) -> None:
    async with until_run_is_over(run_dir):
        await work()


def test_a_node_that_somebody_cancels_when_its_run_is_over_is_cancelled(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "LOOK_S", 0.001)
    RunDirectory(tmp_path).write_summary(summary("finished"))

    async def main() -> None:
        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                node.cancel()

        node = asyncio.create_task(until_over_or_done(tmp_path, work))
        with pytest.raises(asyncio.CancelledError):
            await node

    asyncio.run(main())


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_node_that_a_signal_ended_is_to_come_back_and_one_that_the_broker_ended_is_not(is_waiting: bool) -> None:
    async def scene(*, by_signal: bool) -> None:
        stopping = StopEvent()
        stopping.by_signal = by_signal
        stopping.set()
        node = RunNode(WHO, RunAddress("ipc:///nowhere"), wait_s=1.0, run_id=run_id)
        async with node.part_of_run(stopping):
            if is_waiting:
                raise ToldToStop

    run_id = "abc"
    asyncio.run(scene(by_signal=False))
    with pytest.raises(ToldToLeave, match="a signal told this process to leave, and its run goes on"):
        asyncio.run(scene(by_signal=True))
    run_id = ""
    with pytest.raises(ToldToLeave, match="a signal told this process to leave, and it had joined no run"):
        asyncio.run(scene(by_signal=True))


# ── test runner ───────────────────────────────────────────────────────────────────────────────
# An actor runs with heartbeats until it ends or the process is told to stop.

PEER = "r-0.1"


class FakeActor:
    """Runs until ``may_end`` is set."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.error: Exception | None = None
        self.made = Beat(seconds={"training": 4.0})

    async def run(self) -> None:
        await self.may_end.wait()
        if self.error:
            raise self.error

    def heartbeat(self, lag_s: float) -> Beat:
        return replace(self.made, lag_s=lag_s)

    def status(self) -> str:
        return "2 of 5"

    def metrics(self) -> tuple[Sample, ...]:
        return (Sample("asyncrl_rollout_slots", 5),)


async def last(hub: MemoryHub) -> object:
    """The next message that is no beat."""
    while isinstance(message := (await hub.receive())[1], Beat):
        pass
    return message


def test_beats_come_from_the_actor_until_it_ends():
    async def main():
        hub, actor = MemoryHub(), FakeActor()
        link = hub.connect(PEER)
        serving = asyncio.create_task(serve(actor, link, beat_s=0.001, stopping=asyncio.Event()))
        for _ in range(3):
            _, beat = await hub.receive()
            assert isinstance(beat, Beat)
            assert beat.seconds == {"training": 4.0}
        actor.may_end.set()
        await serving
        assert await last(hub) == Bye("done")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_node_whose_parent_has_died_says_so_to_the_run_and_to_its_log() -> None:
    stopping = StopEvent()
    stopping.by_signal = stopping.is_orphaned = True
    stopping.set()

    async def main() -> None:
        hub = MemoryHub()
        await serve(FakeActor(), hub.connect(PEER), beat_s=60, stopping=stopping)
        assert await last(hub) == Bye("the process that started it has died")
        async with RunNode(WHO, RunAddress("ipc:///nowhere"), wait_s=1.0, run_id="abc").part_of_run(stopping):
            pass

    with pytest.raises(ToldToLeave, match="the process that started this one has died, and its run goes on"):
        asyncio.run(main())


def test_a_stopped_node_drains_first():
    async def main():
        hub, actor, stopping, drained = MemoryHub(), FakeActor(), asyncio.Event(), asyncio.Event()
        limits_s: list[float] = []

        async def drain(deadline_s: float) -> None:
            limits_s.append(deadline_s)
            await drained.wait()

        link = hub.connect(PEER)
        serving = asyncio.create_task(serve(actor, link, beat_s=60, stopping=stopping, drain=drain, drain_s=7.0))
        stopping.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not serving.done()
        assert limits_s == [7.0]
        drained.set()
        await serving
        assert await last(hub) == Bye("told to stop")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_an_actor_that_fails_sends_its_error_in_the_bye():
    async def main():
        hub, actor = MemoryHub(), FakeActor()
        actor.error = EngineError("out of memory")
        actor.may_end.set()
        with pytest.raises(EngineError, match="out of memory"):
            await serve(actor, hub.connect(PEER), beat_s=60, stopping=asyncio.Event())
        assert await last(hub) == Bye("EngineError: out of memory")

    asyncio.run(main())


def test_a_node_without_progress_ends_with_that_cause_though_its_work_never_returns():
    async def main():
        hub, actor = MemoryHub(), FakeActor()
        actor.made = Beat(doing="training", progress=3)
        serving = serve(
            actor,
            hub.connect(PEER),
            beat_s=0.001,
            stopping=asyncio.Event(),
            limits=broker.Broker(stall_s=0.005, stall_limit_s=0.01),
        )
        with pytest.raises(NodeStalled, match="no progress: training for 0 s without a micro-batch"):
            await serving
        said = await last(hub)
        assert isinstance(said, Bye)
        assert said.reason.startswith("NodeStalled: no progress")

    asyncio.run(main())


def test_while_a_model_loads_beats_go_on():
    async def main():
        hub = MemoryHub()
        link = hub.connect(PEER)
        loop, beaten = asyncio.get_running_loop(), asyncio.Event()

        def load() -> str:
            asyncio.run_coroutine_threadsafe(beaten.wait(), loop).result(10)
            return "model"

        task = asyncio.create_task(load_with_beats(link, 0.001, load))
        assert isinstance((await hub.receive())[1], Beat)
        beaten.set()
        assert await task == "model"

    asyncio.run(main())


@pytest.mark.slow("a real node loads a model")
def test_a_model_of_an_earlier_session_is_freed():
    class Model:
        def __init__(self) -> None:
            self.itself = self

    async def main():
        link = MemoryHub().connect(PEER)
        before = weakref.ref(await load_with_beats(link, 60, Model))
        assert before() is not None, "it refers to itself: only the collector can let it go"
        await asyncio.sleep(0)  # Until here the loop holds what it has just given us.
        collect_earlier_models()
        assert before() is None

    asyncio.run(main())


def test_a_load_that_fails_is_raised_and_beats_end():
    async def main():
        def load() -> None:
            raise LinkReset("no")

        with pytest.raises(LinkReset):
            await load_with_beats(MemoryHub().connect(PEER), 60, load)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_node_that_is_told_to_stop_waits_for_no_broker():
    """Under a service manager it may wait for minutes."""

    async def main():
        stopping, waits = asyncio.Event(), asyncio.Event()

        async def join() -> None:
            waits.set()
            await asyncio.Event().wait()

        waiting = asyncio.create_task(unless_told(stopping, join()))
        await waits.wait()
        stopping.set()
        with pytest.raises(ToldToStop):
            await waiting
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_broker_that_answers_is_joined_and_its_refusal_raised():
    async def answer() -> str:
        return "welcome"

    async def refuse() -> str:
        raise LinkReset("no")

    assert asyncio.run(unless_told(asyncio.Event(), answer())) == "welcome"
    with pytest.raises(LinkReset, match="no"):
        asyncio.run(unless_told(asyncio.Event(), refuse()))


def test_the_service_manager_hears_what_a_node_waits_for_and_does():
    async def main() -> list[str]:
        heard: list[str] = []

        class Listening(ServiceManager):
            def report(self) -> None:
                heard.append(self.status)

        report_to(Listening())
        link = MemoryHub().connect(PEER)
        await load_with_beats(link, 60, lambda: None)
        actor = FakeActor()
        actor.may_end.set()
        await serve(actor, link, beat_s=60, stopping=asyncio.Event())
        return heard

    assert asyncio.run(main()) == ["loading the model", "2 of 5"]


@pytest.mark.parametrize("lost", [LinkReset("restarted"), LinkSilent("has not answered for 30 s")])
def test_a_lost_broker_is_joined_again_and_only_another_error_ends_the_node(monkeypatch, lost):
    """A broker whose machine is down for a minute resets nothing; the node keeps its work and waits for it."""
    begun: list[str] = []
    errors = [lost, LinkError("the spool is gone")]
    welcome = Welcome(1, "/run", b"", SpoolSet(), 0.5, "r1")

    async def join_steadily(run, who, wait_s, make_hello, *, is_member):
        assert make_hello(who).run_id == ("r1" if is_member else "")
        return who, LINK, welcome

    async def main() -> None:
        node = RunNode(identity("reward", "r-0"), RunAddress("tcp://127.0.0.1:1"), wait_s=600)
        async for session in node.sessions():
            async with session:
                begun.append(session.who.incarnation)
                raise errors.pop(0)

    monkeypatch.setattr(sessions_module, "join_steadily", join_steadily)
    with pytest.raises(LinkError, match="the spool is gone"):
        asyncio.run(main())
    assert len(set(begun)) == 2


class Broker:
    """Replaces `join`: fails with each of ``errors`` in turn, then welcomes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.errors = list(errors)
        self.joined: list[Identity] = []
        self.paused_s: list[float] = []
        monkeypatch.setattr(sessions_module, "join", self.join)

    async def join(self, run: RunAddress, who: Identity, wait_s: float | None, make_hello: object) -> tuple[Any, Any]:
        self.joined.append(who)
        if self.errors:
            raise self.errors.pop(0)
        return SimpleNamespace(address=run.broker), WELCOME

    async def sleep(self, seconds: float) -> None:
        self.paused_s.append(seconds)


WHO = Identity("rollout", "r-0", "1")
LINK: Any = SimpleNamespace(address="tcp://127.0.0.1:5570")
WELCOME = Welcome(1, "/run", b"", SpoolSet(), 0.5, "r1")


def test_a_node_that_has_joined_tells_prometheus_of_which_run(monkeypatch, tmp_path):
    broker = Broker(monkeypatch)
    with discoverable(tmp_path, "", "r-0", "127.0.0.1:9400"):
        asyncio.run(join_steadily(RunAddress("tcp://a:1"), WHO, None, sleep=broker.sleep))
        assert [path.name for path in tmp_path.iterdir()] == ["run.r-0.json"]


def test_without_a_limit_every_loss_of_the_broker_is_waited_out_with_growing_pauses(monkeypatch):
    losses = [LinkError("silent"), LinkReset("it restarted"), LinkError("silent"), LinkError("silent"), LinkError("no")]
    broker = Broker(monkeypatch, *losses)
    with capture_logs() as logs:
        who, link, _ = asyncio.run(join_steadily(RunAddress("tcp://a:1"), WHO, None, sleep=broker.sleep))

    assert link.address == "tcp://a:1"
    assert broker.paused_s == [0.1, 0.5, 2.0, 10.0, 10.0]
    assert len({who.incarnation for who in broker.joined}) == 6, "each is a start of its own"
    assert who == broker.joined[-1]
    assert [(entry["event"], entry["log_level"], entry["cause"]) for entry in logs[:2]] == [
        ("broker.lost", "warning", "silent"),
        ("broker.lost", "warning", "it restarted"),
    ]
    joined = logs[-1]
    assert (joined["event"], joined["run"], joined["incarnation"]) == ("node.joined", "run", who.incarnation)
    assert Path(joined["path"]).name == "run"


def test_within_the_limit_a_broker_that_is_lost_in_the_handshake_is_asked_again(monkeypatch):
    broker = Broker(monkeypatch, LinkSilent("has not answered for 30 s"), LinkReset("it restarted"))
    asyncio.run(join_steadily(RunAddress("tcp://a:1"), WHO, 600.0, sleep=broker.sleep))
    assert len(broker.joined) == 3


@pytest.mark.parametrize(("wait_s", "error"), [(30.0, LinkError("no broker answered")), (None, LinkRefused("over"))])
def test_a_limit_and_a_refusal_end_the_wait(monkeypatch, wait_s, error):
    broker = Broker(monkeypatch, error)
    with pytest.raises(type(error), match=str(error)):
        asyncio.run(join_steadily(RunAddress("tcp://a:1"), WHO, wait_s, sleep=broker.sleep))
    assert broker.paused_s == []


@pytest.mark.parametrize(
    ("rejoin_on", "error", "sessions"),
    [
        (LinkReset, LinkReset("it restarted"), 2),
        (LinkReset, LinkError("silent"), 1),
        (LinkError, LinkError("silent"), 2),
        (LinkError, LinkRefused("over"), 1),
    ],
)
def test_a_session_is_followed_by_another_after_errors_that_end_only_the_link(monkeypatch, rejoin_on, error, sessions):
    broker, begun = Broker(monkeypatch), []

    async def main() -> None:
        node = RunNode(WHO, RunAddress(LINK.address), wait_s=None, rejoin_on=rejoin_on)
        async for session in node.sessions():
            async with session:
                begun.append(session.who)
                if len(begun) == 1:
                    raise error

    if sessions == 1:
        with pytest.raises(type(error)):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert begun == broker.joined
    assert begun[0] == WHO
    assert len(begun) == sessions


def test_a_member_waits_while_a_broker_that_ended_has_removed_the_secret_and_others_are_told(monkeypatch):
    gone = ConfigError("cannot read the secret file /secrets/a: No such file or directory")
    broker = Broker(monkeypatch, gone, gone)
    asyncio.run(join_steadily(RunAddress("tcp://a:1"), WHO, None, is_member=True, sleep=broker.sleep))
    assert broker.paused_s == [0.1, 0.5]

    broker = Broker(monkeypatch, gone)
    with pytest.raises(ConfigError, match="cannot read the secret"):
        asyncio.run(join_steadily(RunAddress("tcp://a:1"), WHO, None, sleep=broker.sleep))
    broker = Broker(monkeypatch, gone)
    with pytest.raises(ConfigError, match="cannot read the secret"):
        asyncio.run(join_steadily(RunAddress("tcp://a:1"), WHO, 0.0, is_member=True, sleep=broker.sleep))


class Successor(Broker):
    """A broker of another run than the one whose secret is in ``file``; it leaves its own after some pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path, after: int) -> None:
        super().__init__(monkeypatch)
        self._file = file
        self._after = after

    async def join(self, run: RunAddress, who: Identity, wait_s: float | None, make_hello: object) -> Any:
        self.errors = [] if self._file.read_text() == "new" else [WrongHub("it does not share the secret")]
        return await super().join(run, who, wait_s, make_hello)

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        if len(self.paused_s) == self._after:
            self._file.write_text("new")


def test_a_new_node_waits_for_the_secret_of_the_broker_that_follows_a_killed_one(monkeypatch, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("old")
    broker = Successor(monkeypatch, secret, after=5)
    with capture_logs():
        who, _, _ = asyncio.run(join_steadily(RunAddress("tcp://a:1", secret), WHO, 600.0, sleep=broker.sleep))

    assert broker.joined == [WHO, who]
    assert broker.paused_s == [POLL_S] * 5 + [0.1]


def test_a_file_that_holds_no_credentials_is_told_in_the_words_of_the_handshake(monkeypatch, tmp_path):
    """Its bytes are compared, and only `join` reads them as credentials."""
    folder, binary = tmp_path / "folder", tmp_path / "binary"
    folder.mkdir()
    binary.write_bytes(b"\xff")
    for file in (folder, binary):
        broker = Broker(monkeypatch, ConfigError("cannot read the secret file"))
        with pytest.raises(ConfigError, match="cannot read the secret file"):
            asyncio.run(join_steadily(RunAddress("tcp://a:1", file), WHO, None, sleep=broker.sleep))


def test_a_new_node_with_the_secret_of_another_run_is_refused_soon(monkeypatch, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("old")
    broker = Successor(monkeypatch, secret, after=1000)
    with pytest.raises(WrongHub, match="does not share the secret"):
        asyncio.run(join_steadily(RunAddress("tcp://a:1", secret), WHO, None, sleep=broker.sleep))
    assert sum(broker.paused_s) == pytest.approx(RENEWAL_S)


def test_a_broker_that_is_away_for_a_day_is_joined_when_it_returns(monkeypatch):
    class Clocked(Broker):
        """Fails until ``paused_s`` add up to a day."""

        async def join(self, run: RunAddress, who: Identity, wait_s: float | None, make_hello: object) -> Any:
            self.errors = [LinkError("silent")] if sum(self.paused_s) < 86_400 else []
            return await super().join(run, who, wait_s, make_hello)

    broker = Clocked(monkeypatch)
    with capture_logs():
        who, _, _ = asyncio.run(join_steadily(RunAddress("tcp://a:1"), WHO, None, is_member=True, sleep=broker.sleep))
    assert who == broker.joined[-1]
    assert len(broker.joined) == 8_644, "each ten seconds"


def test_an_actor_is_scraped_while_it_serves_and_its_log_says_when_it_came_and_went():
    async def main():
        hub, actor, sources = MemoryHub(), FakeActor(), Sources()
        collect_in(sources)
        serving = asyncio.create_task(serve(actor, hub.connect(PEER), beat_s=0.001, stopping=asyncio.Event()))
        await hub.receive()
        during = [sample.name for sample in sources]
        actor.may_end.set()
        await serving
        return during, list(sources)

    with capture_logs() as logs:
        assert asyncio.run(main()) == (["asyncrl_rollout_slots"], [])
    said = [(line["event"], line.get("reason"), line["status"]) for line in logs]
    assert said == [("node.ready", None, "2 of 5"), ("node.left", "done", "2 of 5")]


# ── test turn ─────────────────────────────────────────────────────────────────────────────────


class BrokerTurn:
    """A link with these messages in it."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.sent: list[Message] = []
        self.is_closed = False

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def receive(self) -> Message:
        await asyncio.sleep(0)
        if not self.messages:
            raise LinkClosed("no more")
        return self.messages.pop(0)

    def __aiter__(self) -> AsyncIterator[Message]:
        raise NotImplementedError

    async def aclose(self) -> None:
        self.is_closed = True


SPOOLS = Spools(SpoolSet([], "", []))


def test_a_node_says_that_it_has_nothing_on_the_devices_and_waits() -> None:
    async def main() -> None:
        broker = BrokerTurn(Wake())
        await wait_for_turn(broker)
        assert [type(message) for message in broker.sent] == [Asleep, AskTurn]

    asyncio.run(main())


def test_messages_that_come_meanwhile_are_received_again_in_order() -> None:
    async def main() -> None:
        link = await wait_for_turn(BrokerTurn(SPOOLS, Sleep(), SPOOLS, Wake(), Stop("done")))
        assert [message async for message in link] == [SPOOLS, SPOOLS, Stop("done")]

    asyncio.run(main())


def test_the_link_is_that_of_the_node() -> None:
    async def main() -> None:
        broker = BrokerTurn(Wake())
        link = await wait_for_turn(broker)
        await link.send(Bye("done"))
        await link.aclose()
        assert broker.sent[-1] == Bye("done")
        assert broker.is_closed

    asyncio.run(main())


def test_a_run_that_ends_meanwhile_is_left() -> None:
    async def main() -> None:
        broker = BrokerTurn(Stop("the run is complete"))
        with pytest.raises(ToldToStop):
            await wait_for_turn(broker)
        assert broker.sent[-1] == Bye("done")
        assert broker.is_closed

    asyncio.run(main())


def test_a_node_that_is_refused_says_why() -> None:
    async def main() -> None:
        with pytest.raises(LinkRefused, match="another model"):
            await wait_for_turn(BrokerTurn(Reject("another model")))

    asyncio.run(main())
