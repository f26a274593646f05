"""
Samples files against the ledger: one file for each step that was done, with each trajectory of its batch once.

Samples outlive the payloads, so they show the version of every token that was ever trained on.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from asyncrl.broker.audit.run_rules import Line
from asyncrl.broker.ledger.audit import LEDGER
from asyncrl.broker.ledger.reader import ChainCheck, Head, LedgerMeta
from asyncrl.broker.ledger.records import Progressed, Result
from asyncrl.broker.ledger.state import METRICS, SUMMARY, LedgerState, TrainedTrajectory, unit_name
from asyncrl.files.json_lines import encoded
from asyncrl.messages.trajectory import Span, Trajectory, TrajectorySummary, Unit
from asyncrl.records.formatting import nth, numbered
from asyncrl.records.run_directory import RunSummary
from asyncrl.records.samples import SampleFacts, digest_of

# ── token rules ───────────────────────────────────────────────────────────────────────────────
# Versions of a trajectory, token by token, against its record in the ledger and the bound of its schedule.
#
# The ledger has the oldest and the newest version only; the spans, in the stored payload and in the samples file,
# have the version of every token.


def span_problems(
    record: Result | Progressed, spans: Sequence[Span], num_tokens: int, trained: int | None, bound: int | None
) -> Iterator[str]:
    """
    Sentences about a trajectory whose ``num_tokens`` tokens have the versions in ``spans``.

    Args:
        trained: Version that trained on it; None if none did.
        bound: Most versions between them; None if the schedule promises no bound.
    """
    name, summary = unit_name(record.unit), record.summary
    if num_tokens != summary.num_tokens:
        yield f"{name} has {num_tokens} tokens: expected {summary.num_tokens}, as in the ledger"
    if not _is_whole(spans, num_tokens):
        yield f"{name} has spans that do not cover its {num_tokens} tokens once, in order"
        return
    versions = [span.policy_version for span in spans]
    oldest, newest = min(versions, default=summary.oldest_version), max(versions, default=summary.newest_version)
    if (oldest, newest) != (summary.oldest_version, summary.newest_version):
        yield (
            f"{name} has tokens of the versions {oldest} to {newest}: expected {summary.oldest_version} to "
            f"{summary.newest_version}, as in the ledger"
        )
        if trained is not None and bound is not None and trained - oldest > bound:
            yield (
                f"{name} is stale beyond its bound: version {trained} was trained on tokens of version {oldest}, "
                f"expected at most {bound} versions between them, got {trained - oldest}"
            )


def _is_whole(spans: Sequence[Span], num_tokens: int) -> bool:
    ends = [0, *(span.end for span in spans)]
    return ends[-1] == num_tokens and all(
        span.start == begin < span.end for span, begin in zip(spans, ends, strict=False)
    )


# ── spool rules ───────────────────────────────────────────────────────────────────────────────
# Payloads of a spool against the ledger that refers to them.
#
#     Result, Progressed ── spool, segment, offset, length, checksum ──▶ payload: unit, lease, summary, spans
#
# A segment is trimmed, and its payloads are gone, once two checkpoints contain the steps of all of them. What is left
# of the spool has to match; payloads that no record names are normal: their nodes or the broker died before the
# record.

Place = tuple[int, int]
"""Segment and offset."""


class StoredPayload(Struct, frozen=True):
    """One payload of a segment file, with its description there."""

    file: str
    """Name of the segment file, for messages."""
    unit: Unit
    lease_id: int
    summary: TrajectorySummary
    segment: int
    offset: int
    length: int
    crc32: int
    trajectory: Trajectory | None
    """None if the payload cannot be decoded."""


class StoredFacts(NamedTuple):
    """Contents of a trained payload that its samples show too."""

    arrays: str
    """`asyncrl.records.samples.digest_of`."""
    completion: str
    node: str
    finish_reason: str


class SpoolRules:
    """
    Compares payloads with the records that name them: `add` each payload, then read `missing` and the counts.

    Args:
        spool: Name of the spool in the records.
        segments: Numbers of the segment files there are.
    """

    def __init__(self, state: LedgerState, spool: str, segments: Collection[int]) -> None:
        own = [record for record in state.stored() if record.ref.spool == spool]
        self._state = state
        self._spool = spool
        self._segments = segments
        self._steps = {group_id: step for step, groups in state.batches.items() for group_id in groups}
        self._here: dict[Place, Result | Progressed] = {
            (record.ref.segment, record.ref.offset): record for record in own if record.ref.segment in segments
        }
        self._unseen = dict(self._here)
        self.num_trimmed = len(own) - len(self._here)
        self.num_checked = 0
        self.trained: dict[Unit, StoredFacts] = {}
        """Contents that the samples of each trajectory must show, of those in the batch of a step."""

    def add(self, payload: StoredPayload) -> Iterator[str]:
        """Sentences about one payload."""
        if (record := self._here.get((payload.segment, payload.offset))) is None:
            return
        self._unseen.pop((payload.segment, payload.offset), None)
        self.num_checked += 1
        if (trajectory := payload.trajectory) and record.unit.split == "train" and record.unit.group_id in self._steps:
            arrays = digest_of(trajectory.completion_ids, trajectory.behavior_logprobs, trajectory.context_ids)
            facts = StoredFacts(arrays, trajectory.text, trajectory.node, trajectory.finish_reason)
            self.trained[record.unit] = facts
        for problem in self._problems(record, payload):
            yield f"{self._spool}/{payload.file} at offset {payload.offset}: {problem}"

    def missing(self, trimmed_meanwhile: Collection[int] = ()) -> Iterator[str]:
        """Sentences about payloads that are gone though their segment is there, or though a resumed run reads them."""
        unseen = (record for record in self._unseen.values() if record.ref.segment not in trimmed_meanwhile)
        needed = (record for record in self._state.needed() if record.ref.spool == self._spool)
        trimmed = (record for record in needed if record.ref.segment not in self._segments)
        for record in (*unseen, *trimmed):
            ref = record.ref
            yield (
                f"{self._spool}: the payload of {unit_name(record.unit)} is missing: expected {ref.length} bytes with "
                f"checksum {ref.crc32:#010x} at offset {ref.offset} of segment {ref.segment}"
            )

    def _problems(self, record: Result | Progressed, payload: StoredPayload) -> Iterator[str]:
        ref, name = record.ref, unit_name(record.unit)
        expected: Mapping[str, object] = {
            "unit": name, "lease": record.lease_id, "length": ref.length, "checksum": ref.crc32,
            "summary": record.summary,
        }  # fmt: skip
        got: Mapping[str, object] = {
            "unit": unit_name(payload.unit), "lease": payload.lease_id, "length": payload.length,
            "checksum": payload.crc32, "summary": payload.summary,
        }  # fmt: skip
        different = [key for key, value in expected.items() if got[key] != value]
        for key in different:
            yield f"the payload is not the one of {name} in the ledger: expected {key} {expected[key]}, got {got[key]}"
        if payload.trajectory is None:
            yield f"the payload of {name} is not a trajectory"
        elif not different:
            yield from self._token_problems(record, payload.trajectory)

    def _token_problems(self, record: Result | Progressed, trajectory: Trajectory) -> Iterator[str]:
        if trajectory.unit != record.unit:
            yield f"the payload is that of {unit_name(trajectory.unit)}: expected {unit_name(record.unit)}"
        step = self._steps.get(record.unit.group_id) if record.unit.split == "train" else None
        trained = None if step is None else self._state.versions.of_step(step)
        num_tokens = len(memoryview(trajectory.completion_ids).cast("B")) // 4
        bound = self._state.bounds.of(record.unit.group_id)
        yield from span_problems(record, trajectory.spans, num_tokens, trained, bound)


def unread(state: LedgerState, read: Collection[str]) -> Iterator[str]:
    """Sentences about the spools that have payloads of the run, and whose folders are not ``read``."""
    stored = Counter(record.ref.spool for record in state.stored())
    needed = Counter(record.ref.spool for record in state.needed())
    for name in sorted(stored.keys() - set(read)):
        yield (
            f"the folder of the spool {name}, which stored {stored[name]:,} payloads; {needed[name]:,} of them must be "
            f"there, the others may be trimmed (--spool DIR reads it, or a copy of it)"
        )


# ── sample rules ──────────────────────────────────────────────────────────────────────────────

SHOWN_CHARS = 40


def sample_problems(
    state: LedgerState,
    step: int,
    rows: Sequence[SampleFacts],
    stored: Mapping[Unit, StoredFacts] = {},
) -> Iterator[str]:
    """
    Sentences about the samples of one step, without the name of the file.

    Args:
        stored: What the payloads that are still there have.
    """
    batch = {item.result.unit: item for item in state.batch(step)}
    times = Counter(Unit(row.group_id, row.index) for row in rows)
    for unit in batch.keys() - times.keys():
        yield f"{unit_name(unit)} is missing, which step {nth(step)} was trained on"
    for unit, number in times.items():
        if unit not in batch:
            yield f"{unit_name(unit)} is not in the batch of step {nth(step)} in the ledger"
        elif number > 1:
            yield f"{unit_name(unit)} is there {number} times"
    for row in rows:
        if item := batch.get(Unit(row.group_id, row.index)):
            yield from _row_problems(state, item, row)
            if facts := stored.get(item.result.unit):
                yield from _payload_problems(facts, row)


def _payload_problems(facts: StoredFacts, row: SampleFacts) -> Iterator[str]:
    name = unit_name(Unit(row.group_id, row.index))
    if row.arrays and row.arrays != facts.arrays:
        yield f"{name} has other token ids or log-probs than its payload in the spool, which the trainer read"
    for field, expected in facts._asdict().items():
        if field != "arrays" and (got := getattr(row, field)) != expected:
            yield f"{name} has the {field} {_shown(got)}: expected {_shown(expected)}, as in its payload in the spool"


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}...")


def _row_problems(state: LedgerState, item: TrainedTrajectory, row: SampleFacts) -> Iterator[str]:
    name, version = unit_name(item.result.unit), state.versions.of_step(item.step)
    if item.rewarded is not None and row.reward != item.rewarded.reward:
        yield f"{name} has the reward {row.reward}: expected {item.rewarded.reward}, as in the ledger"
    if row.step != item.step:
        yield f"{name} says that it belongs to step {nth(row.step)}"
    summary = item.result.summary
    if (row.num_turns, row.context_tokens) != (summary.num_turns, summary.context_tokens):
        yield (
            f"{name} has {row.num_turns} turns and {row.context_tokens} tokens of context: expected "
            f"{summary.num_turns} and {summary.context_tokens}, as in the ledger"
        )
    if row.staleness != (staleness := version - item.result.summary.oldest_version):
        yield f"{name} has the staleness {row.staleness}: expected {staleness}"
    if (got := row.oldest_version) not in (None, summary.oldest_version):
        yield f"{name} has the oldest version {got}: expected {summary.oldest_version}, as in the ledger"
    if item.rewarded is not None and row.metrics is not None and row.metrics != item.rewarded.metrics:
        yield f"{name} has the metrics {row.metrics}: expected {item.rewarded.metrics}, as in the ledger"
    bound = state.bounds.of(item.result.unit.group_id)
    yield from span_problems(item.result, row.spans, row.num_tokens, version, bound)


# ── witness rules ─────────────────────────────────────────────────────────────────────────────
# Digests of a ledger that others keep, and digests that the ledger keeps, against what they are of.
#
#   summary, manifests, events ── number of records, digest ──▶ ledger          whoever edits it would have to edit them
#   ledger ── Written ──▶ lines of metrics.jsonl, samples, manifests, summary   whoever edits one would have to edit it
#     ledger ── Started ──▶ its own configuration and digests of the data

EVENTS = "events.jsonl"
SHOWN = 12
"""Digits of a digest in a sentence."""


def head_of(found: Any) -> Head:
    """Number and digest of records in a summary, a manifest or an event; ``(0, "")`` if an earlier asyncrl wrote it."""
    return Head(int(found.ledger_records), str(found.ledger_head))


def heads_of_events(events: Sequence[Line]) -> dict[str, Head]:
    """Heads that events of checkpoints have, by a name of the event."""
    return {
        f"{EVENTS} (checkpoint.written of step {numbered(event).get('step')})": Head(
            int(event.get("ledger_records") or 0), str(event["ledger_head"])
        )
        for event in events
        if event.get("event") == "checkpoint.written" and event.get("ledger_head")
    }


def chain_problems(check: ChainCheck, heads: Mapping[str, Head]) -> Iterator[str]:
    """Sentences about records that are not those that were written, as the ledger or the files in ``heads`` have it."""
    if check.problem:
        yield f"{LEDGER}: {check.problem}"
    for file, (number, digest) in heads.items():
        found = check.digests.get(number)
        if digest and found and found != digest:
            yield (
                f"{LEDGER}: its first {number} records are not those of when {file} was written: one of them was "
                f"edited, inserted, removed or moved, expected the digest {digest[:SHOWN]}, got {found[:SHOWN]}"
            )


def meta_problems(state: LedgerState, meta: LedgerMeta, *, is_over: bool) -> Iterator[str]:
    """
    Sentences about facts beside the records that are not those of the last start.

    Args:
        is_over: There is a summary. Before, a starting broker may have recorded other facts, and not its start.
    """
    started = state.started
    if started and started.meta != meta.digest and (is_over or started.broker_term == meta.broker_term):
        yield (
            f"{LEDGER}: its meta is not that of start {started.broker_term}: the configuration, a digest of the data "
            f"or the id of the run was edited, expected the digest {started.meta[:SHOWN]}, got {meta.digest[:SHOWN]}"
        )


def line_problems(state: LedgerState, lines: Sequence[Line]) -> Iterator[str]:
    """Sentences about lines of metrics that are not those that were written."""
    for line in lines:
        step = int(line["step"])
        yield from _differing(state, METRICS, hashlib.sha256(encoded(line)).hexdigest(), step)


def unwitnessed_steps(state: LedgerState, lines: Iterable[Line]) -> list[int]:
    """Steps whose line has no digest in the ledger: its broker died before it, or an earlier asyncrl wrote it."""
    return [int(line["step"]) for line in lines if (METRICS, int(line["step"])) not in state.written]


def summary_file_problems(state: LedgerState, summary: RunSummary, content: bytes) -> Iterator[str]:
    """A sentence about a summary that is not the one that the broker wrote; one that `asyncrl run` wrote has none."""
    if summary.ledger_records or summary.status != "failed":
        yield from _differing(state, SUMMARY, hashlib.sha256(content).hexdigest())


def file_problems(state: LedgerState, file: str, digests: Sequence[str]) -> Iterator[str]:
    """A sentence about a file none of whose ``digests``, read before and after the ledger, is that in the ledger."""
    if not any(state.written.get((file, -1)) in (None, digest) for digest in digests):
        yield from _differing(state, file, digests[-1])


def _differing(state: LedgerState, file: str, digest: str, step: int = -1) -> Iterator[str]:
    expected = state.written.get((file, step))
    if expected not in (None, digest):
        what = f"the line of step {nth(step)}" if step >= 0 else "it"
        yield (
            f"{file}: {what} is not what was written: expected the digest {expected[:SHOWN]}, as in the ledger, got "
            f"{digest[:SHOWN]}"
        )
