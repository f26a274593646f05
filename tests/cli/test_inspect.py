"""Output and exit codes of `asyncrl audit` and `dead-letters` on a small run directory."""

import asyncio
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from asyncrl.broker.ledger import records
from asyncrl.broker.ledger.audit import Audit, LengthBucket
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import DeadLetter
from asyncrl.broker.ledger.records import Admitted, FailedAttempt, Rewarded, Taken, VersionLive
from asyncrl.cli.inspect import audit_table, dead_letter_table, regraded
from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.data.prompts import train_stream
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Span, TrajectorySummary, Unit
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.samples import SampleRow, SamplesWriter, prompt_text
from tests.cli.invoke import asyncrl


def write(directory: RunDirectory, *new: records.Record) -> None:
    async def append() -> None:
        await ledger.commit(new)

    ledger = Ledger(directory.ledger)
    asyncio.run(append())
    ledger.close()


def result(group_id: int, index: int, num_tokens: int, version: int = 0) -> records.Result:
    summary = TrajectorySummary(num_tokens, 5, version, version, 1, "stop")
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


def test_a_step_that_was_handed_out_and_not_reported_is_named(run):
    group = [Admitted(1, epoch=0, row=41, policy_version=1), result(1, 0, 8, version=1), result(1, 1, 8, version=1)]
    verdicts = [Rewarded(Unit(1, 0), 1.0), Rewarded(Unit(1, 1), 0.0)]
    write(run, *group, *verdicts, Taken(1, [1]))
    output = asyncrl("audit", run.path).output
    rows = [" ".join(line.split()) for line in output.splitlines()]
    assert "trained or taken 2 in 2 steps, 1 of them handed out and not reported yet; 0 in a checkpoint" in rows
    assert "staleness, versions trained or taken share of trained or taken trajectories" in rows
    assert "issued = trained or taken + dropped + open" in output


def test_an_audit_leaves_no_file_behind(run):
    before = sorted(run.path.iterdir())
    assert asyncrl("audit", run.path).exit_code == 0
    assert sorted(run.path.iterdir()) == before


def test_a_ledger_that_does_not_ends_with_74_and_one_line_per_problem(run):
    write(run, Taken(2, [7]))
    result = asyncrl("audit", run.path)
    assert result.exit_code == 74
    lines = [line.strip() for line in result.output.splitlines()]
    assert "ledger.sqlite: group 7 was trained in step 3, but never admitted" in lines
    assert "ledger.sqlite: step 2 was skipped: it got no batch, but step 3 did" in lines


def test_an_audit_as_json_has_the_same_numbers_and_the_same_ending(run):
    result = asyncrl("audit", run.path, "--json")
    accounts = json.loads(result.output)
    assert result.exit_code == 0
    assert (accounts["issued"], accounts["trained"], accounts["window"]) == (1, 1, 1)
    assert accounts["staleness"] == {"0": 2}
    write(run, Taken(2, [7]))
    result = asyncrl("audit", run.path, "--json")
    assert result.exit_code == 74
    assert len(json.loads(result.output)["problems"]) == 6


@pytest.mark.parametrize("command", ["audit", "events", "dead-letters"])
def test_a_directory_without_a_run_is_refused(command, tmp_path):
    result = asyncrl(command, tmp_path / "nowhere")
    assert (result.exit_code, result.stdout) == (78, "")
    assert result.stderr == (f"asyncrl: {tmp_path}/nowhere is not a run directory: there is no config.toml in it\n")


@pytest.mark.parametrize("command", ["audit", "dead-letters"])
def test_a_run_without_a_ledger_is_refused(command, tmp_path, run):
    run.ledger.unlink()
    result = asyncrl(command, run.path)
    assert (result.exit_code, result.stdout) == (74, "")
    assert result.stderr == f"asyncrl: there is no ledger at {run.ledger}\n"


