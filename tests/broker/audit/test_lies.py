"""
A table of lies, each told by editing the directory of a finished run: the audit names every one, with its place.

The liars know the formats: checksums of the ledger, and digests of its records where it says so, are computed anew.
"""

import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from asyncrl.broker.ledger.database import meta_digest, write_meta
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Measured,
    NodeEvent,
    Result,
    Rewarded,
    Started,
    Taken,
    VersionLive,
    Written,
    decode,
    encode,
    unique_key,
)
from asyncrl.config.config import to_json
from asyncrl.config.run_file import to_toml
from asyncrl.files.checkpoints import MANIFEST, file_entry, step_name
from asyncrl.files.json_lines import encoded
from asyncrl.messages.trajectory import Unit
from asyncrl.records.run_directory import RunSummary
from tests.broker.audit.conftest import STEPS, RunCopy

LAST = STEPS - 1
NEWEST = f"checkpoints/{step_name(STEPS)}"
Lie = Callable[[RunCopy], object]

# ── ways to lie ─────────────────────────────────────────────────────────────────────────────


def in_toml(old: str, new: str) -> Lie:
    def tell(run: RunCopy) -> None:
        text = run.directory.config.read_text()
        assert old in text, text
        run.directory.config.write_text(text.replace(old, new, 1))

    return tell


def in_summary(**fields: object) -> Lie:
    def tell(run: RunCopy) -> None:
        summary = run.directory.read_summary()
        assert isinstance(summary, RunSummary)
        run.directory.write_summary(replace(summary, **fields))

    return tell


def in_metrics(step: int, **fields: object) -> Lie:
    def tell(run: RunCopy) -> None:
        lines = run.directory.read_metrics()
        lines[step] |= fields
        run.directory.metrics.write_bytes(b"".join(encoded(line) + b"\n" for line in lines))

    return tell


def in_events(kind: str, **fields: object) -> Lie:
    def tell(run: RunCopy) -> None:
        events = run.directory.read_events()
        for event in (event for event in events if event["event"] == kind):
            event.update(fields)
        run.directory.events.write_bytes(b"".join(encoded(event) + b"\n" for event in events))

    return tell


def in_samples(step: int, column: str, change: Callable[[Any], Any]) -> Lie:
    def tell(run: RunCopy) -> None:
        path = run.directory.samples / f"step_{step:06d}.parquet"
        table = pq.read_table(path)
        rows = table.to_pylist()
        rows[0][column] = change(rows[0][column])
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path, compression="zstd")

    return tell


def in_file(name: str, change: Callable[[bytes], bytes] = lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])) -> Lie:
    def tell(run: RunCopy) -> None:
        path = run.directory.path / name
        path.write_bytes(change(path.read_bytes()))

    return tell


def in_manifest(listed: str = "", **fields: object) -> Lie:
    """Change a manifest; with ``listed``, to say that a file is as it is now."""

    def tell(run: RunCopy) -> None:
        path = run.directory.path / NEWEST / MANIFEST
        manifest = json.loads(path.read_text()) | fields
        if listed:
            manifest["files"][listed] = msgspec.to_builtins(file_entry(path.parent / listed))
        path.write_text(json.dumps(manifest, indent=2) + "\n")

    return tell


def swapped(first: str, second: str) -> Lie:
    def tell(run: RunCopy) -> None:
        one, other = (run.directory.path / name for name in (first, second))
        contents = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(contents)

    return tell


def removed(name: str) -> Lie:
    return lambda run: (run.directory.path / name).unlink()


def in_sqlite(*statements: str) -> Lie:
    def tell(run: RunCopy) -> None:
        with sqlite3.connect(run.directory.ledger, isolation_level=None) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()

    return tell


