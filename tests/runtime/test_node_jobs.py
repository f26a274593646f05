"""The broker's job: its run directory, its address, and a run that is complete already."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from asyncrl.broker.staleness_control import StalenessChoice
from asyncrl.config.run_file import decode, load_config
from asyncrl.errors import AsyncrlError, ConfigError, LinkError, RunInterrupted
from asyncrl.files.lock import locked
from asyncrl.messages.words import Role
from asyncrl.records import run_record
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime import broker, metrics_server, node_jobs
from asyncrl.runtime.node_jobs import (
    NodeOptions,
    broker_job,
    choose_staleness,
    finder,
    node_job,
    replicas_job,
    run_reward,
    spool_job,
)
from asyncrl.runtime.process import Job, StopEvent
from asyncrl.runtime.sessions import RunNode
from asyncrl.wire.handshake import Identity, identity
from asyncrl.wire.run_address import RunAddress
from tests.runtime.refusing import refused
from tests.tools.plan.test_fit import a_run


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "train.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\npath = "{tmp_path}"\n[data]\ntrain = "{tmp_path}/train.jsonl"\n')
    return path


def job_of(run_file: Path | None, run_dir: Path | None = None, address: str | None = None) -> Job:
    return broker_job(
        config_path=run_file, overrides=(), address=address, run_dir=run_dir, secret_file=None, key_folder=None
    )


def test_a_run_file_is_needed() -> None:
    with pytest.raises(ConfigError, match="--config FILE is missing: the broker needs the run's configuration"):
        job_of(None)


def test_epochs_are_counted_before_the_run_is_recorded(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_broker(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(broker, "run_broker", run_broker)
    monkeypatch.setattr(broker, "raise_gc_threshold", lambda: None)
    run_file.write_text(run_file.read_text() + "[run]\nepochs = 32\n")
    asyncio.run(_run(job_of(run_file, tmp_path / "run")))
    assert load_config(tmp_path / "run" / "config.toml").run.steps == 2


def test_a_run_file_that_cannot_be_read_is_told_in_the_run_that_it_is_of(run_file: Path, tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "mine")
    run_file.write_text(run_file.read_text() + '[trainer]\nlr = "fast"\n')
    for path in (tmp_path / "absent", directory.path):
        with pytest.raises(ConfigError, match="expected a number"):
            job_of(run_file, path)
    assert directory.read_events() == [], "it is no run yet"
    directory.config.write_text("")
    with pytest.raises(ConfigError, match="expected a number"):
        job_of(run_file, directory.path)
    (refused,) = directory.read_events()
    assert refused["event"] == "broker.refused"
    assert str(refused["cause"]).startswith("trainer.lr: expected a number such as 1e-5, got 'fast'")
    with locked(directory.lock, "served"), pytest.raises(ConfigError, match="expected a number"):
        job_of(run_file, directory.path)
    assert len(directory.read_events()) == 1, "another broker serves it, and writes its events"


def test_an_address_that_cannot_be_bound_is_refused(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"--broker is '127\.0\.0\.1': expected tcp://HOST:PORT"):
        job_of(run_file, address="127.0.0.1")


def test_a_broker_that_cannot_listen_leaves_no_run_behind(run_file: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(LinkError, match=f"cannot bind {address}: the port is in use"):
            asyncio.run(_run(job_of(run_file, tmp_path / "run", address)))
    with pytest.raises(ConfigError, match="its connections need keys; give --keys DIR"):
        asyncio.run(_run(job_of(run_file, tmp_path / "run", "tcp://*:0")))
    assert not (tmp_path / "run").exists()


def test_its_address_is_in_the_run_directory_while_it_listens(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binds: list[list[str]] = []

    async def run_broker(
        _config: object, directory: RunDirectory, *, bind: list[str], listening: Callable[[list[str]], None], **_: Any
    ) -> None:
        binds.append(bind)
        listening(["tcp://127.0.0.1:5577"])
        assert directory.address.read_text() == "tcp://127.0.0.1:5577\n"

    monkeypatch.setattr(broker, "run_broker", run_broker)
    monkeypatch.setattr(broker, "raise_gc_threshold", lambda: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for _ in range(2):
        job = job_of(run_file, tmp_path / "run", "tcp://127.0.0.1:0")
        asyncio.run(_run(job))
    assert binds == [["tcp://127.0.0.1:0"], ["tcp://127.0.0.1:5577"]], "started again, it listens where nodes look"


@pytest.mark.parametrize(
    ("is_over", "is_supervised", "expected"), [(True, False, ["run"]), (False, False, []), (True, True, [])]
)
def test_the_broker_of_a_service_writes_the_report_once_the_run_is_over(
    run_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_over: bool,
    is_supervised: bool,
    expected: list[str],
) -> None:
    """`asyncrl run` writes it itself. A broker that was told to stop leaves the run as it is."""
    reported: list[str] = []

    async def run_broker(_config: object, directory: RunDirectory, **_: object) -> None:
        if is_over:
            directory.summary.touch()
            raise RunInterrupted("the run was interrupted")

    def write_report(directory: RunDirectory) -> str:
        reported.append(directory.path.name)
        return "the disk is full"

    monkeypatch.setattr(broker, "run_broker", run_broker)
    monkeypatch.setattr(broker, "raise_gc_threshold", lambda: None)
    monkeypatch.setattr(node_jobs, "write_report", write_report)
    monkeypatch.setattr(run_record, "is_supervised", lambda _: is_supervised)
    with pytest.raises(RunInterrupted) if is_over else nullcontext():
        asyncio.run(_run(job_of(run_file, tmp_path / "run")))
    assert reported == expected


def test_a_traced_broker_sends_the_spans_of_its_run_until_it_ends(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    @asynccontextmanager
    async def spans_sent(run: str) -> AsyncIterator[Callable[[object], None]]:
        told.append(f"{run} begins")
        yield told.append
        told.append("ended")

    async def run_broker(*_: object, send_spans: Callable[[object], None] | None, **__: object) -> None:
        if send_spans:
            send_spans("a span")

    monkeypatch.setattr(broker, "run_broker", run_broker)
    monkeypatch.setattr(broker, "raise_gc_threshold", lambda: None)
    monkeypatch.setattr(metrics_server, "spans_sent", spans_sent)
    for is_traced in (False, True):
        job = broker_job(
            config_path=run_file,
            overrides=(),
            address=None,
            run_dir=tmp_path / "mine",
            secret_file=None,
            key_folder=None,
            is_traced=is_traced,
        )
        asyncio.run(_run(job))
    assert told == ["mine begins", "a span", "ended"]


def test_traces_without_their_package_end_the_broker_before_it_starts(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncrl.runtime.exporter", None)
    with pytest.raises(ConfigError, match="--traces needs opentelemetry: pip install"):
        broker_job(
            config_path=run_file,
            overrides=(),
            address=None,
            run_dir=None,
            secret_file=None,
            key_folder=None,
            is_traced=True,
        )


async def _run(job: Job) -> None:
    await job(StopEvent())


# ── test node jobs ────────────────────────────────────────────────────────────────────────────
# Jobs of nodes that join a broker: bad options are refused before anything is started.

OPTIONS = NodeOptions("collective", may_fetch=True, wait_s=1.0)
FOUND = RunAddress("ipc:///nowhere")


async def find() -> RunAddress:
    return FOUND


def a_node(role: Role) -> RunNode:
    return RunNode(identity(role, f"{role}-0"), find, wait_s=1.0)


@pytest.mark.parametrize("replicas", ["0", "-1", "two", "1.5", ""])
def test_a_bad_number_of_replicas_is_refused(replicas: str) -> None:
    with pytest.raises(ConfigError, match=f"--replicas is {replicas!r}: expected auto or a number of at least 1"):
        replicas_job(a_node("rollout"), replicas, None, OPTIONS)


def test_devices_without_replicas_are_refused() -> None:
    with pytest.raises(ConfigError, match="--devices works only with --replicas"):
        replicas_job(a_node("rollout"), None, "0", OPTIONS)


def test_without_replicas_there_is_one_rollout_in_this_process() -> None:
    assert replicas_job(a_node("rollout"), None, None, OPTIONS) is None


@pytest.mark.parametrize(("address", "run_dir"), [(None, None), ("tcp://127.0.0.1:5570", Path("runs/a"))])
def test_a_node_is_told_the_brokers_address_or_the_run_directory(address: str | None, run_dir: Path | None) -> None:
    with pytest.raises(ConfigError, match="a reward needs the broker's address, --broker tcp://HOST:PORT, or on its"):
        finder("reward", address, run_dir, None, 1.0)


def test_a_spool_needs_a_folder_and_an_address_that_it_can_bind() -> None:
    with pytest.raises(ConfigError, match="--dir FOLDER is missing"):
        spool_job(a_node("spool"), None, None)
    with pytest.raises(ConfigError, match=r"--bind is 'tcp://10\.0\.0\.7': expected tcp://HOST:PORT"):
        spool_job(a_node("spool"), Path("payloads"), "tcp://10.0.0.7")


@pytest.mark.parametrize("role", ["rollout", "reward", "trainer"])
def test_each_role_has_its_own_work(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[tuple[RunAddress, str]] = []

    async def work(node: RunNode, stopping: StopEvent, **_: object) -> None:
        async with node.part_of_run(stopping):
            began.append((node.run, role))

    module = "node_jobs" if role == "reward" else role
    monkeypatch.setattr(f"asyncrl.runtime.{module}.run_{role}", work)
    asyncio.run(_began(node_job(a_node(role), OPTIONS)))
    assert began == [(FOUND, role)]


async def _began(job: Job) -> None:
    await job(StopEvent())


# ── test staleness process ────────────────────────────────────────────────────────────────────
# The process that fits a plan for the broker: its answer, and every way in which it fails.


def choose(path: Path) -> StalenessChoice:
    return asyncio.run(choose_staleness(path))


def test_it_answers_for_a_run(tmp_path: Path) -> None:
    choice = choose(a_run(tmp_path, steps=20))
    assert (choice.before, choice.staleness) == (1.0, 1.0)


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AsyncrlError, match=r"no plan for the staleness was fitted \(exit code 78\): .*no such run"):
        choose(tmp_path / "none")


def test_one_that_hangs_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_jobs, "DEADLINE_S", 0.01)
    with pytest.raises(AsyncrlError, match=r"no plan for the staleness was fitted within 0\.01 s"):
        choose(tmp_path)


def test_a_program_that_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AsyncrlError, match=r"was not started: .*No such file"):
        choose(tmp_path)


def test_an_answer_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "true")
    with pytest.raises(AsyncrlError, match="gave no choice"):
        choose(tmp_path)


# ── reward node ───────────────────────────────────────────────────────────────────────────────────
# A reward node that cannot start reports the cause to the broker and to its caller.


async def start_reward(run: RunAddress, who: Identity) -> None:
    await run_reward(RunNode(who, run, wait_s=10.0), StopEvent())


def test_a_reward_node_without_its_function_leaves_with_the_cause() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "reward": {"function": "nowhere.py:score"}})
    error, reason = refused(config, "reward", start_reward)
    assert error == reason
    assert "nowhere.py" in error
