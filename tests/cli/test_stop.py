import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from asyncrl.cli import stop as module
from asyncrl.cli.status import SERVICES
from asyncrl.cli.stop import RunEnd, ask, from_log, interrupt, kept_lines, pid_of, stop, wait_until_left
from asyncrl.errors import ConfigError, LinkError
from asyncrl.files.lock import locked
from asyncrl.messages.session import Bye, Hello
from asyncrl.messages.supervisor import Finished, Interrupt, Paused, Progress, Stacks, StacksWanted
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import RunOverview
from asyncrl.wire.run_address import RunAddress
from tests.cli.conversation import with_broker


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, "tiny")
    directory.logs.mkdir(exist_ok=True)
    return directory


async def asked(*answers: Stacks) -> str:
    async def command(run: RunAddress) -> str:
        return await ask(run, "rollout-0")

    return (await with_broker(command, {StacksWanted: answers}))[0]


def test_the_answer_of_the_node_is_the_text() -> None:
    assert asyncio.run(asked(Stacks("rollout-0", "thread MainThread"))) == "thread MainThread"


def test_a_wrong_name_is_an_error_with_the_brokers_sentence() -> None:
    with pytest.raises(ConfigError, match="there is no node"):
        asyncio.run(asked(Stacks("rollout-0", "", "there is no node rollout-0")))


def test_a_node_that_does_not_answer_is_said_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.cli.session.ANSWER_S", 0.1)
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    with pytest.raises(LinkError, match=r"rollout-0 did not answer within 0\.1 s: its event loop hangs"):
        asyncio.run(asked())


HANGS = """
import time
from asyncrl.runtime.service_manager import show_stacks_on_abort
show_stacks_on_abort()
def a_loop_that_hangs():
    print("hangs", flush=True)
    time.sleep(60)
a_loop_that_hangs()
"""


@pytest.fixture
def hanging(directory: RunDirectory) -> Iterator["subprocess.Popen[str]"]:
    """A process that looks like a node and never answers; its errors go to the log of rollout-0."""
    command = [sys.executable, "-c", HANGS, "asyncrl.cli.node"]
    with (directory.logs / "rollout-0.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout
    assert process.stdout.readline() == "hangs\n"
    directory.append_event("node.joined", node="rollout-0", role="rollout", incarnation=f"18eafaf-{process.pid}")
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_process_that_hangs_writes_its_threads_to_its_log(
    directory: RunDirectory, hanging: "subprocess.Popen[str]"
) -> None:
    assert pid_of(directory, "rollout-0") == hanging.pid
    assert "in a_loop_that_hangs" in from_log(directory, "rollout-0", "it hangs")
    assert hanging.poll() is None, "and goes on"


def test_another_process_that_has_the_number_by_now_is_left_alone(directory: RunDirectory) -> None:
    directory.append_event("node.joined", node="rollout-0", role="rollout", incarnation=f"18eafaf-{os.getpid()}")
    (directory.logs / "rollout-0.log").touch()
    assert pid_of(directory, "rollout-0") is None
    with pytest.raises(LinkError, match="it hangs; its process is not one of this machine"):
        from_log(directory, "rollout-0", "it hangs")


def test_a_process_that_cannot_write_either_is_reported_in_time(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "pid_of", lambda *_: 7)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    (directory.logs / "broker-0.log").touch()
    times = iter([0.0, 1.0, 9.0])
    with pytest.raises(LinkError, match=r"process 7 wrote nothing to .*broker-0\.log within 3 s either"):
        from_log(directory, "broker", "it hangs", sleep=lambda _: None, clock=lambda: next(times))
    assert sent == [(7, signal.SIGUSR2)]


def test_the_number_of_a_broker_is_in_its_lock(directory: RunDirectory) -> None:
    directory.lock.write_text("no number")
    assert pid_of(directory, "broker") is None
    assert pid_of(directory, "never-joined") is None


# ── test stop ─────────────────────────────────────────────────────────────────────────────────

INTERRUPTED = Finished("interrupted", "the run was interrupted")


@pytest.fixture
def stop_directory(tmp_path: Path) -> RunDirectory:
    stop_directory = RunDirectory.create(tmp_path, "tiny")
    stop_directory.config.write_text("[run]\nsteps = 4\n[checkpoint]\nevery_steps = 0\n")
    return stop_directory


def test_the_broker_is_told_and_its_end_awaited() -> None:
    answers = {Interrupt: [Progress(1, 4, {}), INTERRUPTED]}
    found, heard = asyncio.run(with_broker(lambda run: interrupt(run, 5.0), answers, run_dir="/far/runs/x"))
    assert found == RunEnd(INTERRUPTED, "/far/runs/x")
    assert [type(message) for message in heard] == [Hello, Interrupt, Bye]


def test_a_pause_outlives_the_end_that_another_machine_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {Interrupt: [Paused(True, "ann"), INTERRUPTED]}
    monkeypatch.setattr(module, "locate", lambda where, _key: where)
    monkeypatch.setattr(module, "interrupt", lambda _run, wait_s: real(wait_s))

    async def real(wait_s: float) -> RunEnd:
        return (await with_broker(lambda run: interrupt(run, wait_s), answers))[0]

    assert asyncio.run(stop("tcp://10.0.0.1:5570", None, 5.0))[-1] == (
        "paused      ann paused sampling, which a resume does not end; once the run is resumed: asyncrl "
        "unpause tcp://10.0.0.1:5570"
    )


def test_an_end_that_does_not_come_in_time_is_an_error() -> None:
    with pytest.raises(LinkError, match=r"told to end, but has not within 0\.1 s"):
        asyncio.run(with_broker(lambda run: interrupt(run, 0.1), {}))


def test_a_run_that_is_over_stays_as_it_is(stop_directory: RunDirectory) -> None:
    lines = asyncio.run(stop(str(stop_directory.path), None, 1.0))
    assert lines[0] == "tiny has no broker to tell: it stopped after 0 of 4 steps, and goes on as soon as one serves it"
    assert lines[2] == f"resume      asyncrl resume {stop_directory.path}"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://10.0.0.1:5570", f"resume      {SERVICES}"),
        ("ipc:///x", f"resume      asyncrl resume /far/runs/x, there; or {SERVICES}"),
    ],
)
def test_a_run_that_another_machine_reaches_is_continued_by_its_services(
    monkeypatch: pytest.MonkeyPatch, address: str, expected: str
) -> None:
    async def interrupted(_run: object, _wait_s: float) -> RunEnd:
        return RunEnd(INTERRUPTED, "/far/runs/x")

    monkeypatch.setattr(module, "locate", lambda where, _key: where)
    monkeypatch.setattr(module, "interrupt", interrupted)
    assert asyncio.run(stop(address, None, 1.0))[-1] == expected


