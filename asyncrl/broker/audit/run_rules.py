"""
Metrics, events and summary of a run against its ledger.

A line of metrics.jsonl and the summary name the number of records that the ledger had on disk when they were written.
A ledger with fewer has lost its end: SQLite opens it without complaint if its write-ahead log was deleted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.broker.ledger.audit import LEDGER
from asyncrl.broker.ledger.reader import Head
from asyncrl.broker.ledger.records import Measured
from asyncrl.broker.ledger.state import METRICS, SUMMARY, LedgerState
from asyncrl.config.config import Config, from_json, leaves
from asyncrl.config.live import MAY_CHANGE, STEPS
from asyncrl.errors import LedgerError
from asyncrl.files.checkpoints import MANIFEST, FileEntry, file_entry, step_name, step_of
from asyncrl.records.formatting import nth
from asyncrl.records.measures import measures
from asyncrl.records.run_directory import RunSummary

Line = Mapping[str, Any]
STARTS = ("run.started", "run.resumed")
"""Events of a broker's start, one for each broker term."""
PACE = ("tokens_per_s", "step_s", "wait_trainer", "wait_rollout")
"""Fields of the summary that the lines of all steps give."""
ROUNDING = 1e-9
"""Relative difference of two means that are equal but for the order of their sums."""


def metrics_problems(state: LedgerState, lines: Sequence[Line]) -> Iterator[str]:
    """Sentences about lines that the ledger does not bear out."""
    for line in lines:
        step = int(line["step"])
        if step not in state.batches:
            last = f"that of step {state.next_step}" if state.batches else "none"
            yield f"{METRICS}: step {nth(step)} was recorded, but the ledger has no batch of it; its last is {last}"
            continue
        expected = _expected(state, step)
        for key, value in expected.items():
            if (got := line.get(key)) is not None and not math.isclose(got, value, rel_tol=ROUNDING, abs_tol=ROUNDING):
                yield f"{METRICS}: step {nth(step)} has {key} {got:g}: expected {value:g}, as in the ledger"


def unrecorded_problems(state: LedgerState, lines: Sequence[Line]) -> Iterator[str]:
    """Sentences about steps that a checkpoint contains according to the ledger, and that have no line."""
    recorded = {int(line["step"]) for line in lines}
    for step in range(state.committed_step + 1):
        if step not in recorded and step in state.batches:
            yield f"{METRICS}: step {nth(step)} is missing, though the ledger says that a checkpoint contains it"


def lost_records(
    state: LedgerState, broker_term: int, lines: Sequence[Line], events: Sequence[Line], heads: Mapping[str, Head]
) -> Iterator[str]:
    """Sentences about records that others saw, and that the ledger does not have."""
    seen = {METRICS: max((int(line.get("ledger_records") or 0) for line in lines), default=0)}
    seen |= {file: head.num_records for file, head in heads.items()}
    for file, number in seen.items():
        if number > state.num_records:
            yield (
                f"{LEDGER}: its end is missing, as after the loss of its write-ahead log {LEDGER}-wal: it had {number} "
                f"records when {file} was written, and has {state.num_records} now"
            )
    starts = sum(event.get("event") in STARTS for event in events)
    if starts > broker_term:
        yield (
            f"{LEDGER}: its write-ahead log {LEDGER}-wal was lost: events.jsonl has {starts} starts of the broker, the "
            f"ledger {broker_term}"
        )


def summary_problems(state: LedgerState, lines: Sequence[Line], summary: RunSummary) -> Iterator[str]:
    """Sentences about a summary that ledger and metrics do not bear out."""
    steps = [int(line["step"]) for line in lines]
    if summary.status != "finished":  # Steps that were under way are recorded after the summary of a failed run.
        if summary.steps > len(steps):
            yield f"{SUMMARY}: steps is {summary.steps}: expected at most {len(steps)}, as in {METRICS}"
        return
    trained = [item for step in steps for item in state.sampled(step)]
    staleness = [state.versions.of_step(item.step) - item.result.summary.oldest_version for item in trained]
    expected: dict[str, float] = {
        "steps": len(steps),
        "trained_tokens": sum(item.result.summary.num_tokens for item in trained),
        "staleness_max": max(staleness, default=0),
        "staleness_mean": sum(_expected(state, step)["staleness_mean"] for step in steps) / max(len(steps), 1),
        "steps_planned": summary.steps_planned if summary.goal else state.next_step,
        "versions": max(state.versions.live_version, 0),
    }
    pace = measures(lines)
    for key in PACE:
        if getattr(summary, key) is not None:  # Summaries of older versions have none.
            expected[key] = getattr(pace, key) or 0.0
    for key, value in expected.items():
        if not math.isclose(got := getattr(summary, key), value, rel_tol=ROUNDING, abs_tol=ROUNDING):
            yield f"{SUMMARY}: {key} is {got:g}: expected {value:g}, as in ledger and metrics"
    met = [record for record in state.goals if record.stop_when == summary.goal]
    if summary.goal and (not met or met[-1].steps != len(steps)):
        ends = f"after {met[-1].steps} steps" if met else "nowhere"
        yield (
            f"{SUMMARY}: goal is {summary.goal!r}, met after {len(steps)} steps: in the ledger the run ends so {ends}"
        )
    if state.committed_step + 1 < state.next_step:
        yield (
            f"{SUMMARY}: the run is finished, but the ledger has {state.committed_step + 1} of {state.next_step} steps "
            f"in a checkpoint"
        )


