import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from asyncrl.cli.operate import stop as module
from asyncrl.cli.operate.resume import SERVICES
from asyncrl.cli.operate.stop import interrupt, kept_lines, stop, wait_until_left
from asyncrl.errors import LinkError
from asyncrl.files.lock import locked
from asyncrl.messages.session import Bye, Hello
from asyncrl.messages.supervisor import Finished, Interrupt, Progress
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.run_overview import RunOverview
from tests.cli.operate.conversation import with_broker

INTERRUPTED = Finished("interrupted", "the run was interrupted")


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, "tiny")
    directory.config.write_text("[run]\nsteps = 4\n")
    return directory


def test_the_broker_is_told_and_its_end_awaited() -> None:
    answers = {Interrupt: [Progress(1, 4, {}), INTERRUPTED]}
    found, heard = asyncio.run(with_broker(lambda run: interrupt(run, 5.0), answers, run_dir="/far/runs/x"))
    assert found == (INTERRUPTED, "/far/runs/x")
    assert [type(message) for message in heard] == [Hello, Interrupt, Bye]


def test_an_end_that_does_not_come_in_time_is_an_error() -> None:
    with pytest.raises(LinkError, match=r"told to end, but has not within 0\.1 s"):
        asyncio.run(with_broker(lambda run: interrupt(run, 0.1), {}))


def test_a_run_that_is_over_stays_as_it_is(directory: RunDirectory) -> None:
    lines = asyncio.run(stop(str(directory.path), None, 1.0))
    assert lines[0] == "tiny is over: stopped after 0 of 4 steps"
    assert lines[2] == f"resume      asyncrl resume {directory.path}"


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
    async def interrupted(_run: object, _wait_s: float) -> tuple[Finished, str]:
        return INTERRUPTED, "/far/runs/x"

    monkeypatch.setattr(module, "locate", lambda where, _key: where)
    monkeypatch.setattr(module, "interrupt", interrupted)
    assert asyncio.run(stop(address, None, 1.0))[-1] == expected


def test_a_run_whose_broker_is_started_again_is_not_taken_for_one_that_is_over(directory: RunDirectory) -> None:
    with locked(directory.supervisor_lock, "held"), pytest.raises(LinkError, match="no broker at this moment"):
        asyncio.run(stop(str(directory.path), None, 1.0))


def test_the_command_returns_once_nobody_holds_the_run(directory: RunDirectory) -> None:
    held = ExitStack()
    held.enter_context(locked(directory.lock, "held"))
    naps: Iterator[None] = iter([None, None])

    async def sleep(_seconds: float) -> None:
        if next(naps, "over") == "over":
            held.close()

    asyncio.run(wait_until_left(directory, sleep=sleep, clock=lambda: 0.0))


def test_processes_that_do_not_leave_are_an_error(directory: RunDirectory) -> None:
    times = iter([0.0, module.LEAVE_S + 1])
    with locked(directory.supervisor_lock, "held"), pytest.raises(LinkError, match="its processes have not left"):
        asyncio.run(wait_until_left(directory, clock=lambda: next(times)))


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
