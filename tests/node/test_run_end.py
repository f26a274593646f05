"""A node ends with its run, even if the broker has left before it could say so."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.errors import LinkError
from asyncrl.files.lock import locked
from asyncrl.node import run_end
from asyncrl.node.run_end import QUIET_LOOKS, is_over, unless_over, until_over
from asyncrl.observe.run_directory import RunDirectory, RunSummary


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
    monkeypatch.setattr(run_end, "LOOK_S", 0.001)
    RunDirectory(tmp_path).write_summary(summary("finished"))
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    asyncio.run(unless_over(tmp_path, work()))
    assert ended == ["work"]


@pytest.mark.parametrize("run_dir", [None, Path("/nowhere")])
def test_work_that_ends_by_itself_is_awaited_and_its_error_raised(run_dir):
    async def work() -> None:
        raise LinkError("no broker")

    with pytest.raises(LinkError, match="no broker"):
        asyncio.run(unless_over(run_dir, work()))