def _expected(state: LedgerState, step: int) -> dict[str, float]:
    """Numbers of a step's line, computed from the ledger."""
    trained, version = state.sampled(step), state.versions.of_step(step)
    count = max(len(trained), 1)
    lengths = [item.result.summary.num_tokens for item in trained]
    staleness = [version - item.result.summary.oldest_version for item in trained]
    verdicts = [item.rewarded for item in trained if item.rewarded]
    summaries = [item.result.summary for item in trained]
    return {
        "version": version,
        "tokens": sum(lengths),
        "num_tokens": sum(lengths),
        "num_trajectories": len(trained),
        "length_max": max(lengths, default=0),
        "staleness_max": max(staleness, default=0),
        "staleness_mean": sum(staleness) / count,
        "reward": sum(verdict.reward for verdict in verdicts) / count,
        "accuracy": sum(verdict.metrics.get("correct", verdict.reward) for verdict in verdicts) / count,
        "length_mean": sum(lengths) / count,
        "truncated": sum(summary.finish_reason == "length" for summary in summaries) / count,
        "spans_mean": sum(summary.num_spans for summary in summaries) / count,
    }


# ── checkpoint rules ──────────────────────────────────────────────────────────────────────────
# Checkpoints against the ledger: of this run, of steps that were taken, with the version that they made.


class ManifestFacts(Struct, frozen=True, kw_only=True):
    """Part of a manifest that an audit reads, without the trainer's libraries."""

    step: int
    """Optimizer steps contained."""
    policy_version: int
    run_id: str = ""
    """Empty in a manifest of an earlier asyncrl."""
    files: dict[str, FileEntry] = {}
    ledger_records: int = 0
    ledger_head: str = ""
    """Digest of the ledger's first records, as many as that."""


