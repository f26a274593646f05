"""A rollout that joins, and one that is behind, find what they need; older files go."""

from asyncrl.messages.weights import StoredWeights
from asyncrl.spool.weights.retention import superseded


def anchor(version: int) -> StoredWeights:
    return StoredWeights(version, "layout", f"v{version}", 1)


def delta(version: int) -> StoredWeights:
    return StoredWeights(version, "layout", f"v{version}", 1, base_version=version - 1, base_digest=f"v{version - 1}")


def test_everything_since_the_only_anchor_is_kept() -> None:
    assert superseded([]) == []
    assert superseded([anchor(0), delta(1), delta(2)]) == []


def test_an_anchor_stays_for_those_that_read_it_until_the_second_one_after_it_is_complete() -> None:
    stored = [anchor(0), delta(1), delta(2), anchor(2), delta(3)]
    assert superseded(stored) == []
    assert superseded([*stored, anchor(3)]) == [0]


def test_deltas_go_with_the_third_anchor_after_them() -> None:
    stored = [delta(1), delta(2), anchor(2), delta(3), delta(4), anchor(4), delta(5), anchor(5)]
    assert superseded(stored) == [0, 1, 2]
