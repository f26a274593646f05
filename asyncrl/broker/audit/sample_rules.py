"""
Samples files against the ledger: one file for each step that was done, with each trajectory of its batch once.

Samples outlive the payloads, so they show the version of every token that was ever trained on.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from asyncrl.broker.audit.spool_rules import StoredFacts
from asyncrl.broker.audit.token_rules import span_problems
from asyncrl.broker.ledger.record_book import RecordBook, TrainedTrajectory
from asyncrl.broker.ledger.record_rules import unit_name
from asyncrl.messages.trajectory import Unit
from asyncrl.observe.samples import SampleFacts

SHOWN_CHARS = 40


def sample_problems(
    book: RecordBook,
    step: int,
    rows: Sequence[SampleFacts],
    stored: Mapping[Unit, StoredFacts] = {},
) -> Iterator[str]:
    """
    Sentences about the samples of one step, without the name of the file.

    Args:
        stored: What the payloads that are still there have.
    """
    batch = {item.result.unit: item for item in book.batch(step)}
    times = Counter(Unit(row.group_id, row.index) for row in rows)
    for unit in batch.keys() - times.keys():
        yield f"{unit_name(unit)} is missing, which step {step} was trained on"
    for unit, number in times.items():
        if unit not in batch:
            yield f"{unit_name(unit)} is not in the batch of step {step} in the ledger"
        elif number > 1:
            yield f"{unit_name(unit)} is there {number} times"
    for row in rows:
        if item := batch.get(Unit(row.group_id, row.index)):
            yield from _row_problems(book, item, row)
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


def _row_problems(book: RecordBook, item: TrainedTrajectory, row: SampleFacts) -> Iterator[str]:
    name, version = unit_name(item.result.unit), book.versions.of_step(item.step)
    if item.rewarded is not None and row.reward != item.rewarded.reward:
        yield f"{name} has the reward {row.reward}: expected {item.rewarded.reward}, as in the ledger"
    if row.step != item.step:
        yield f"{name} says that it belongs to step {row.step}"
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
    bound = book.bounds.of(item.result.unit.group_id)
    yield from span_problems(item.result, row.spans, row.num_tokens, version, bound)
