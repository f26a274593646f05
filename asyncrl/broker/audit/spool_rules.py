"""
Payloads of a spool against the ledger that refers to them.

    Result, Progressed ── spool, segment, offset, length, checksum ──▶ payload: unit, lease, summary, spans

A segment is trimmed, and its payloads are gone, once two checkpoints contain the steps of all of them. What is left of
the spool has to match; payloads that no record names are normal: their nodes or the broker died before the record.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from asyncrl.broker.audit.token_rules import span_problems
from asyncrl.broker.ledger.record_book import RecordBook
from asyncrl.broker.ledger.record_rules import unit_name
from asyncrl.broker.ledger.records import Progressed, Result
from asyncrl.messages.trajectory import Trajectory, TrajectorySummary, Unit
from asyncrl.observe.samples import digest_of

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
    """`asyncrl.observe.samples.digest_of`."""
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

    def __init__(self, book: RecordBook, spool: str, segments: Collection[int]) -> None:
        records = list(book.stored())
        own = [record for record in records if record.ref.spool == spool]
        self._book = book
        self._spool = spool
        self._segments = segments
        self._steps = {group_id: step for step, groups in book.steps.items() for group_id in groups}
        self._here: dict[Place, Result | Progressed] = {
            (record.ref.segment, record.ref.offset): record for record in own if record.ref.segment in segments
        }
        self._unseen = dict(self._here)
        self.elsewhere = Counter(record.ref.spool for record in records if record.ref.spool != spool)
        """Number of payloads in each other spool, whose files are on its own machine."""
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
            yield f"spool/{payload.file} at offset {payload.offset}: {problem}"

    def missing(self, trimmed_meanwhile: Collection[int] = ()) -> Iterator[str]:
        """Sentences about payloads that are gone though their segment is there, or though a resumed run reads them."""
        unseen = (record for record in self._unseen.values() if record.ref.segment not in trimmed_meanwhile)
        needed = (record for record in self._book.needed() if record.ref.spool == self._spool)
        trimmed = (record for record in needed if record.ref.segment not in self._segments)
        for record in (*unseen, *trimmed):
            ref = record.ref
            yield (
                f"spool: the payload of {unit_name(record.unit)} is missing: expected {ref.length} bytes with checksum "
                f"{ref.crc32:#010x} at offset {ref.offset} of segment {ref.segment}"
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
        trained = None if step is None else self._book.versions.of_step(step)
        num_tokens = len(memoryview(trajectory.completion_ids).cast("B")) // 4
        bound = self._book.bounds.of(record.unit.group_id)
        yield from span_problems(record, trajectory.spans, num_tokens, trained, bound)