def edited(change: Callable[[AnyRecord], AnyRecord | None]) -> Lie:
    """Edit the rows of the records in place, with valid checksums; None deletes one, and the rest are renumbered."""

    def tell(run: RunCopy) -> None:
        with sqlite3.connect(run.directory.ledger, isolation_level=None) as connection:
            rows = connection.execute("SELECT seq, body FROM records ORDER BY seq").fetchall()
            deleted = 0
            for seq, body in rows:
                new = change(decode(body))
                if new is None:
                    connection.execute("DELETE FROM records WHERE seq = ?", (seq,))
                    deleted += 1
                    continue
                raw = encode(new)
                values = (seq - deleted, unique_key(new), raw, zlib.crc32(raw), seq)
                connection.execute("UPDATE records SET seq = ?, key = ?, body = ?, crc32 = ? WHERE seq = ?", values)
            assert deleted or connection.total_changes
        connection.close()

    return tell


def first(kind: type[AnyRecord], change: Callable[[Any], AnyRecord | None]) -> Callable[[AnyRecord], AnyRecord | None]:
    """Change only the first record of a kind, or the first training one."""
    done = False

    def one(record: AnyRecord) -> AnyRecord | None:
        nonlocal done
        unit = getattr(record, "unit", Unit(0, 0))
        if done or not isinstance(record, kind) or unit.split != "train":
            return record
        done = True
        return change(record)

    return one


def rewritten(make: Callable[[], Callable[[AnyRecord], AnyRecord | None]]) -> Lie:
    """The same with the digests of the records computed anew, by `RunCopy.replace`."""
    return lambda run: run.replace(make())


def in_meta(key: str, value: object) -> Lie:
    """Change a fact beside the records, with its checksum."""

    def tell(run: RunCopy) -> None:
        with sqlite3.connect(run.directory.ledger, isolation_level=None) as connection:
            write_meta(connection, key, value)  # type: ignore[arg-type]
        connection.close()

    return tell


def together(*lies: Lie) -> Lie:
    def tell(run: RunCopy) -> None:
        for lie in lies:
            lie(run)

    return tell


def other_staleness_everywhere(run: RunCopy) -> None:
    """Change it in config.toml and in the ledger, with its checksum."""
    config = replace(run.config, schedule=replace(run.config.schedule, staleness=3.0))
    run.directory.write_config(to_toml(config))
    in_meta("config", to_json(config).decode())(run)


def other_staleness_and_its_digest(run: RunCopy) -> None:
    """The same, and the record of the start that has the digest of it, and the digests of the records."""
    other_staleness_everywhere(run)
    with sqlite3.connect(run.directory.ledger, isolation_level=None) as connection:
        meta = meta_digest(connection)
    connection.close()
    run.replace(lambda record: replace(record, meta=meta) if isinstance(record, Started) else record)


def digests_removed(run: RunCopy) -> None:
    """Make the ledger one of an earlier asyncrl, with a record edited."""
    run.replace(first(Measured, lambda record: replace(record, accuracy=0.9)))
    in_sqlite(
        "ALTER TABLE records DROP COLUMN head",
        "UPDATE meta SET value = 3 WHERE key = 'schema_version'",
        "DELETE FROM meta WHERE key = 'crc32'",
    )(run)


def line_and_its_digest(run: RunCopy) -> None:
    """Change a line and the digest of it in the ledger, without those of the records."""
    in_metrics(2, loss=-1.0)(run)
    other = {"sha256": "0" * 64}
    edited(lambda r: replace(r, **other) if isinstance(r, Written) and (r.file, r.step) == ("metrics.jsonl", 2) else r)(
        run
    )


def with_a_new_commit(record: AnyRecord) -> AnyRecord:
    match record:
        case Committed(step=step) if step == LAST:
            return replace(record, checkpoint="step_000006x")
    return record


def at(step: int) -> str:
    return f"samples/step_{step:06d}.parquet"


def another_id(ids: list[int]) -> list[int]:
    return [ids[0] ^ 1, *ids[1:]]


def exchanged(run: RunCopy) -> None:
    records = run.records
    run.rewrite([*records[:8], records[9], records[8], *records[10:]])


def minus(number: float) -> Callable[[list[float]], list[float]]:
    return lambda values: [values[0] - number, *values[1:]]


# ── the table: name, lie, words that one sentence has ───────────────────────────────────────

