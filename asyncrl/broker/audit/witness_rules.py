"""
Digests of a ledger that others keep, and digests that the ledger keeps, against what they are of.

    summary, manifests, events ── number of records, digest ──▶ ledger          whoever edits it would have to edit them
    ledger ── Written ──▶ lines of metrics.jsonl, samples, manifests, summary   whoever edits one would have to edit it
    ledger ── Started ──▶ its own configuration and digests of the data
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from asyncrl.broker.audit.step_rules import Line
from asyncrl.broker.ledger.audit import LEDGER
from asyncrl.broker.ledger.chain import ChainCheck, Head
from asyncrl.broker.ledger.reader import LedgerMeta
from asyncrl.broker.ledger.record_book import METRICS, SUMMARY, RecordBook
from asyncrl.files.json_lines import encoded
from asyncrl.observe.run_directory import RunSummary

EVENTS = "events.jsonl"
SHOWN = 12
"""Digits of a digest in a sentence."""


def head_of(found: Any) -> Head:
    """Number and digest of records in a summary, a manifest or an event; ``(0, "")`` if an earlier asyncrl wrote it."""
    return Head(int(found.ledger_records), str(found.ledger_head))


def heads_of_events(events: Sequence[Line]) -> dict[str, Head]:
    """Heads that events of checkpoints have, by a name of the event."""
    return {
        f"{EVENTS} (checkpoint.written of step {event.get('step')})": Head(
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


def meta_problems(book: RecordBook, meta: LedgerMeta, *, is_over: bool) -> Iterator[str]:
    """
    Sentences about facts beside the records that are not those of the last start.

    Args:
        is_over: There is a summary. Before, a starting broker may have recorded other facts, and not its start.
    """
    started = book.started
    if started and started.meta != meta.digest and (is_over or started.broker_term == meta.broker_term):
        yield (
            f"{LEDGER}: its meta is not that of start {started.broker_term}: the configuration, a digest of the data "
            f"or the id of the run was edited, expected the digest {started.meta[:SHOWN]}, got {meta.digest[:SHOWN]}"
        )


def line_problems(book: RecordBook, lines: Sequence[Line]) -> Iterator[str]:
    """Sentences about lines of metrics that are not those that were written."""
    for line in lines:
        step = int(line["step"])
        yield from _differing(book, METRICS, hashlib.sha256(encoded(line)).hexdigest(), step)


def unwitnessed_steps(book: RecordBook, lines: Iterable[Line]) -> list[int]:
    """Steps whose line has no digest in the ledger: its broker died before it, or an earlier asyncrl wrote it."""
    return [int(line["step"]) for line in lines if (METRICS, int(line["step"])) not in book.written]


def summary_file_problems(book: RecordBook, summary: RunSummary, content: bytes) -> Iterator[str]:
    """A sentence about a summary that is not the one that the broker wrote; one that `asyncrl run` wrote has none."""
    if summary.ledger_records or summary.status != "failed":
        yield from _differing(book, SUMMARY, hashlib.sha256(content).hexdigest())


def file_problems(book: RecordBook, file: str, digests: Sequence[str]) -> Iterator[str]:
    """A sentence about a file none of whose ``digests``, read before and after the ledger, is that in the ledger."""
    if not any(book.written.get((file, -1)) in (None, digest) for digest in digests):
        yield from _differing(book, file, digests[-1])


def _differing(book: RecordBook, file: str, digest: str, step: int = -1) -> Iterator[str]:
    expected = book.written.get((file, step))
    if expected not in (None, digest):
        what = f"the line of step {step}" if step >= 0 else "it"
        yield (
            f"{file}: {what} is not what was written: expected the digest {expected[:SHOWN]}, as in the ledger, got "
            f"{digest[:SHOWN]}"
        )