def test_a_run_whose_broker_is_started_again_is_not_taken_for_one_that_is_over(stop_directory: RunDirectory) -> None:
    with locked(stop_directory.supervisor_lock, "held"), pytest.raises(LinkError, match="no broker at this moment"):
        asyncio.run(stop(str(stop_directory.path), None, 1.0))


def test_the_command_returns_once_nobody_holds_the_run(stop_directory: RunDirectory) -> None:
    held = ExitStack()
    held.enter_context(locked(stop_directory.lock, "held"))
    naps: Iterator[None] = iter([None, None])

    async def sleep(_seconds: float) -> None:
        if next(naps, "over") == "over":
            held.close()

    asyncio.run(wait_until_left(stop_directory, sleep=sleep, clock=lambda: 0.0))


def test_processes_that_do_not_leave_are_an_error(stop_directory: RunDirectory) -> None:
    times = iter([0.0, module.LEAVE_S + 1])
    with locked(stop_directory.supervisor_lock, "held"), pytest.raises(LinkError, match="its processes have not left"):
        asyncio.run(wait_until_left(stop_directory, clock=lambda: next(times)))


def test_what_was_kept_is_told_with_the_command_that_resumes() -> None:
    run = RunOverview(
        run="tiny", status="interrupted", step=3, steps=4, reward=0.5, base_accuracy=0.1, accuracy=0.25,
        accuracy_failed=6, checkpoint="runs/tiny/checkpoints/step_000003",
    )  # fmt: skip
    assert kept_lines(run, "runs/tiny") == [
        "tiny is over: interrupted after 3 of 4 steps, held-out accuracy 25.0 % (6 failed)",
        "checkpoint  runs/tiny/checkpoints/step_000003",
        "resume      asyncrl resume runs/tiny",
    ]


def test_what_was_kept_of_a_run_before_its_first_checkpoint_says_when_that_comes_and_that_it_is_paused(
    stop_directory: RunDirectory,
) -> None:
    stop_directory.append_event("sampling.paused", by="ann")
    lines = asyncio.run(stop(str(stop_directory.path), None, 1.0))
    assert lines[1] == (
        "checkpoint  none yet: the first one comes after the last step (checkpoint.every_steps = 0), or with `asyncrl "
        "stop`; until then a resume begins from the base model, with the same batches"
    )
    assert lines[3] == (
        "paused      ann paused sampling, which a resume does not end; once the run is resumed: asyncrl "
        f"unpause {stop_directory.path}"
    )