LEDGER, METRICS, SUMMARY, CONFIG = "ledger.sqlite: ", "metrics.jsonl: ", "summary.json: ", "config.toml: "
CHAIN = (LEDGER, "are not those that were written")
KEPT = (LEDGER, "are not those of when")
UNWRITTEN = "is not what was written"
TENSORS = "model.safetensors"
LIES: list[tuple[str, Lie, tuple[str, ...]]] = [
    # settings
    ("config_staleness", in_toml("staleness = 1.0", "staleness = 2.0"), (CONFIG, "staleness is 2.0: expected 1.0")),
    ("config_seed", in_toml("seed = ", "seed = 1"), (CONFIG, "run.seed is", "as in the ledger")),
    ("config_group_size", in_toml("group_size = 2", "group_size = 4"), (CONFIG, "group_size is 4: expected 2")),
    ("config_temperature", in_toml("temperature = 1.0", "temperature = 0.7"), (CONFIG, "temperature is 0.7")),
    ("config_steps", in_toml(f"steps = {STEPS}", "steps = 9"), (CONFIG, f"run.steps is 9: expected {STEPS}")),
    ("config_reward", in_toml("timeout_s = ", "timeout_s = 9"), (CONFIG, "timeout_s is 9")),
    ("config_in_ledger_too", other_staleness_everywhere, (LEDGER, "its meta is not that of start 1")),
    ("config_and_start", other_staleness_and_its_digest, KEPT),
    ("data_digest", in_meta("train_digest", "0" * 64), (LEDGER, "its meta is not that of start 1")),
    ("run_id", in_meta("run_id", "0" * 32), CHAIN),
    # held-out results
    ("measured_forged", edited(first(Measured, lambda r: replace(r, accuracy=0.99))), CHAIN),
    ("measured_forged_digests", rewritten(lambda: first(Measured, lambda r: replace(r, accuracy=0.99))), KEPT),
    ("measured_forged_event", rewritten(lambda: first(Measured, lambda r: replace(r, accuracy=0.99))),
     ("events.jsonl: eval.finished of version 0 has accuracy", "expected 0.99")),
    ("measured_deleted", edited(first(Measured, lambda r: None)), CHAIN),
    ("summary_accuracy", in_summary(held_out_accuracy=0.99), (SUMMARY, "held_out_accuracy is 0.99: expected")),
    ("summary_base", in_summary(base_accuracy=0.77), (SUMMARY, "base_accuracy is 0.77: expected")),
    ("event_accuracy", in_events("eval.finished", accuracy=0.99), ("events.jsonl: eval.finished", "accuracy 0.99")),
    ("event_num_prompts", in_events("eval.finished", num_prompts=999), ("events.jsonl: eval.finished", "prompts 999")),
    # summary
    ("summary_tokens", in_summary(trained_tokens=1), (SUMMARY, "trained_tokens is 1")),
    ("summary_seed", in_summary(seed=77), (SUMMARY, UNWRITTEN)),
    ("summary_wall", in_summary(wall_s=0.5), (SUMMARY, UNWRITTEN)),
    ("summary_gap", in_summary(logprob_gap_mean=7.0), (SUMMARY, UNWRITTEN)),
    ("summary_failures", in_summary(groups_failed=7), (SUMMARY, UNWRITTEN)),
    ("summary_staleness_mean", in_summary(staleness_mean=77.0), (SUMMARY, "staleness_mean is 77: expected")),
    ("summary_pace", in_summary(tokens_per_s=1e9), (SUMMARY, "tokens_per_s is 1e+09: expected")),
    ("summary_waiting", in_summary(wait_trainer=0.77), (SUMMARY, "wait_trainer is 0.77: expected")),
    ("summary_records", in_summary(ledger_records=0), (SUMMARY, UNWRITTEN)),
    ("summary_head", in_summary(ledger_head="0" * 64), KEPT),
    # metrics of steps
    ("skipped_update", in_metrics(1, skipped=1.0), (METRICS, "the line of step 2", UNWRITTEN)),
    ("loss", in_metrics(1, loss=77.0), (METRICS, "the line of step 2", UNWRITTEN)),
    ("accuracy", in_metrics(1, accuracy=2.0), (METRICS, "step 2 has accuracy 2")),
    ("reward", in_metrics(1, reward=2.0), (METRICS, "step 2 has reward 2")),
    ("num_tokens", in_metrics(1, num_tokens=1.0), (METRICS, "step 2 has num_tokens 1")),
    ("truncated", in_metrics(1, truncated=0.123), (METRICS, "step 2 has truncated 0.123")),
    ("spans_mean", in_metrics(1, spans_mean=9.0), (METRICS, "step 2 has spans_mean 9")),
    ("grad_norm", in_metrics(3, grad_norm=1e-9), (METRICS, "the line of step 4", UNWRITTEN)),
    ("time_s", in_metrics(3, time_s=7777.0), (METRICS, "the line of step 4", UNWRITTEN)),
    ("new_metric", in_metrics(3, better=1.0), (METRICS, "the line of step 4", UNWRITTEN)),
    ("metric_and_digest", line_and_its_digest, CHAIN),
    # samples
    ("sample_ids", in_samples(LAST, "completion_ids", another_id), (at(LAST), "other token ids")),
    ("sample_ids_trimmed", in_samples(0, "completion_ids", another_id), (at(0), UNWRITTEN)),
    ("sample_logprobs", in_samples(LAST, "behavior_logprobs", minus(0.5)), (at(LAST), "other token ids or log-probs")),
    ("sample_logprobs_trimmed", in_samples(0, "behavior_logprobs", minus(0.5)), (at(0), UNWRITTEN)),
    ("sample_prompt", in_samples(0, "prompt", lambda _: "1+1="), (at(0), "has another prompt or answer")),
    ("sample_answer", in_samples(0, "answer", lambda _: "77"), (at(0), "has another prompt or answer")),
    ("sample_completion", in_samples(LAST, "completion", lambda _: "7"),
     (at(LAST), "has the completion '7'", "as in its payload")),
    ("sample_completion_trimmed", in_samples(0, "completion", lambda _: "7"), (at(0), UNWRITTEN)),
    ("sample_node", in_samples(LAST, "node", lambda _: "eve"), (at(LAST), "has the node 'eve'")),
    ("sample_finish", in_samples(LAST, "finish_reason", lambda _: "none"), (at(LAST), "has the finish_reason 'none'")),
    ("sample_oldest", in_samples(LAST, "oldest_version", lambda _: 99), (at(LAST), "has the oldest version 99")),
    ("sample_metrics", in_samples(2, "metrics", lambda _: '{"correct":0.5}'), (at(2), "has the metrics")),
    ("sample_source", in_samples(2, "data_source", lambda _: "other"), (at(2), UNWRITTEN)),
    ("samples_of_two_steps", swapped(at(1), at(2)), (at(1), UNWRITTEN)),
    ("samples_lost", together(removed(at(1)), lambda run: run.directory.append_event("samples.lost", step=1)),
     (at(1), "it is missing, but step 2 was done")),
    ("samples_of_no_step", lambda run: shutil.copy(run.directory.path / at(1), run.directory.path / at(77)),
     (at(77), "it belongs to no step")),
    # checkpoints
    ("checkpoint_bitflip", in_file(f"{NEWEST}/{TENSORS}"), (f"{NEWEST}/{TENSORS}", UNWRITTEN, "as in the manifest")),
    ("checkpoint_swapped_content", swapped(f"{NEWEST}/{TENSORS}", f"checkpoints/{step_name(STEPS - 2)}/{TENSORS}"),
     (f"{NEWEST}/{TENSORS}", UNWRITTEN)),
    ("checkpoint_and_manifest", together(in_file(f"{NEWEST}/{TENSORS}"), in_manifest(TENSORS)),
     (f"{NEWEST}/{MANIFEST}", UNWRITTEN, "as in the ledger")),
    ("checkpoint_config", in_file(f"{NEWEST}/config.json", lambda raw: raw.replace(b"1", b"2")),
     (f"{NEWEST}/config.json", UNWRITTEN)),
    ("checkpoint_extra_file", lambda run: (run.directory.path / NEWEST / "model-2.safetensors").write_bytes(b"x"),
     (f"{NEWEST}/model-2.safetensors", "the manifest does not list it")),
    ("manifest_stepped", in_manifest(stepped=[]), (f"{NEWEST}/{MANIFEST}", UNWRITTEN)),
    ("manifest_head", in_manifest(ledger_head="0" * 64), KEPT),
    ("manifest_removed", removed(f"{NEWEST}/{MANIFEST}"), (f"{NEWEST}/{MANIFEST}", "it is missing")),
    # ledger
    ("deleted_event_renumbered", edited(first(NodeEvent, lambda r: None)), CHAIN),
    ("deleted_event_digests", rewritten(lambda: first(NodeEvent, lambda r: None)), KEPT),
    ("node_event_edited", edited(first(NodeEvent, lambda r: replace(r, detail="nothing"))), CHAIN),
    ("reward_metrics", edited(first(Rewarded, lambda r: replace(r, metrics={"correct": 1.0, "x": 1.0}))), CHAIN),
    ("reward_digests", rewritten(lambda: first(Rewarded, lambda r: replace(r, reward=0.125))), KEPT),
    ("lease_edited", edited(first(Result, lambda r: replace(r, lease_id=r.lease_id + 1))), CHAIN),
    ("commit_place", edited(with_a_new_commit), (LEDGER, f"step {LAST + 1} was committed to step_000006x")),
    ("version_deleted", edited(first(VersionLive, lambda r: None)), CHAIN),
    ("written_deleted", edited(first(Written, lambda r: None)), CHAIN),
    ("start_deleted", edited(first(Started, lambda r: None)), CHAIN),
    ("record_inserted", lambda run: run.rewrite([*run.records[:20], NodeEvent("e", "0", "rollout", "left", "", 0.0),
                                                 *run.records[20:]]), KEPT),
    ("records_exchanged", exchanged, KEPT),
    ("record_appended", in_sqlite("INSERT INTO records SELECT seq + 1, kind, NULL, body, crc32, NULL FROM records "
                                  "WHERE kind = 'NodeEvent' AND seq = (SELECT max(seq) FROM records)"),
     (LEDGER, "have no digest")),
    ("heads_removed", in_sqlite("UPDATE records SET head = NULL"), (LEDGER, "have no digest")),
    ("digests_removed", digests_removed, KEPT),
    ("retired_table", in_sqlite("UPDATE retired SET how = 'dropped' WHERE group_id = 0"),
     (LEDGER, "table retired has group 0 as dropped: expected taken/0")),
    ("retired_table_row", in_sqlite("DELETE FROM retired WHERE group_id = 1"), (LEDGER, "table retired lacks group 1")),
    ("retired_table_other", in_sqlite("INSERT INTO retired VALUES (999, 'dropped')"),
     (LEDGER, "table retired has group 999 as dropped: expected no end")),
    ("dropped_added", lambda run: run.rewrite([*run.records, Dropped(0, "bad", 0)]), (LEDGER, "group 0 was trained")),
    ("admitted_row", edited(first(Admitted, lambda r: replace(r, row=r.row + 1))), CHAIN),
    ("taken_order", edited(first(Taken, lambda r: replace(r, group_ids=r.group_ids[::-1]))), CHAIN),
    ("spool_payload", lambda run: in_file(f"spool/{newest_segment(run)}")(run), ("spool", "is missing")),
]  # fmt: skip


def newest_segment(run: RunCopy) -> str:
    return max(path.name for path in run.directory.spool.glob("segment_*.seg") if path.stat().st_size > 64)


def contents(run: RunCopy) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.directory.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("lie", "words"), [pytest.param(lie, words, id=name) for name, lie, words in LIES])
def test_a_lie_is_named_with_its_place(run: RunCopy, lie: Lie, words: tuple[str, ...]) -> None:
    told = contents(run)
    lie(run)
    assert contents(run) != told, "what the lie says is true of this run"

    problems = run.audit().problems
    assert any(all(word in problem for word in words) for problem in problems), problems


def test_there_are_many_different_lies() -> None:
    assert len({name for name, _, _ in LIES}) == len(LIES) >= 60
