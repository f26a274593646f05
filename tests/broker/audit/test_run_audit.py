"""Lies planted in the files of a real run are each found, by name; the run itself has none."""

import asyncio
import math
import shutil
import sqlite3
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from asyncrl.broker.audit.run_audit import _retirement_problems
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import read_ledger_meta
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Measured,
    Result,
    Rewarded,
    Taken,
    Untrained,
    VersionLive,
    Written,
)
from asyncrl.broker.ledger.state import LedgerState
from asyncrl.cli.inspect import read_audit
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Trajectory, Unit
from asyncrl.spool.folder import SpoolIdentity, read_contents, segment_numbers, write_identity
from asyncrl.spool.segments import Segments
from tests.broker.audit.conftest import STEPS, RunCopy
from tests.broker.driver import Prompts

LAST = STEPS - 1


def named(run: RunCopy, *words: str) -> bool:
    """True if one problem has all of these words."""
    problems = run.audit().problems
    assert problems, "the lie was believed"
    return any(all(word in problem for word in words) for problem in problems)


def last_unit(run: RunCopy) -> Unit:
    """The first trajectory of the last step's batch."""
    (taken,) = (record for record in run.records if isinstance(record, Taken) and record.step == LAST)
    return Unit(taken.group_ids[0], 0)


def result_of(run: RunCopy, unit: Unit) -> Result:
    return next(record for record in run.records if isinstance(record, Result) and record.unit == unit)


def versions(result: Result, oldest: int, newest: int) -> Result:
    return replace(result, summary=replace(result.summary, oldest_version=oldest, newest_version=newest))


def samples(run: RunCopy, step: int) -> Path:
    return run.directory.samples / f"step_{step:06d}.parquet"


# ── an honest run ───────────────────────────────────────────────────────────────────────────


def test_an_honest_run_has_no_problem_and_every_file_of_it_was_checked(run: RunCopy) -> None:
    audit = run.audit()
    assert audit.problems == []
    assert list(audit.checked) == [
        "ledger.sqlite", "config.toml", "spool", "digests of the ledger", "metrics.jsonl", "summary.json",
        "checkpoints", "samples", "data",
    ]  # fmt: skip
    assert audit.checked["samples"] == f"{STEPS} files, {STEPS * 4} trajectories token by token"
    assert list(audit.unchecked) == ["spool"]
    assert "payloads are trimmed" in audit.unchecked["spool"]


def test_a_run_that_was_killed_lacks_its_summary_and_the_samples_of_its_last_steps(run: RunCopy) -> None:
    run.directory.summary.unlink()
    samples(run, LAST).unlink()
    audit = run.audit()
    assert audit.problems == []
    assert audit.unchecked["summary.json"] == "there is none: the run goes on, or was killed"
    assert audit.unchecked["samples"] == "1 steps, whose files are written when the run goes on"


def test_a_quick_audit_says_what_it_leaves_out(run: RunCopy) -> None:
    audit = read_audit(run.directory.path, is_quick=True)
    assert audit.problems == []
    assert audit.unchecked == {
        "spool": "its payloads, which a quick audit leaves out",
        "checkpoints": "contents of the files, which a quick audit leaves out",
    }


def test_what_is_not_there_to_be_checked_is_said(run: RunCopy) -> None:
    shutil.rmtree(run.directory.checkpoints)
    data = replace(run.config.data, train="gone.parquet")
    run.reconfigure(replace(run.config, data=data, broker=replace(run.config.broker, samples=False)))
    audit = run.audit()
    assert all(problem.startswith("ledger.sqlite: its first") for problem in audit.problems)
    assert audit.unchecked["checkpoints"] == "there is none here: the trainer may write them on another machine"
    assert audit.unchecked["data"] == "no such dataset: gone.parquet (data.train)"
    assert audit.unchecked["samples"] == "broker.samples is false"


