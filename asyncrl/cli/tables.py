"""What is in a run directory, as aligned lines for a terminal. Text only: nothing is read or decided here."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from asyncrl.broker.ledger.audit import Audit
from asyncrl.broker.ledger.dead_letters import DeadLetter

SHOWN = 8
"""Reasons of drops that are listed; the rarer ones are counted."""

Row = list[str]


def audit_table(audit: Audit) -> str:
    """The accounts; what does not add up comes last, a line each."""
    sections = [*_groups(audit), *_trajectories(audit), *_tokens(audit), *_staleness(audit), *_lengths(audit)]
    return "\n".join([*aligned(sections, right=[1]), *_conclusion(audit)])


def event_table(events: Sequence[Mapping[str, Any]]) -> str:
    """A line an event: when, what, and the rest as ``key=value``; one that says so if there are none."""
    if not events:
        return "no such events"
    rows = []
    for event in events:
        rest = {key: value for key, value in event.items() if key not in ("at", "event")}
        fields = " ".join(f"{key}={_value(value)}" for key, value in rest.items())
        rows.append([str(event.get("at", "")), str(event.get("event", "")), fields])
    return "\n".join(aligned(rows))


def dead_letter_table(letters: Sequence[DeadLetter]) -> str:
    """A line a dead letter; one that says so if there are none."""
    if not letters:
        return "no dead letters"
    rows = [["unit", "split", "epoch", "row", "stage", "attempts", "reason"]]
    for letter in letters:
        epoch, row = ("-" if place is None else str(place) for place in (letter.epoch, letter.row))
        unit = f"{letter.group_id}/{letter.index}"
        rows.append([unit, letter.split, epoch, row, letter.stage, str(letter.attempts), _one_line(letter.reason)])
    return "\n".join(aligned(rows, right=[2, 3, 5]))


def to_json(value: Audit | Sequence[DeadLetter]) -> str:
    """The same for a program, indented."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def aligned(rows: Sequence[Row], right: Collection[int] = ()) -> list[str]:
    """Cells under each other, columns two spaces apart; those in ``right`` are flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Row) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(cells)).rstrip()

    return [line(row) for row in rows]


# ── sections of an audit: label, number, note ───────────────────────────────────────────────


def _groups(audit: Audit) -> Iterator[Row]:
    yield ["groups", "", ""]
    yield ["  issued", _number(audit.issued), ""]
    yield ["  trained", _number(audit.trained), f"in {audit.steps} steps; {audit.committed:,} in a checkpoint"]
    yield ["  dropped", _number(sum(audit.dropped.values())), ""]
    reasons = list(audit.dropped.items())
    for reason, count in reasons[:SHOWN]:
        yield ["", _number(count), f"  {_one_line(reason)}"]
    if rest := reasons[SHOWN:]:
        yield ["", _number(sum(count for _, count in rest)), f"  of {len(rest)} other reasons"]
    yield ["  open", _number(audit.open), ""]
    if audit.restarted:
        yield ["  begun anew", _number(audit.restarted), "too old to be trained on"]
    yield ["  skipped", _number(audit.skipped), ""]
    yield ["  double-trained", _number(audit.double_trained), ""]
    yield ["  open at once", _number(audit.peak_open), f"at most; the window holds {audit.window:,}"]


def _trajectories(audit: Audit) -> Iterator[Row]:
    yield ["trajectories", "", ""]
    yield ["  re-issued", _number(sum(audit.reissued.values())), _listed(audit.reissued)]
    yield ["  duplicates", _number(audit.duplicates), ""]
    yield ["  failed attempts", _number(sum(audit.failed_attempts.values())), _listed(audit.failed_attempts)]
    yield ["  dead letters", _number(audit.dead_letters), ""]


def _tokens(audit: Audit) -> Iterator[Row]:
    yield ["tokens", "", ""]
    yield ["  trained", _number(audit.tokens_trained), ""]
    yield ["  thrown away", _number(sum(audit.tokens_thrown_away.values())), _listed(audit.tokens_thrown_away)]


def _staleness(audit: Audit) -> Iterator[Row]:
    yield ["staleness", "trained", ""]
    total = sum(audit.staleness.values())
    for staleness, count in audit.staleness.items():
        yield [f"  {staleness}", _number(count), f"{count / total:.1%}"]
    if audit.over_max_staleness:
        yield ["  over max_staleness", _number(audit.over_max_staleness), f"{audit.over_max_staleness / total:.1%}"]


def _lengths(audit: Audit) -> Iterator[Row]:
    yield ["length", "trained", "dropped"]
    shortest = 0
    for bucket in audit.lengths:
        share = bucket.dropped / max(bucket.trained + bucket.dropped, 1)
        note = f"{bucket.dropped:,} ({share:.1%})" if bucket.dropped else "0"
        note += f"; {bucket.restarted:,} begun anew" if bucket.restarted else ""
        yield [f"  {shortest}-{bucket.max_tokens}", _number(bucket.trained), note]
        shortest = bucket.max_tokens + 1
    if audit.dropped_unfinished:
        yield ["  unknown", "", f"{audit.dropped_unfinished:,} never finished"]


def _conclusion(audit: Audit) -> Iterator[str]:
    if not audit.problems:
        yield "everything adds up: issued = trained + dropped + open, nothing skipped, nothing trained twice"
        return
    yield f"{len(audit.problems)} {'problem' if len(audit.problems) == 1 else 'problems'}"
    yield from (f"  {_one_line(problem)}" for problem in audit.problems)


# ── cells ───────────────────────────────────────────────────────────────────────────────────


def _number(value: int) -> str:
    return f"{value:,}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _value(value: Any) -> str:
    """A word as it is; anything else as JSON, so that an event stays one line and its fields stay apart."""
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' "='):
        return value
    return msgspec.json.encode(value).decode()
