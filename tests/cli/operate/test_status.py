import asyncio
from pathlib import Path

import pytest

from asyncrl.cli.operate import status as module
from asyncrl.cli.operate.status import ask_status, opened, plain, run_state
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import ConfigError, LinkError
from asyncrl.files.lock import locked
from asyncrl.messages.supervisor import NodeStatus, Status, StatusWanted
from asyncrl.observe.run_directory import RunDirectory, RunSummary
from tests.cli.operate.conversation import with_broker

STATUS = Status("tiny", "running", 1, 4, 0, 4, 0, 2, {}, [NodeStatus("spool", "spool", "working")])


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, "tiny")
    directory.config.write_text('[run]\nsteps = 4\n[model]\npath = "m"\n[data]\ntrain = "t"\n')
    return directory


def finish(directory: RunDirectory) -> None:
    summary = RunSummary(
        name="tiny", status="finished", seed=0, steps=4, steps_planned=4, versions=4, wall_s=1.0, trained_tokens=9,
        staleness_mean=0.0, staleness_max=0,
    )  # fmt: skip
    directory.write_summary(summary)


def test_a_broker_is_asked_for_the_state() -> None:
    assert asyncio.run(with_broker(ask_status, {StatusWanted: [STATUS]}))[0] == STATUS


def test_a_run_that_is_over_is_told_by_its_files_without_waiting(directory: RunDirectory) -> None:
    finish(directory)
    state = asyncio.run(run_state(str(directory.path)))
    assert state.live is None
    assert state.files is not None
    assert (state.files.status, state.is_unknown) == ("finished", False)
    assert state.unasked == "its broker has ended, because the run is over"


def test_a_killed_run_is_told_by_its_files_and_its_state_is_unknown(directory: RunDirectory) -> None:
    state = asyncio.run(run_state(str(directory.path)))
    assert state.is_unknown
    assert state.unasked.startswith("its broker does not run, and no end of the run is recorded")


def test_a_broker_that_is_started_again_is_told_from_one_that_is_gone(directory: RunDirectory) -> None:
    with locked(directory.supervisor_lock, "held"):
        state = asyncio.run(run_state(str(directory.path)))
    assert state.is_supervised
    assert state.unasked == "its broker does not run at this moment, but `asyncrl run` does, and starts or ends it"


def test_a_broker_that_hangs_is_told_by_files_with_the_reason(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(_run: RunAddress) -> Status:
        raise LinkError("no broker answered")

    monkeypatch.setattr(module, "ask_status", hangs)
    with locked(directory.lock, "held"):
        directory.address.write_text("ipc:///tmp/broker\n")
        state = asyncio.run(run_state(str(directory.path)))
    assert state.unasked == "its broker could not be asked: no broker answered"
    assert state.files is not None
    assert state.files.status == "running"


def test_a_broker_that_has_yet_to_listen_is_told_to_be_starting_without_waiting(directory: RunDirectory) -> None:
    with locked(directory.lock, "held"):
        state = asyncio.run(run_state(str(directory.path)))
    assert state.unasked == "the broker is starting: it reads the prompts and the ledger"
    assert state.files is not None
    assert state.files.status == "running"


def test_a_name_that_is_no_run_says_how_to_find_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither a run directory nor a broker's address.*asyncrl ls"):
        opened(str(tmp_path))


def test_a_mistyped_run_is_answered_with_the_one_beside_it(directory: RunDirectory) -> None:
    with pytest.raises(ConfigError, match=rf"; did you mean {directory.path}\?$"):
        opened(f"{directory.path}x")


def test_messages_become_objects_in_json() -> None:
    assert plain(STATUS)["nodes"][0]["node"] == "spool"
