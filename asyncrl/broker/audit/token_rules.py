"""
Versions of a trajectory, token by token, against its record in the ledger and the bound of its schedule.

The ledger has the oldest and the newest version only; the spans, in the stored payload and in the samples file, have
the version of every token.
"""

from collections.abc import Iterator, Sequence

from asyncrl.broker.ledger.record_rules import unit_name
from asyncrl.broker.ledger.records import Progressed, Result
from asyncrl.messages.trajectory import Span


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
