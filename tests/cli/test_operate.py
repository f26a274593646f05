"""The commands as they are typed: options, output, exit codes."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from asyncrl.cli.operate import PAUSED, RESUMED, age, ask_to_drain, ask_to_pause, list_runs, run_table, set_settings
from asyncrl.cli.session import operator
from asyncrl.errors import ConfigError, LinkError, RunFailed
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Bye, Drain, Hello
from asyncrl.messages.supervisor import Drained, Finished, Pause, Paused, SetSettings, SettingsChanged
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import RunOverview
from asyncrl.wire.run_address import RunAddress
from tests.cli.conversation import with_broker
from tests.cli.invoke import asyncrl


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run of four steps that was killed."""
    directory = RunDirectory.create(tmp_path, "tiny")
    directory.config.write_text('[run]\nsteps = 4\n[model]\npath = "m"\n[data]\ntrain = "t"\n')
    return directory


def test_the_state_of_a_killed_run_is_printed_with_a_code_that_says_it_is_unknown(directory: RunDirectory) -> None:
    result = asyncrl("status", directory.path)
    assert result.exit_code == 69
    assert result.stdout.startswith("tiny: stopped, step 0 of 4")
    assert "its broker does not run" in result.stderr
    assert json.loads(asyncrl("status", directory.path, "--json").stdout)["files"]["steps"] == 4


def test_the_runs_of_a_folder_are_listed(directory: RunDirectory, tmp_path: Path) -> None:
    assert "tiny  stopped   0/4" in asyncrl("ls", tmp_path).stdout
    assert json.loads(asyncrl("ls", tmp_path, "--json").stdout)[0]["run"] == "tiny"
    assert asyncrl("ls", directory.path).stdout == f"there are no runs in {directory.path}\n"


def test_a_run_that_is_over_is_shown_once_by_top_and_left_alone_by_stop(directory: RunDirectory) -> None:
    assert asyncrl("top", directory.path).stdout.startswith("tiny: stopped, step 0 of 4")
    assert asyncrl("stop", directory.path).stdout.startswith(
        "tiny has no broker to tell: it stopped after 0 of 4 steps"
    )


def test_the_last_lines_of_a_log_are_printed_and_following_a_run_that_is_over_ends(directory: RunDirectory) -> None:
    (directory.logs / "trainer-0.log").write_text("one\ntwo\nthree\n")
    assert asyncrl("logs", directory.path, "-n", 1).stdout == "trainer-0  three\n"
    assert asyncrl("logs", directory.path, "trainer-0", "-f").stdout == "one\ntwo\nthree\n"


@pytest.mark.parametrize("command", ["status", "top", "stop", "logs", "pause", "unpause", "set a.b=1", "stacks x"])
def test_a_wrong_name_is_one_sentence_that_says_where_runs_are_listed(command: str, tmp_path: Path) -> None:
    result = asyncrl(*command.split()[:1], tmp_path / "nowhere", *command.split()[1:])
    assert result.exit_code == 78
    assert "`asyncrl ls` lists the runs below runs/" in result.stderr
    assert len(result.stderr.splitlines()) == 1


# ── test drain ────────────────────────────────────────────────────────────────────────────────


async def asked(*answers: Message, wait_s: float = 5.0) -> list[Message]:
    """Run `asyncrl drain` against a broker that gives these answers; returns the messages the broker received."""

    async def command(run: RunAddress) -> None:
        await ask_to_drain(run, "rollout-1", wait_s)

    return (await with_broker(command, {Drain: answers}))[1]


def test_drain_waits_until_the_node_has_left() -> None:
    heard = asyncio.run(asked(Drained("rollout-1")))
    assert [type(message) for message in heard] == [Hello, Drain, Bye]


def test_a_refusal_of_the_broker_is_reported() -> None:
    problem = "there is no node rollout-1; those that can be drained are: none"
    with pytest.raises(ConfigError, match=problem):
        asyncio.run(asked(Drained("rollout-1", problem, is_refused=True)))


def test_a_node_that_was_lost_meanwhile_is_no_mistake_of_the_operator() -> None:
    with pytest.raises(RunFailed, match="it was lost before it could leave"):
        asyncio.run(asked(Drained("rollout-1", "it was lost before it could leave: silent for 10 s")))


def test_the_time_to_wait_for_a_node_is_limited() -> None:
    with pytest.raises(RunFailed, match=r"rollout-1 was asked to leave, but did not within 0\.1 s"):
        asyncio.run(asked(wait_s=0.1))