def test_payloads_of_a_spool_of_its_own_are_read_from_the_folder_that_is_named(run: RunCopy, tmp_path: Path) -> None:
    def moved(record: AnyRecord) -> AnyRecord:
        return (
            replace(record, ref=replace(record.ref, spool="spool-0-6c9fb0")) if isinstance(record, Result) else record
        )

    run.replace(moved)
    assert "the folder of the spool spool-0-6c9fb0, which stored" in run.audit().unchecked["spool"]

    far = Path(shutil.copytree(run.directory.spool, tmp_path / "far"))
    with pytest.raises(ConfigError, match=r"far is no folder of a spool: there is no spool\.json in it"):
        read_audit(run.directory.path, spools=[far])
    write_identity(far, SpoolIdentity("spool-0-6c9fb0", "other"))
    with pytest.raises(ConfigError, match=r"far has the payloads of run other, but .* is run"):
        read_audit(run.directory.path, spools=[far])
    write_identity(far, SpoolIdentity("spool-0-6c9fb0", read_ledger_meta(run.directory.ledger).run_id))
    audit = read_audit(run.directory.path, spools=[far])
    assert not audit.checked["spool"].startswith("0 payloads")
    assert not [problem for problem in audit.problems if "spool" in problem]
    assert audit.unchecked["spool"].endswith("payloads are trimmed")


# ── 1: stale beyond its bound ───────────────────────────────────────────────────────────────


def test_1_a_stale_trajectory_in_the_ledger(run: RunCopy) -> None:
    unit = last_unit(run)

    def stale(record: AnyRecord) -> AnyRecord:
        match record:
            case Admitted(group_id=unit.group_id):
                return replace(record, policy_version=0)
            case Result(unit=found) if found == unit:
                return versions(record, 0, 0)
        return record

    run.replace(stale)
    name = f"unit {unit.group_id}/0"
    assert named(run, "ledger.sqlite", name, "stale beyond its bound", "expected at most 1 versions", f"got {LAST}")


def test_samples_that_were_lost_with_a_spool_are_not_checked(run: RunCopy) -> None:
    samples(run, 0).unlink()
    run.directory.append_event("samples.lost", step=0, trajectories=4)
    run.replace(lambda r: None if isinstance(r, Written) and r.file == "samples/step_000000.parquet" else r)
    audit = run.audit()
    assert not [problem for problem in audit.problems if problem.startswith("samples/")]
    assert audit.unchecked["samples"] == "1 steps, of which payloads were lost with a spool"


def test_1_stale_tokens_that_the_summary_hides_in_the_samples(run: RunCopy) -> None:
    table = pq.read_table(samples(run, LAST))
    rows = table.to_pylist()
    rows[0]["spans"][0]["policy_version"] = 1
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), samples(run, LAST))
    name = f"unit {rows[0]['group_id']}/{rows[0]['index']}"
    assert named(run, f"samples/step_{LAST:06d}.parquet", name, "stale beyond its bound", f"got {LAST - 1}")


def test_1_stale_tokens_that_the_summary_hides_in_the_spool(run: RunCopy, tmp_path: Path) -> None:
    """The payload is replaced together with its checksums, in the spool and in the ledger."""
    result = result_of(run, last_unit(run))
    path = segment_numbers(run.directory.spool)[result.ref.segment]
    (contents,) = (contents for contents in read_contents(run.directory.spool) if contents.path == path)
    forged = Segments(tmp_path / "forged")
    places = {}
    for entry, place, payload in contents.payloads:
        trajectory = msgspec.msgpack.decode(payload, type=Trajectory)
        first, *rest = trajectory.spans
        if place.offset == result.ref.offset:
            first = replace(first, policy_version=1)
        raw = msgspec.msgpack.encode(replace(trajectory, spans=[first, *rest]))
        (places[place.offset],) = forged.append([(entry, memoryview(raw))])
    forged.close()
    path.write_bytes(path.read_bytes()[:16] + (tmp_path / "forged" / "segment_000000.seg").read_bytes()[16:])

    def moved(record: AnyRecord) -> AnyRecord:
        if isinstance(record, Result) and record.ref.segment == result.ref.segment:
            _, offset, length, crc32 = places[record.ref.offset]
            return replace(record, ref=replace(record.ref, offset=offset, length=length, crc32=crc32))
        return record

    run.replace(moved)
    problems = [problem for problem in run.audit().problems if problem.startswith("spool/")]
    assert len(problems) == 2, problems
    name = f"unit {result.unit.group_id}/{result.unit.index}"
    assert all(f"spool/{path.name}" in problem and name in problem for problem in problems)
    assert "is stale beyond its bound" in problems[1]


# ── 2: a version that never was ─────────────────────────────────────────────────────────────


def test_2_tokens_of_a_version_that_never_was(run: RunCopy) -> None:
    result = result_of(run, last_unit(run))
    run.replace(lambda r: versions(r, result.summary.oldest_version, 99) if r == result else r)
    name = f"unit {result.unit.group_id}/0"
    assert named(run, "ledger.sqlite", name, "to 99: expected versions from 0 to", "existed by then")