def test_dead_letters_name_the_row_of_the_prompt(run):
    write(
        run, Admitted(1, epoch=2, row=41, policy_version=0), FailedAttempt(Unit(1, 1), "rollout", "too long", 3, True)
    )
    result = asyncrl("dead-letters", run.path)
    assert result.exit_code == 0
    heading, letter = (line.split(maxsplit=6) for line in result.output.splitlines())
    assert dict(zip(heading, letter, strict=True)) == {
        "trajectory": "1/1",
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


# ── tables ──────────────────────────────────────────────────────────────────────────────────


AUDIT = Audit(
    steps=2,
    issued=1_234,
    trained=4,
    committed=2,
    dropped={"rollout: too\nlong": 2, "reward: hung": 1},
    open=0,
    skipped=0,
    double_trained=0,
    peak_open=4,
    window=8,
    reissued={"node_lost": 3, "failed": 2},
    duplicates=1,
    failed_attempts={},
    dead_letters=0,
    tokens_trained=5_000,
    tokens_thrown_away={"dropped": 200, "duplicates": 0, "reissued": 7},
    staleness_max=1,
    staleness={0: 6, 1: 2},
    lengths=[LengthBucket(max_tokens=16, trained=3, dropped=1), LengthBucket(max_tokens=32, trained=5, dropped=0)],
    dropped_unfinished=2,
    problems=[],
)


def test_an_audit_is_a_table():
    assert audit_table(AUDIT).splitlines() == [
        "groups",
        "  issued               1,234",
        "  trained                  4  in 2 steps; 2 in a checkpoint",
        "  dropped                  3",
        "                           2    rollout: too long",
        "                           1    reward: hung",
        "  open                     0  issued, and neither trained nor dropped yet",
        "  skipped                  0",
        "  double-trained           0",
        "  most open at once        4  of at most 8",
        "trajectories",
        "  re-issued                5  node_lost 3, failed 2",
        "  duplicates               1",
        "  failed attempts          0",
        "  dead letters             0  failed too often; see asyncrl dead-letters",
        "tokens",
        "  trained              5,000",
        "  thrown away            207  dropped 200, reissued 7",
        "staleness, versions  trained  share of trained trajectories",
        "  0                        6  75.0%",
        "  1                        2  25.0%",
        "length, tokens       trained  dropped",
        "  0-16                     3  1 (25.0%)",
        "  17-32                    5  0",
        "  unknown                     2 never finished",
        "everything adds up: issued = trained + dropped + open, nothing skipped, nothing trained twice",
    ]


def test_restarts_and_old_trajectories_are_shown_if_there_are_any():
    lengths = [LengthBucket(max_tokens=16, trained=3, dropped=1, restarted=2)]
    lines = audit_table(structs.replace(AUDIT, restarted=7, over_max_staleness=2, lengths=lengths)).splitlines()
    assert [" ".join(line.split()) for line in lines if "restarted" in line or "max_staleness" in line] == [
        "restarted 7 too old to be trained on, or lost with a spool",
        "over max_staleness 2 25.0%",
        "0-16 3 1 (25.0%); 2 restarted",
    ]


def test_rare_reasons_of_drops_are_counted_together():
    dropped = {f"reason {number}": 20 - number for number in range(11)}
    audit = Audit(**{**{field: getattr(AUDIT, field) for field in AUDIT.__struct_fields__}, "dropped": dropped})
    lines = audit_table(audit).splitlines()
    assert lines[3].split() == ["dropped", str(sum(dropped.values()))]
    assert lines[12].split(maxsplit=1) == ["33", "for 3 other reasons"]


def test_a_reason_with_lines_is_one_line():
    letter = DeadLetter(
        split="held_out", group_id=3, index=0, epoch=None, row=None, stage="reward", attempts=1, reason="hung\nfor 10 s"
    )
    assert dead_letter_table([letter]).splitlines() == [
        "trajectory  split     epoch  row  stage   attempts  reason",
        "3/0         held_out      -    -  reward         1  hung for 10 s",
    ]


# ── test regrading ────────────────────────────────────────────────────────────────────────────
# Samples of a run graded again by its reward.

ACCOUNTS = Audit(
    steps=1, issued=1, trained=1, committed=1, dropped={}, open=0, skipped=0, double_trained=0, peak_open=1, window=1,
    reissued={}, duplicates=0, failed_attempts={}, dead_letters=0, tokens_trained=0, tokens_thrown_away={},
    staleness_max=0, staleness={}, lengths=[], dropped_unfinished=0, problems=[],
)  # fmt: skip


@pytest.fixture
def config(toy: Path) -> Config:
    """The reward counts the letters ``a``, modulo 3."""
    return load_config(toy / "toy.toml", ["reward.workers=1"])


def row(config: Config, group_id: int, completion: str, reward: float) -> SampleRow:
    prompt = train_stream(config.data, config.run.seed).at(group_id).prompt
    return SampleRow(
        step=0, group_id=group_id, index=0, prompt=prompt_text(prompt), completion=completion, answer=prompt.answer,
        reward=reward, finish_reason="stop", spans=[Span(0, 0, 1)], oldest_version=0, staleness=0, node="a",
        completion_ids=b"\1\0\0\0", behavior_logprobs=b"\0\0\0\0",
    )  # fmt: skip


def graded(folder: Path, config: Config, *rows: SampleRow) -> Audit:
    directory = RunDirectory.create(folder, "run")
    writer = SamplesWriter(directory.samples)
    writer.write(writer.path(0), rows)
    return regraded(directory, config, ACCOUNTS)


def test_a_reward_that_the_completion_does_not_get_is_named(tmp_path: Path, config: Config) -> None:
    audit = graded(tmp_path, config, row(config, 0, "a a", 2.0), row(config, 1, "a", 2.0))

    assert audit.problems == [
        "samples/step_000000.parquet: unit 1/0 has the reward 2.0: graded again, its completion gets 1.0"
    ]
    assert audit.checked["rewards"] == "2 samples graded again"


def test_a_sample_whose_prompt_the_data_does_not_have_is_counted(tmp_path: Path, config: Config) -> None:
    directory = RunDirectory.create(tmp_path, "run")
    writer = SamplesWriter(directory.samples)
    writer.write(writer.path(0), [row(config, 0, "a", 1.0)])
    table = pq.read_table(writer.path(0))
    other = pa.Table.from_pylist([table.to_pylist()[0] | {"answer": "other"}], schema=table.schema)
    pq.write_table(other, writer.path(0))

    audit = regraded(directory, config, ACCOUNTS)

    assert audit.problems == []
    assert audit.unchecked == {"rewards": "1 samples, whose prompts the data does not have"}


def test_rewards_of_compared_groups_are_not_graded_again_and_the_audit_says_so(tmp_path: Path) -> None:
    config = load_config(Path("conf/quickstart.toml"), ["reward.group=judge.py:rank"])

    audit = regraded(RunDirectory.create(tmp_path, "run"), config, ACCOUNTS)

    assert audit.unchecked == {"rewards": "rewards of reward.group, which compared whole groups"}


def test_a_run_without_its_data_is_not_graded(tmp_path: Path) -> None:
    config = load_config(Path("conf/quickstart.toml"), ["data.train=gone.parquet"])

    audit = regraded(RunDirectory.create(tmp_path, "run"), config, ACCOUNTS)

    assert audit.unchecked == {"rewards": "not graded again: no such dataset: gone.parquet (data.train)"}