def test_a_run_that_ends_meanwhile_is_reported() -> None:
    with pytest.raises(LinkError, match="the run ended before the node left"):
        asyncio.run(asked(Finished("finished", "")))


# ── test pause ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("is_paused", "sentence"), [(True, PAUSED), (False, RESUMED)])
def test_the_broker_is_told_and_its_answer_awaited(is_paused: bool, sentence: str) -> None:
    answers = {Pause: [Paused(not is_paused, "told on joining"), Paused(is_paused, "operator")]}
    told, heard = asyncio.run(with_broker(lambda run: ask_to_pause(run, is_paused=is_paused), answers))
    assert told == sentence
    assert [type(message) for message in heard] == [Hello, Pause, Bye]
    assert heard[1] == Pause(is_paused)


# ── test run list ─────────────────────────────────────────────────────────────────────────────


def test_runs_are_listed_in_the_order_of_their_beginning(tmp_path: Path) -> None:
    for name, at in (("late", 2_000.0), ("early", 1_000.0)):
        directory = RunDirectory.create(tmp_path, name)
        directory.config.write_text("[run]\nsteps = 4\n")
        RunDirectory(directory.path, wall_clock=lambda at=at: at).append_event("run.started")  # type: ignore[misc]
    assert [run.run for run in list_runs(tmp_path)] == ["early", "late"]


def test_a_run_that_never_started_has_the_age_of_its_configuration(tmp_path: Path) -> None:
    old = RunDirectory.create(tmp_path, "old")
    old.config.write_text("[run]\nsteps = 4\n")
    RunDirectory(old.path, wall_clock=lambda: 1_000.0).append_event("run.started")
    new = RunDirectory.create(tmp_path, "new")
    new.config.write_text("[run]\nsteps = 4\n")
    os.utime(new.config, (2_000.0, 2_000.0))
    assert [(run.run, run.began_at) for run in list_runs(tmp_path)] == [
        ("old", "1970-01-01T00:16:40.000Z"),
        ("new", "1970-01-01T00:33:20.000Z"),
    ]


def test_a_run_is_one_line_with_what_is_known() -> None:
    known = RunOverview(
        run="a", status="running", step=3, steps=40, reward=0.5, base_accuracy=None, accuracy=0.985, age_s=90.0,
        num_bytes=7_700_000,
    )  # fmt: skip
    unknown = RunOverview(
        run="broken", status="stopped", step=0, steps=None, reward=None, base_accuracy=None, accuracy=None
    )
    assert run_table([known, unknown]) == [
        "run     status   step  reward  held out         age    disk",
        "a       running  3/40   0.500     98.5%  1 min 30 s  7.70MB",
        "broken  stopped   0/?                                    0B",
    ]


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        list_runs(tmp_path / "nowhere")


def test_an_age_of_days_is_told_in_days() -> None:
    assert (age(7_200.0), age(300_000.0)) == ("2 h 0 min", "3 days")


# ── test settings ─────────────────────────────────────────────────────────────────────────────


ME = f"operator-{os.getpid()}"
"""Name of this process in the run."""


def answered(*answers: Message) -> tuple[list[str], list[Message]]:
    """Run `asyncrl set` as the operator `ME`."""

    async def command(run: RunAddress) -> list[str]:
        return await set_settings(run, ["trainer.lr=0.5"])

    return asyncio.run(with_broker(command, {SetSettings: answers}))


def test_each_change_is_a_line_and_changes_of_others_are_no_answer() -> None:
    other = SettingsChanged({"trainer.lr": 0.1}, "somebody")
    lines, heard = answered(other, SettingsChanged({"trainer.lr": 0.5}, ME))
    assert lines == ["trainer.lr = 0.5 from now on"]
    assert [type(message) for message in heard] == [Hello, SetSettings, Bye]
    assert heard[1] == SetSettings(["trainer.lr=0.5"])


def test_values_that_are_so_already_change_nothing() -> None:
    lines, _ = answered(SettingsChanged({}, ME))
    assert lines == ["nothing changed: the run has these values already"]


def test_a_refusal_is_an_error_with_the_brokers_sentence() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.lr: expected a number"):
        answered(SettingsChanged({}, ME, "trainer.lr: expected a number"))


def test_an_operator_knows_its_name() -> None:
    async def command(run: RunAddress) -> str:
        async with operator(run) as session:
            return session.name

    assert asyncio.run(with_broker(command, {}))[0].startswith("operator-")