def read_manifest(folder: Path) -> ManifestFacts | None:
    """Read the manifest of a checkpoint; None if the folder was removed. Raises LedgerError if it is damaged."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ManifestFacts)
    except FileNotFoundError:
        if not folder.exists():
            return None
        raise LedgerError(f"checkpoints/{folder.name}/{MANIFEST}: it is missing") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"checkpoints/{folder.name}/{MANIFEST}: it cannot be read: {error}") from error


def missing_files(folder: Path, manifest: ManifestFacts) -> Iterator[str]:
    """Sentences about files of a checkpoint that are missing or have another size."""
    for name, expected in manifest.files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != expected.size and folder.exists():
            got = "no such file" if size is None else f"{size} bytes"
            yield f"checkpoints/{folder.name}/{name}: expected {expected.size} bytes, got {got}"


def different_files(folder: Path, manifest: ManifestFacts) -> Iterator[str]:
    """Sentences about files of a checkpoint with other contents, and about those that are not listed; reads all."""
    for name, expected in manifest.files.items():
        try:
            got = file_entry(folder / name)
        except OSError:
            continue  # Missing, or removed meanwhile: `missing_files` says so.
        if got.size == expected.size and got.sha256 != expected.sha256:
            yield (
                f"checkpoints/{folder.name}/{name}: it is not what was written: expected sha256 "
                f"{expected.sha256[:12]}, as in the manifest, got {got.sha256[:12]}"
            )
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    for name in sorted(found - manifest.files.keys() - {MANIFEST}):
        yield f"checkpoints/{folder.name}/{name}: the manifest does not list it"


def checkpoint_problems(
    state: LedgerState, run_id: str, manifests: Mapping[str, ManifestFacts], steps_per_publish: int
) -> Iterator[str]:
    """Sentences about manifests, by the name of their folder, that do not belong to the run of this ledger."""
    for name, manifest in manifests.items():
        file, steps, version = f"checkpoints/{name}/{MANIFEST}", manifest.step, manifest.policy_version
        if manifest.run_id and run_id and manifest.run_id != run_id:
            yield f"{file}: the checkpoint belongs to another run: expected run {run_id}, got {manifest.run_id}"
        if step_name(steps) != name:
            yield f"{file}: it says that the checkpoint contains {steps} steps: expected those of its name"
        if steps > state.next_step:
            yield f"{file}: the checkpoint contains {steps} steps, but the ledger has batches of {state.next_step}"
            continue
        expected = state.versions.of_step(steps)
        # The last version of a run may contain fewer than T steps more than the one before.
        if version not in (expected, expected + (steps % steps_per_publish > 0)):
            yield f"{file}: its weights are version {version}: expected version {expected}, made by {steps} steps"


def commit_problems(state: LedgerState, names: Sequence[str]) -> Iterator[str]:
    """Sentences about commits of the ledger for which there never was a checkpoint, given the folders there are."""
    for commit in state.commits:
        if Path(commit.checkpoint).name != step_name(commit.step + 1):
            yield f"{LEDGER}: step {nth(commit.step)} was committed to {commit.checkpoint}: no checkpoint of that step"
    newest = max(map(step_of, names), default=0)
    if names and state.committed_step >= newest:
        yield (
            f"{LEDGER}: step {nth(state.committed_step)} was committed, but the newest checkpoint contains {newest} "
            f"steps: the commit is forged, or its checkpoint was removed"
        )


# ── config rules ──────────────────────────────────────────────────────────────────────────────
# The configuration in config.toml against the one that the broker recorded in the ledger when it last started.

CONFIG_FILE = "config.toml"


def recorded_config(raw: str) -> Config | None:
    """The recorded configuration; None if there is none, or another asyncrl recorded it."""
    try:
        return from_json(raw.encode()) if raw else None
    except msgspec.MsgspecError:
        return None


def differing(recorded: Config, now: Config) -> dict[str, tuple[object, object]]:
    """Values in the ledger and in config.toml that differ, by setting."""
    before, after = (dict(leaves(msgspec.to_builtins(config))) for config in (recorded, now))
    keys = dict.fromkeys((*before, *after))
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def config_problems(recorded: Config, now: Config, *, is_over: bool) -> Iterator[str]:
    """
    Sentences about values that differ from those that the run used.

    Args:
        is_over: There is a summary. Without one, a resumed run may be about to start with some other values.
    """
    for key, (expected, got) in differing(recorded, now).items():
        if is_over or not (key == STEPS or key.startswith(MAY_CHANGE)):
            yield f"{CONFIG_FILE}: {key} is {got!r}: expected {expected!r}, as in the ledger"


# ── held out rules ────────────────────────────────────────────────────────────────────────────
# Held-out results in the summary and in the events against those in the ledger.

OF_SUMMARY = ("finished", "interrupted")
"""Summaries that are written once everything is recorded."""


def held_out_summary_problems(state: LedgerState, summary: RunSummary) -> Iterator[str]:
    """Sentences about accuracies in the summary that were not measured."""
    if summary.status not in OF_SUMMARY:
        return
    measured = [record for record in state.measured if record.num_prompts]
    base = next((record.accuracy for record in measured if record.policy_version == 0), None)
    last = measured[-1].accuracy if measured else None
    for key, expected in {"base_accuracy": base, "held_out_accuracy": last}.items():
        if (got := getattr(summary, key)) != expected:
            yield f"{SUMMARY}: {key} is {got}: expected {expected}, as in the ledger"


def held_out_event_problems(state: LedgerState, events: Sequence[Line]) -> Iterator[str]:
    """Sentences about results that differ from those in the ledger, which may lack the last: its broker died before."""
    recorded: dict[int, Measured] = {record.policy_version: record for record in state.measured}
    told = {event.get("policy_version"): event for event in events if event.get("event") == "eval.finished"}
    for version, record in recorded.items():
        if (event := told.get(version)) is None:
            continue
        expected = {"accuracy": record.accuracy, "num_prompts": record.num_prompts, **record.metrics}
        for key, value in expected.items():
            if (got := event.get(key)) is not None and got != value:
                event_name = f"eval.finished of version {version}"
                yield f"events.jsonl: {event_name} has {key} {got}: expected {value}, as in the ledger"


# ── retired rules ─────────────────────────────────────────────────────────────────────────────
# The table that lets a group end once, against the records of the groups that ended.


def retired_problems(state: LedgerState, before: Mapping[int, str], after: Mapping[int, str]) -> Iterator[str]:
    """
    Sentences about groups that the table and the records end differently.

    Args:
        before: The table before the records were read: it has no group that they lack.
        after: The table after that: it lacks no group that they have.
    """
    ends = {group_id: f"taken/{step}" for step, group_ids in state.batches.items() for group_id in group_ids}
    ends |= dict.fromkeys(state.dropped, "dropped")
    for group_id, how in before.items():
        if (expected := ends.get(group_id, "no end")) != how:
            yield f"{LEDGER}: its table retired has group {group_id} as {how}: expected {expected}, as in the records"
    for group_id in sorted(ends.keys() - after.keys()):
        yield f"{LEDGER}: its table retired lacks group {group_id}: expected {ends[group_id]}, as in the records"