def test_2_a_live_version_that_no_step_made(run: RunCopy) -> None:
    run.rewrite([*run.records, VersionLive(99, STEPS)])
    assert named(run, "ledger.sqlite", f"version 99 contains {STEPS} steps: expected version {STEPS}")


def test_2_an_evaluation_of_a_version_that_never_went_live(run: RunCopy) -> None:
    run.rewrite([*run.records, Measured(99, 1.0, 8)])
    assert named(run, "ledger.sqlite", "version 99 was evaluated, but never went live")


# ── 3: a trajectory twice ───────────────────────────────────────────────────────────────────


def test_3_a_trajectory_twice_in_the_ledger(run: RunCopy) -> None:
    result = result_of(run, last_unit(run))
    run.rewrite([*run.records, result])
    assert named(run, "ledger.sqlite", f"unit {result.unit.group_id}/0 has 2 results")


def test_3_a_group_trained_in_two_steps(run: RunCopy) -> None:
    batches = {record.step: record.group_ids for record in run.records if isinstance(record, Taken)}
    twice = batches[0][0]

    def again(record: AnyRecord) -> AnyRecord:
        if isinstance(record, Taken) and record.step == LAST:
            return replace(record, group_ids=[twice, *record.group_ids[1:]])
        return record

    run.replace(again)
    assert named(run, "ledger.sqlite", f"group {twice} was trained 2 times: in steps 1, {STEPS}")


def test_3_a_trajectory_twice_in_the_samples(run: RunCopy) -> None:
    table = pq.read_table(samples(run, 1))
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), samples(run, 1))
    assert named(run, "samples/step_000001.parquet", "is there 2 times")


# ── 4: one missing ──────────────────────────────────────────────────────────────────────────


def test_4_a_trajectory_missing_in_the_ledger(run: RunCopy) -> None:
    result = result_of(run, last_unit(run))
    run.replace(lambda record: None if record == result else record)
    assert named(run, "ledger.sqlite", f"unit {result.unit.group_id}/0 was trained in step {STEPS}, but has no result")
    assert named(run, f"metrics.jsonl: step {STEPS} has num_trajectories 4: expected 3")


def test_4_a_trajectory_missing_in_the_samples(run: RunCopy) -> None:
    table = pq.read_table(samples(run, 1))
    pq.write_table(table.slice(1), samples(run, 1))
    assert named(run, "samples/step_000001.parquet", "is missing, which step 2 was trained on")


# ── 5: NaN reward ───────────────────────────────────────────────────────────────────────────


def test_5_a_nan_reward(run: RunCopy) -> None:
    unit = last_unit(run)
    run.replace(lambda r: replace(r, reward=math.nan) if isinstance(r, Rewarded) and r.unit == unit else r)
    assert named(run, "ledger.sqlite", f"unit {unit.group_id}/0 has the reward nan: expected a finite number")


def test_5_another_reward_than_the_one_trained_on(run: RunCopy) -> None:
    unit = last_unit(run)
    run.replace(lambda r: replace(r, reward=77.0) if isinstance(r, Rewarded) and r.unit == unit else r)
    assert named(run, f"samples/step_{LAST:06d}.parquet", f"unit {unit.group_id}/0 has the reward", "expected 77.0")
    assert named(run, f"metrics.jsonl: step {STEPS} has reward")


# ── 6: a lost WAL ───────────────────────────────────────────────────────────────────────────


def test_6_a_ledger_that_lost_its_write_ahead_log(run: RunCopy, tmp_path: Path) -> None:
    """The broker is killed, its log is deleted, and sqlite3 opens what is left."""

    async def killed() -> None:
        ledger = Ledger(tmp_path / "ledger.sqlite")
        await ledger.commit(run.records)
        shutil.copy(tmp_path / "ledger.sqlite", run.directory.ledger)
        ledger.close()

    asyncio.run(killed())
    with sqlite3.connect(run.directory.ledger) as connection:
        assert connection.execute("SELECT count(*) FROM records").fetchone() == (0,)
    connection.close()
    audit = run.audit()
    assert audit.issued == 0
    assert named(run, "ledger.sqlite: its end is missing", "write-ahead log ledger.sqlite-wal", "and has 0 now")
    assert named(run, "write-ahead log", "events.jsonl has 1 starts of the broker, the ledger 0")


