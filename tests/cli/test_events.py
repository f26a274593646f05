"""`asyncrl events`: which events it prints, how, and how long."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from asyncrl.cli.logs import KIND_CHARS, Events, event_lines
from asyncrl.files.json_lines import JsonLines
from asyncrl.files.lock import locked
from asyncrl.records.events import EventKind
from asyncrl.records.run_directory import RunDirectory
from tests.cli.invoke import asyncrl

KINDS: list[EventKind] = ["run.started", "node.joined", "version.live", "node.lost", "version.live"]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, "toy")
    directory.config.write_text("[run]\nsteps = 4\n")
    for number, kind in enumerate(KINDS):
        directory.append_event(kind, number=number)
    return directory


def printed(run: RunDirectory, *options: object) -> list[str]:
    """Kinds that the command prints."""
    result = asyncrl("events", run.path, *options)
    assert result.exit_code == 0
    return [line.split()[1] for line in result.stdout.splitlines()]


def test_events_are_lines_in_order_with_their_fields(run: RunDirectory) -> None:
    run.append_event("node.exited", node="rollout-0", cause="silent for 10 s")
    assert printed(run) == [*KINDS, "node.exited"]
    last = asyncrl("events", run.path).output.splitlines()[-1]
    assert last.endswith('Z  node.exited           node=rollout-0 cause="silent for 10 s"')


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (["--only", "node.lost"], ["node.lost"]),
        (["--only", "node."], ["node.joined", "node.lost"]),
        (["--only", "node.exited", "--only", "run.started"], ["run.started"]),
        (["--without", "version.live"], ["run.started", "node.joined", "node.lost"]),
        (["--only", "node.", "--without", "node.lost"], ["node.joined"]),
        (["-n", "2"], ["node.lost", "version.live"]),
        (["-n", "2", "--without", "version."], ["node.joined", "node.lost"]),
        (["-n", "0"], []),
        (["-n", "9"], KINDS),
        (["--only", "node.exited"], []),
    ],
)
def test_kinds_are_chosen_by_name_or_beginning_and_the_last_of_them_by_number(
    run: RunDirectory, options: list[str], kinds: list[str]
) -> None:
    assert printed(run, *options) == kinds


def test_a_kind_that_no_event_has_is_told_apart_from_an_empty_choice_by_number(run: RunDirectory) -> None:
    assert asyncrl("events", run.path, "--only", "node.exited").stderr == "no such events\n"
    assert asyncrl("events", run.path, "-n", "0").stderr == ""


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        ("node.lots", "did you mean 'node.lost'?"),
        ("node", "did you mean 'node.'?"),
        ("xyzzy", "kinds begin with broker., checkpoint., "),
    ],
)
@pytest.mark.parametrize("option", ["--only", "--without"])
def test_a_kind_that_no_event_ever_has_is_refused_with_the_nearest(
    run: RunDirectory, option: str, kind: str, meant: str
) -> None:
    refused = asyncrl("events", run.path, option, kind)
    assert refused.exit_code == 2
    assert f"no event is of the kind {kind!r}: {meant}" in refused.stderr


def test_a_kind_of_a_newer_version_is_known_once_the_run_has_it(run: RunDirectory) -> None:
    JsonLines(run.events).append({"event": "moon.rose", "at": "2031-01-01T00:00:00.000Z"})
    assert printed(run, "--only", "moon.rose") == ["moon.rose"]


def test_following_prints_what_happens_until_the_run_is_over(run: RunDirectory) -> None:
    held = ExitStack()
    held.enter_context(locked(run.lock, "held"))
    events = Events(run.path, without=["version.live"])

    async def sleep(_seconds: float) -> None:
        run.append_event("version.live")
        run.append_event("run.finished")
        held.close()

    async def followed() -> list[list[str]]:
        return [[event["event"] for event in happened] async for happened in events.follow(sleep)]

    assert asyncio.run(followed()) == [["run.started", "node.joined", "node.lost"], ["run.finished"]]
    assert printed(run, "-f", "-n", "1") == ["run.finished"], "of a run that is over it ends at once"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("rollout-0", "rollout-0", id="a word"),
        pytest.param("killed by SIGKILL", '"killed by SIGKILL"', id="words"),
        pytest.param("a\nb", '"a\\nb"', id="lines stay one"),
        pytest.param("a=b", '"a=b"', id="looks like a field"),
        pytest.param("", '""', id="empty"),
        pytest.param(0.25, "0.25", id="a number"),
        pytest.param(0.5094000000000003, "0.5094", id="a sum of fractions"),
        pytest.param(12345678.0, "12345678.0", id="a large number"),
        pytest.param({"a": [1 / 3]}, '{"a":[0.333333]}', id="fractions within"),
        pytest.param(None, "null", id="nothing"),
        pytest.param(True, "true", id="a claim"),
        pytest.param([1, 2], "[1,2]", id="a list"),
    ],
)
def test_a_field_of_an_event_is_one_word_or_json(value: Any, shown: str) -> None:
    (line,) = event_lines([{"event": "e", "at": "t", "field": value}])
    assert line == f"t  {'e':<{KIND_CHARS}}  field={shown}"
