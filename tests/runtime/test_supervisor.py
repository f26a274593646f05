"""Environment and options of child processes, and restarts of trackers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.rollout import Rollout
from asyncrl.config.sections.run import Model
from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import ConfigError, RunFailed, TrackerError
from asyncrl.messages.codec import Message
from asyncrl.messages.supervisor import Evaluated, Exited, Failures, Finished, Interrupt
from asyncrl.messages.words import Role
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime import supervisor
from asyncrl.runtime.machine import Devices
from asyncrl.runtime.metrics_server import MetricsOptions
from asyncrl.runtime.screen import RunConsole, Screen
from asyncrl.runtime.supervisor import RunSupervisor, awaited, keep_tracking, role_process, tracker_process
from asyncrl.wire.memory import MemoryHub
from asyncrl.workers.child import Child, Exit

CONFIG = Config(model=Model(path="m"), data=Data(train="t"), rollout=Rollout(threads=3), trainer=Trainer(threads=2))
TRACKED = decode({"model": {"path": "m"}, "data": {"train": "rows"}, "supervisor": {"max_restarts": 1}})


@pytest.mark.parametrize(("role", "threads"), [("rollout", "3"), ("trainer", "2"), ("reward", "1"), ("broker", "1")])
def test_threads_devices_and_options_reach_the_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: Role, threads: str
) -> None:
    shell = tmp_path / "python"
    shell.write_text('#!/bin/sh\necho "$OMP_NUM_THREADS $CUDA_VISIBLE_DEVICES $@"\n')
    shell.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(shell))
    child = role_process(
        role, "gpu-1", CONFIG, tmp_path / "log", "--broker", "tcp://x", environment={"CUDA_VISIBLE_DEVICES": "4,5"}
    )

    async def scene() -> int:
        await child.start()
        return await child.wait()

    assert asyncio.run(scene()) == 0
    assert child.last_line() == f"{threads} 4,5 -P -m asyncrl.cli.node --role {role} --name gpu-1 --broker tcp://x"


def exits(tmp_path: Path, code: str, *, is_over: bool = False) -> list[Exit]:
    """Reported exits of a tracker process that runs ``code``, until it is not restarted."""
    reported: list[Exit] = []

    async def exited(left: Exit) -> None:
        reported.append(left)

    child = Child("tracker-toy", [sys.executable, "-c", code], tmp_path / "toy.log", {})
    asyncio.run(keep_tracking(child, TRACKED, exited=exited, is_over=lambda: is_over))
    return reported


def test_a_tracker_process_is_named_after_its_tracker() -> None:
    assert tracker_process("my.py:slack", RunDirectory(Path("runs/tiny"))).name == "tracker-slack"


def test_a_tracker_that_dies_is_restarted_within_the_budget(tmp_path: Path) -> None:
    code = f"import sys; sys.stderr.write('asyncrl: toy.log: OSError: no network'); sys.exit({TrackerError.exit_code})"
    reported = exits(tmp_path, code)
    assert [left.restarting for left in reported] == [True, False]
    assert reported[0].cause == "exited with 70: toy.log: OSError: no network"


def test_a_tracker_with_a_configuration_error_is_not_restarted(tmp_path: Path) -> None:
    (left,) = exits(tmp_path, f"import sys; sys.exit({ConfigError.exit_code})")
    assert not left.restarting


@pytest.mark.parametrize("code", [0, 1])
def test_once_the_run_is_over_no_exit_is_reported(tmp_path: Path, code: int) -> None:
    assert exits(tmp_path, f"import sys; sys.exit({code})", is_over=True) == []


def test_a_finished_tracker_is_not_reported(tmp_path: Path) -> None:
    assert exits(tmp_path, "") == []


def test_a_tracker_that_cannot_be_started_is_reported_without_an_error(tmp_path: Path) -> None:
    (left,) = exits(tmp_path / "no such folder", "")
    assert not left.restarting
    assert "toy.log" in left.cause


# ── test startup ──────────────────────────────────────────────────────────────────────────────
# The message about what a run waits for before its first step.

NODES = ["trainer-0", "reward-0", "rollout-0", "rollout-1"]


def event(kind: str, node: str = "", **fields: str) -> dict[str, str]:
    return {"event": kind, "node": node, "role": node.partition("-")[0], **fields}


JOINED = [event("run.started"), *(event("node.joined", node) for node in NODES)]
READY = [*JOINED, *(event("node.ready", node) for node in ("trainer-0", "rollout-0", "rollout-1"))]


def test_no_node_has_joined():
    assert awaited(NODES, []) == "trainer-0, reward-0, rollout-0 and 1 more to start"


def test_some_nodes_load_while_others_start():
    assert awaited(NODES, JOINED[:3]) == "rollout-0 and rollout-1 to start, trainer-0 to load the model"


def test_a_reward_node_has_no_model_to_load():
    assert awaited(NODES, JOINED) == "trainer-0, rollout-0 and rollout-1 to load the model"


def test_a_node_that_died_while_loading_must_start_again():
    died = [*JOINED, event("node.lost", "rollout-0")]
    assert awaited(["rollout-0"], died) == "rollout-0 to start"
    assert awaited(["rollout-0"], [*READY, event("node.joined", "rollout-0")]) == "rollout-0 to load the model"


def test_all_have_loaded():
    assert awaited(NODES, READY) == "the rollouts to receive the weights"
    assert awaited(NODES, [*READY, event("version.live")]) == ""


def test_events_before_a_resume_do_not_count():
    assert awaited(["rollout-0"], [*READY, event("version.live"), event("run.resumed")]) == "rollout-0 to start"


# ── test supervisor ───────────────────────────────────────────────────────────────────────────
# The end of a run, with fake children. Whole runs are in tests/integration.

SUMMARY = (
    '{"name": "run", "status": "%s", "cause": "%s", "seed": 0, "steps": 3, "steps_planned": 3, "versions": 3, '
    '"wall_s": 1.0, "trained_tokens": 9, "staleness_mean": 0.0, "staleness_max": 0}'
)


class FakeChild:
    """A child that leaves at once, or when it is ended."""

    def __init__(self, name: str, *, leaves: bool = True, pid: int | None = 1) -> None:
        self.name = name
        self.pid = pid
        self.is_ended = False
        self._gone = asyncio.Event()
        if leaves:
            self._gone.set()

    async def wait(self) -> int:
        await self._gone.wait()
        self.pid = None
        return 0

    async def start(self, _: object = None) -> None:
        """Run already."""

    async def end(self, drain_s: float) -> None:
        self.is_ended = self.pid is not None
        self._gone.set()


def a_supervisor(*children: FakeChild) -> RunSupervisor:
    """A supervisor whose run is over, linked to the broker."""
    nothing: Any = None
    made = RunSupervisor(nothing, nothing, nothing, None, [])
    made._children = list(children)  # type: ignore[arg-type]
    made._ended = asyncio.get_running_loop().create_future()
    made._end("")
    made._link = MemoryHub().connect("supervisor-0.1")
    return made


def test_a_run_whose_children_have_all_left_already_ends() -> None:
    async def main() -> None:
        children = [FakeChild("broker-0", pid=None), FakeChild("trainer-0", pid=None)]
        await a_supervisor(*children)._end_children()
        assert not any(child.is_ended for child in children)

    asyncio.run(main())


@pytest.mark.parametrize("broker", [1, None], ids=["with its broker", "whose broker is gone"])
def test_a_node_still_loading_when_the_broker_has_left_is_ended(
    monkeypatch: pytest.MonkeyPatch, broker: int | None
) -> None:
    monkeypatch.setattr(supervisor, "NODES_LEAVE_S", 0.01)

    async def main() -> None:
        left, loading = FakeChild("reward-0"), FakeChild("rollout-0", leaves=False)
        async with asyncio.timeout(supervisor.LEAVE_S / 2):
            await a_supervisor(FakeChild("broker-0", pid=broker), left, loading)._end_children()
        assert (left.is_ended, loading.is_ended) == (False, True)

    asyncio.run(main())


def test_messages_before_the_first_link_are_sent_on_it() -> None:
    async def main() -> None:
        made = a_supervisor()
        link, made._link = made._link, None
        message = Exited("the run", "was interrupted", restarting=False)
        await made._send(message)
        assert made._unsent == [message]

        made._link = link
        await made._send(message)
        assert made._unsent == [message], "sent at once"
        assert link is not None
        await link.aclose()
        await made._send(message)

    asyncio.run(main())


def test_failures_are_shown_before_any_step(tmp_path: Path) -> None:
    shown: list[dict[str, int]] = []

    class FakeScreen:
        failure = None

        def failures(self, counts: dict[str, int], attempts: dict[str, int]) -> None:
            shown.extend((counts, attempts))

    class FakeLink:
        async def __aiter__(self) -> AsyncIterator[Message]:
            yield Failures({"reward: boom": 2}, {"reward": 3})
            yield Finished("failed", "boom")

    nothing: Any = None
    screen: Any = FakeScreen()
    link: Any = FakeLink()
    made = RunSupervisor(nothing, RunDirectory(tmp_path), screen, None, [])

    async def main() -> None:
        made._ended = asyncio.get_running_loop().create_future()
        await made._listen(link)
        assert made._ended.result() == "boom"

    asyncio.run(main())
    assert shown == [{"reward: boom": 2}, {"reward": 3}]


def test_a_run_whose_callers_function_fails_is_interrupted_once_and_listened_to_until_its_end(tmp_path: Path) -> None:
    sent: list[Message] = []

    class FakeLink:
        async def __aiter__(self) -> AsyncIterator[Message]:
            for number in range(2):
                yield Evaluated(policy_version=number, accuracy=0.5, num_prompts=8, metrics={})
            yield Finished("interrupted", "told so")

        async def send(self, message: Message) -> None:
            sent.append(message)

    def plot(_: object) -> None:
        raise ValueError("no figure")

    nothing: Any = None
    screen = Screen(RunConsole(StringIO()), steps=4, on_evaluation=plot)
    made = RunSupervisor(nothing, RunDirectory(tmp_path), screen, None, [])

    async def main() -> None:
        made._ended = asyncio.get_running_loop().create_future()
        made._link = link = cast("Any", FakeLink())
        await made._listen(link)
        assert made._ended.result() == "told so"

    asyncio.run(main())
    (interrupt,) = sent
    assert isinstance(interrupt, Interrupt)
    assert interrupt.cause.startswith("on_evaluation raised ValueError: no figure (")


def test_messages_about_waiting_come_at_doubling_intervals_until_the_first_step(tmp_path: Path) -> None:
    slept: list[float] = []
    waited: list[tuple[str, float]] = []

    class FakeScreen:
        def waiting(self, what: str, waited_s: float) -> None:
            waited.append((what, waited_s))

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        made._has_begun = len(slept) == 4

    nothing: Any = None
    screen: Any = FakeScreen()
    made = RunSupervisor(nothing, RunDirectory(tmp_path), screen, None, [], sleep=sleep)
    made._children = [FakeChild("broker-0"), FakeChild("trainer-0")]  # type: ignore[list-item]

    async def main() -> None:
        made._ended = asyncio.get_running_loop().create_future()
        await made._report_waiting()

    asyncio.run(main())
    assert slept == [5.0, 5.0, 10.0, 20.0]
    assert waited == [("trainer-0 to start", seconds) for seconds in (5.0, 10.0, 20.0)]


@pytest.mark.parametrize(("status", "cause"), [("finished", ""), ("interrupted", "the run was interrupted")])
def test_a_broker_that_ends_in_order_has_ended_its_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str, cause: str
) -> None:
    directory = RunDirectory.create(tmp_path, "run")
    started: list[str] = []

    class Broker(FakeChild):
        log = None

        async def start(self, _: object = None) -> None:
            started.append(self.name)
            directory.summary.write_text(SUMMARY % (status, cause))

        def last_line(self) -> str:
            return ""

    async def sleep(_: float) -> None:
        await asyncio.sleep(0)

    class FakeScreen:
        def exited(self, *_: object, **__: object) -> None:
            """Show nothing."""

    screen: Any = FakeScreen()
    config = Config(model=Model(path="model"), data=Data(train="train.jsonl"))
    monkeypatch.setattr(supervisor, "role_process", lambda _role, name, *_, **__: Broker(name))
    made = RunSupervisor(config, directory, screen, None, [], sleep=sleep)
    with pytest.raises(RunFailed, match=cause) if cause else nullcontext():
        asyncio.run(made.run(asyncio.Event()))
    assert started == ["broker-0"], "no other node"


def test_only_the_broker_sends_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: dict[str, bool] = {}

    def role_process(_role: str, name: str, _config: object, _log: object, *options: str, **_: object) -> FakeChild:
        traced[name] = "--traces" in options
        return FakeChild(name)

    async def start_all(*, is_traced: bool) -> None:
        directory = RunDirectory(tmp_path)
        directory.address.touch()
        made = RunSupervisor(nothing, directory, nothing, None, [Devices("cpu")], is_traced=is_traced)
        made._ended = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(made, "_watch", lambda *_: asyncio.sleep(0))
        async with asyncio.TaskGroup() as made._tasks:
            await made._start_broker()
            made._start_nodes()

    nothing: Any = None
    monkeypatch.setattr(supervisor, "role_process", role_process)
    asyncio.run(start_all(is_traced=True))
    assert [name for name, is_traced in traced.items() if is_traced] == ["broker-0"]
    asyncio.run(start_all(is_traced=False))
    assert not any(traced.values())


def test_each_process_serves_its_metrics_at_a_port_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, tuple[str, ...]] = {}

    def role_process(
        _role: str, name: str, _config: object, _log: object, *options: str, environment: dict[str, str]
    ) -> FakeChild:
        asked[name] = options[options.index("--metrics") :]
        assert environment["ASYNCRL_KEY_FILE"] == "", "it may be a key of another run"
        return FakeChild(name)

    async def start_all(metrics: MetricsOptions) -> None:
        made = RunSupervisor(nothing, RunDirectory(tmp_path), nothing, None, [Devices("cpu")] * 2, metrics=metrics)
        monkeypatch.setattr(made, "_watch", lambda *_: asyncio.sleep(0))
        async with asyncio.TaskGroup() as made._tasks:
            made._start("broker", supervisor.BROKER)
            made._start_nodes()

    nothing: Any = None
    monkeypatch.setattr(supervisor, "role_process", role_process)
    asyncio.run(start_all(MetricsOptions("127.0.0.1", 9400)))
    ports = {"broker-0": 9400, "trainer-0": 9401, "reward-0": 9402, "rollout-0": 9403, "rollout-1": 9404}
    assert asked == {name: ("--metrics", f"127.0.0.1:{port}") for name, port in ports.items()}