def test_6_a_ledger_that_lost_only_its_last_records(run: RunCopy) -> None:
    run.rewrite(run.records[:-8])
    assert named(run, "ledger.sqlite: its end is missing", "when summary.json was written")


# ── 7: a swapped spool segment ──────────────────────────────────────────────────────────────


def test_7_two_segments_changed_places(run: RunCopy, tmp_path: Path) -> None:
    first, second, *_ = segment_numbers(run.directory.spool).values()
    shutil.move(first, tmp_path / "kept")
    shutil.move(second, first)
    shutil.move(tmp_path / "kept", second)
    assert named(run, first.name, "by its header: it was swapped")


def test_7_a_segment_of_another_run(run: RunCopy, tmp_path: Path) -> None:
    result = result_of(run, last_unit(run))
    path = segment_numbers(run.directory.spool)[result.ref.segment]
    other = Segments(tmp_path / "other")
    (contents,) = (contents for contents in read_contents(run.directory.spool) if contents.path == path)
    other.append([(p.entry, memoryview(p.payload[::-1])) for p in reversed(contents.payloads)])
    other.close()
    path.write_bytes(path.read_bytes()[:16] + (tmp_path / "other" / "segment_000000.seg").read_bytes()[16:])
    assert named(run, "spool", f"the payload of unit {result.unit.group_id}/0", "is missing: expected") or named(
        run, f"spool/{path.name}", f"the payload is not the one of unit {result.unit.group_id}/0"
    )


def test_7_a_segment_that_a_resumed_run_would_read_is_gone(run: RunCopy) -> None:
    ref = result_of(run, last_unit(run)).ref
    segment_numbers(run.directory.spool)[ref.segment].unlink()
    assert named(run, "spool: the payload of unit", "is missing", f"of segment {ref.segment}")


# ── 8: a missing sample file ────────────────────────────────────────────────────────────────


def test_8_a_missing_sample_file(run: RunCopy) -> None:
    samples(run, 2).unlink()
    assert named(run, "samples/step_000002.parquet: it is missing, but step 3 was done")


def test_a_step_that_left_out_every_group_has_no_samples(run: RunCopy) -> None:
    samples(run, 2).unlink()
    (taken,) = (record for record in run.records if isinstance(record, Taken) and record.step == 2)
    left_out = [Untrained(2, group_id, "run.skip_steps has step 3", 0) for group_id in taken.group_ids]
    run.rewrite([*run.records, *left_out])
    assert not [problem for problem in run.audit().problems if problem.startswith("samples/")]


def test_8_a_sample_file_that_is_none(run: RunCopy) -> None:
    samples(run, 2).write_bytes(b"PAR1")
    assert named(run, "step_000002.parquet cannot be read as a samples file")


# ── 9: metrics beyond the ledger ────────────────────────────────────────────────────────────


def test_9_metrics_beyond_the_ledger(run: RunCopy) -> None:
    run.directory.append_metrics(run.directory.read_metrics()[-1] | {"step": STEPS})
    assert named(run, f"metrics.jsonl: step {STEPS + 1} was recorded, but the ledger has no batch of it; its last is")


def test_9_metrics_that_differ_from_the_ledger(run: RunCopy) -> None:
    line = run.directory.read_metrics()[1]
    run.directory.append_metrics(line | {"tokens": line["tokens"] + 5, "staleness_max": 0.0, "version": 0})
    assert named(run, f"metrics.jsonl: step 2 has tokens {line['tokens'] + 5:g}: expected {line['tokens']:g}")
    assert named(run, "metrics.jsonl: step 2 has staleness_max 0: expected 1")
    assert named(run, "metrics.jsonl: step 2 has version 0: expected 1")


def test_9_a_summary_that_differs_from_the_ledger(run: RunCopy) -> None:
    summary = run.directory.read_summary()
    assert summary
    run.directory.write_summary(replace(summary, trained_tokens=1, versions=9))
    assert named(run, "summary.json: trained_tokens is 1: expected")
    assert named(run, f"summary.json: versions is 9: expected {STEPS}")


# ── 10: a checkpoint of another run ─────────────────────────────────────────────────────────


def changed_manifest(run: RunCopy, **fields: object) -> None:
    path = run.directory.checkpoints / f"step_{STEPS:06d}" / "manifest.json"
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | fields))


