"""
Which stored versions may be deleted.

    anchor 20, delta 21 ... 40, anchor 40, delta 41 ... 60, anchor 60, delta 61      kept: everything from delta 21 on
    └ deleted when anchor 60 is complete

A rollout that joins reads the newest anchor and the deltas since. The anchor before it is kept for those that still
read it, and the deltas from the one before that on: they are small, and a rollout that is behind needs no anchor.
"""

from collections.abc import Sequence

from asyncrl.messages.weights import StoredWeights

KEPT_ANCHORS = 2


def superseded(stored: Sequence[StoredWeights]) -> list[int]:
    """Indices into ``stored``, complete files in the order they came, of the files to delete."""
    anchors = [index for index, weights in enumerate(stored) if weights.is_anchor]
    if len(anchors) <= KEPT_ANCHORS:
        return []
    return [*range(anchors[-1 - KEPT_ANCHORS]), anchors[-1 - KEPT_ANCHORS]]
