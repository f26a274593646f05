"""
Which stored versions may be deleted.

    anchor 20, delta 21 ... 40, anchor 40, delta 41, 42      newest anchor: 40; kept: everything from delta 21 on
    └ deleted when anchor 40 is complete

A rollout that joins reads the newest anchor and the deltas since. The deltas from the anchor before it on are kept too:
they are small, and a rollout that is behind needs no anchor.
"""

from collections.abc import Sequence

from asyncrl.messages import StoredWeights


def superseded(stored: Sequence[StoredWeights]) -> list[int]:
    """Indices into ``stored``, complete files in the order they came, of the files to delete."""
    anchors = [index for index, weights in enumerate(stored) if weights.is_anchor]
    if len(anchors) < 2:
        return []
    return [*range(anchors[-2]), anchors[-2]]