def test_10_a_checkpoint_of_another_run(run: RunCopy) -> None:
    changed_manifest(run, run_id="0" * 32)
    file = f"checkpoints/step_{STEPS:06d}/manifest.json"
    assert named(run, file, "belongs to another run: expected run", f"got {'0' * 32}")


def test_10_a_checkpoint_of_steps_that_were_never_taken(run: RunCopy) -> None:
    newest = run.directory.checkpoints / f"step_{STEPS:06d}"
    shutil.copytree(newest, run.directory.checkpoints / "step_000099")
    file = run.directory.checkpoints / "step_000099" / "manifest.json"
    file.write_bytes(msgspec.json.encode(msgspec.json.decode(file.read_bytes()) | {"step": 99}))
    assert named(run, "checkpoints/step_000099", f"contains 99 steps, but the ledger has batches of {STEPS}")


def test_10_a_checkpoint_with_weights_of_another_version(run: RunCopy) -> None:
    changed_manifest(run, policy_version=2)
    assert named(run, f"its weights are version 2: expected version {STEPS}, made by {STEPS} steps")


def test_10_a_checkpoint_that_lacks_a_file(run: RunCopy) -> None:
    (run.directory.checkpoints / f"step_{STEPS:06d}" / "model.safetensors").unlink()
    assert named(run, f"checkpoints/step_{STEPS:06d}/model.safetensors: expected", "got no such file")


# ── 11: a changed dataset ───────────────────────────────────────────────────────────────────


def test_11_a_dataset_replaced_by_as_many_other_rows(run: RunCopy, toy: Path, tmp_path: Path) -> None:
    rows = pq.read_table(toy / "train.parquet").to_pylist()
    pq.write_table(pa.Table.from_pylist(rows[::-1]), tmp_path / "other.parquet")
    data = replace(run.config.data, train=str(tmp_path / "other.parquet"))
    run.reconfigure(replace(run.config, data=data))
    assert named(run, "data.train", "other.parquet has other rows than when this run began")


def test_11_another_order_of_the_data(run: RunCopy) -> None:
    run.reconfigure(replace(run.config, run=replace(run.config.run, seed=8)))
    assert named(run, "ledger.sqlite: group 0 was row", "of epoch 0: expected row")


# ── 12: a forged commit ─────────────────────────────────────────────────────────────────────


def test_12_a_commit_of_steps_that_were_never_taken(run: RunCopy) -> None:
    run.rewrite([*run.records, Committed(10**6, "step_1000001")])
    assert named(run, "ledger.sqlite", f"step 1000001 was committed, but only {STEPS} steps were taken")


def test_12_a_commit_without_a_checkpoint(run: RunCopy) -> None:
    shutil.rmtree(run.directory.checkpoints / f"step_{STEPS:06d}")
    assert named(
        run, f"ledger.sqlite: step {STEPS} was committed, but the newest checkpoint contains {STEPS - 2} steps"
    )


def test_12_a_commit_that_names_the_checkpoint_of_another_step(run: RunCopy) -> None:
    run.replace(lambda r: replace(r, step=r.step - 1) if isinstance(r, Committed) and r.step == LAST else r)
    assert named(run, f"ledger.sqlite: step {LAST} was committed to", "no checkpoint of that step")


@pytest.mark.parametrize("step", [LAST])
def test_12_a_commit_of_a_step_that_nobody_reported(run: RunCopy, step: int) -> None:
    lines = [line for line in run.directory.read_metrics() if line["step"] != step]
    run.directory.metrics.unlink()
    for line in lines:
        run.directory.append_metrics(line)
    assert named(
        run, f"metrics.jsonl: step {step + 1} is missing, though the ledger says that a checkpoint contains it"
    )


# ── retired prompts ─────────────────────────────────────────────────────────────────────────


def test_a_place_may_be_passed_over_only_after_its_prompt_was_retired() -> None:
    """Of ten rows, the group of row 0 was all correct and that of row 1 was not; both are passed over in epoch 1."""
    book = LedgerState(Schedule(group_size=1))
    for group_id in (*range(10), 12):
        book.add(Admitted(group_id, group_id // 10, group_id % 10, policy_version=0))
        book.add(Rewarded(Unit(group_id, 0), float(group_id == 0)))

    problems = list(_retirement_problems(book, Prompts(), 0.9))  # type: ignore[arg-type]

    assert problems == [
        "ledger.sqlite: group 11 was skipped, but no earlier group of its row 1 reached data.retire_at = 0.9"
    ]
