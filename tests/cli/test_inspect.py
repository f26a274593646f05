"""`asyncrl audit`, `events` and `dead-letters` on a small run directory: what they print, and how they end."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from asyncrl.broker.ledger import records
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.records import Admitted, FailedAttempt, Rewarded, Taken, VersionLive
from asyncrl.cli.main import main
from asyncrl.messages import SpoolRef, TrajectorySummary, Unit
from asyncrl.observe.run_directory import RunDirectory


def asyncrl(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def write(directory: RunDirectory, *new: records.Record) -> None:
    async def append() -> None:
        await ledger.commit(new)

    ledger = Ledger(directory.ledger)
    asyncio.run(append())
    ledger.close()


def result(group_id: int, index: int, num_tokens: int) -> records.Result:
    summary = TrajectorySummary(num_tokens, 5, 0, 0, 1, "stop")
    return records.Result(Unit(group_id, index), 1, SpoolRef("s", 0, 0, 1, 0), summary)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """One step of one group with two trajectories, and the version it made."""
    directory = RunDirectory.create(tmp_path, "toy")
    directory.config.write_text(
        '[model]\npath = "m"\n[data]\ntrain = "t"\n[schedule]\ngroups_per_step = 1\ngroup_size = 2\nstaleness = 0\n'
    )
    group = [Admitted(0, epoch=0, row=40, policy_version=0), result(0, 0, 12), result(0, 1, 20)]
    verdicts = [Rewarded(Unit(0, 0), 1.0), Rewarded(Unit(0, 1), 0.0)]
    write(directory, VersionLive(0, 0), *group, *verdicts, Taken(0, [0]), VersionLive(1, 1))
    return directory


def test_a_ledger_that_adds_up_ends_with_0(run):
    result = asyncrl("audit", run.path)
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines()]
    assert ["issued", "1"] in rows
    assert ["trained", "32"] in rows, "tokens"
    assert rows[-1][:3] == ["everything", "adds", "up:"]


def test_a_ledger_that_does_not_ends_with_1_and_a_line_a_problem(run):
    write(run, Taken(2, [7]))
    result = asyncrl("audit", run.path)
    assert result.exit_code == 1
    lines = [line.strip() for line in result.output.splitlines()]
    assert "group 7 was trained in step 2, but never admitted" in lines
    assert "step 1 was skipped: it was given no batch, but step 2 was" in lines


def test_an_audit_as_json_has_the_same_numbers_and_the_same_ending(run):
    result = asyncrl("audit", run.path, "--json")
    accounts = json.loads(result.output)
    assert result.exit_code == 0
    assert (accounts["issued"], accounts["trained"], accounts["window"]) == (1, 1, 1)
    assert accounts["staleness"] == {"0": 2}
    write(run, Taken(2, [7]))
    result = asyncrl("audit", run.path, "--json")
    assert result.exit_code == 1
    assert len(json.loads(result.output)["problems"]) == 6


@pytest.mark.parametrize("command", ["audit", "events", "dead-letters"])
def test_what_is_no_run_directory_is_one_sentence(command, tmp_path):
    result = asyncrl(command, tmp_path / "nowhere")
    assert (result.exit_code, result.stdout) == (78, "")
    assert result.stderr == (f"asyncrl: {tmp_path}/nowhere is not a run directory: there is no config.toml in it\n")


@pytest.mark.parametrize("command", ["audit", "dead-letters"])
def test_a_run_without_a_ledger_is_one_sentence(command, tmp_path, run):
    run.ledger.unlink()
    result = asyncrl(command, run.path)
    assert (result.exit_code, result.stdout) == (74, "")
    assert result.stderr == f"asyncrl: there is no ledger at {run.ledger}\n"


def test_events_are_lines_in_order(run):
    run.append_event("run.started", name="toy")
    run.append_event("node.lost", node="rollout-0", cause="silent for 10 s")
    result = asyncrl("events", run.path)
    assert result.exit_code == 0
    started, lost = result.output.splitlines()
    assert started.split()[1:] == ["run.started", "name=toy"]
    assert lost.endswith('  node.lost    node=rollout-0 cause="silent for 10 s"')


def test_events_of_one_kind(run):
    for kind in ("run.started", "node.lost", "node.joined", "node.lost"):
        run.append_event(kind)
    kinds = [line.split()[1] for line in asyncrl("events", run.path, "--kind", "node.lost").output.splitlines()]
    assert kinds == ["node.lost", "node.lost"]
    both = asyncrl("events", run.path, "--kind", "run.started", "--kind", "node.joined")
    assert [line.split()[1] for line in both.output.splitlines()] == ["run.started", "node.joined"]
    assert asyncrl("events", run.path, "--kind", "node.exited").output == "no such events\n"


def test_dead_letters_tell_the_row_of_the_prompt(run):
    write(
        run, Admitted(1, epoch=2, row=41, policy_version=0), FailedAttempt(Unit(1, 1), "rollout", "too long", 3, True)
    )
    result = asyncrl("dead-letters", run.path)
    assert result.exit_code == 0
    heading, letter = (line.split(maxsplit=6) for line in result.output.splitlines())
    assert dict(zip(heading, letter, strict=True)) == {
        "unit": "1/1",
        "split": "train",
        "epoch": "2",
        "row": "41",
        "stage": "rollout",
        "attempts": "3",
        "reason": "too long",
    }
    (letter,) = json.loads(asyncrl("dead-letters", run.path, "--json").output)
    assert (letter["group_id"], letter["index"], letter["row"]) == (1, 1, 41)


def test_a_run_without_dead_letters_says_so(run):
    assert asyncrl("dead-letters", run.path).output == "no dead letters\n"
    assert json.loads(asyncrl("dead-letters", run.path, "--json").output) == []
