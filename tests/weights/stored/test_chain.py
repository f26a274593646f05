"""A rollout reads deltas if they lead on from what it holds, and else begins at the newest anchor."""

import pytest

from asyncrl.errors import TransferError
from asyncrl.messages.weights import StoredWeights, WeightsFile
from asyncrl.weights.stored.download import next_file


def anchor(version: int, digest: str = "") -> StoredWeights:
    return StoredWeights(version, "layout", digest or f"v{version}", 1)


def delta(version: int, base: int | None = None, digest: str = "") -> StoredWeights:
    base = version - 1 if base is None else base
    return StoredWeights(version, "layout", digest or f"v{version}", 1, base_version=base, base_digest=f"v{base}")


STORED = [delta(18), delta(19), delta(20), anchor(20), delta(21), delta(22)]


def chosen(
    stored: list[StoredWeights], version: int, held: str, unfinished: StoredWeights | None = None
) -> StoredWeights | None:
    files = [WeightsFile(weights, 1, 1) for weights in stored]
    file = next_file(files, version, held, unfinished)
    return file.weights if file else None


@pytest.mark.parametrize(
    ("held", "read"),
    [
        pytest.param("", anchor(20), id="a joiner begins at the anchor"),
        pytest.param("v20", delta(21), id="the next delta"),
        pytest.param("v21", delta(22), id="the last delta"),
        pytest.param("v22", None, id="it is held already"),
        pytest.param("v18", delta(19), id="before the anchor: deltas still lead on"),
        pytest.param("v16", anchor(20), id="too far behind: the anchor"),
        pytest.param("v21 of an earlier trainer", anchor(20), id="another version of the same number: the anchor"),
    ],
)
def test_the_next_file(held: str, read: StoredWeights | None) -> None:
    assert chosen(STORED, 22, held) == read


def test_a_version_before_the_newest_is_reached_too() -> None:
    assert chosen(STORED, 21, "v20") == delta(21)
    assert chosen(STORED, 20, "") == anchor(20)


def test_a_delta_may_skip_versions() -> None:
    assert chosen([anchor(20), delta(25, base=20)], 25, "v20") == delta(25, base=20)


def test_the_newest_of_two_anchors_on_the_way_is_read() -> None:
    assert chosen([anchor(0), delta(1), anchor(1), delta(2)], 2, "") == anchor(1)


def test_a_file_that_was_read_in_part_is_continued() -> None:
    assert chosen(STORED, 22, "", unfinished=delta(22)) == delta(22)
    assert chosen([anchor(0), *STORED], 22, "", unfinished=anchor(20)) == anchor(20)


def test_a_file_that_leads_nowhere_any_more_is_not_continued() -> None:
    assert chosen(STORED, 22, "", unfinished=delta(17)) == anchor(20)


def test_weights_of_the_same_number_that_were_made_again_count() -> None:
    """A trainer that resumed at version 20 published 21 once more, with other weights."""
    again = [*STORED, anchor(20, "other"), StoredWeights(21, "layout", "other 21", 1, 20, "other")]
    assert chosen(again, 21, "v21") == anchor(20, "other")


def test_a_version_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(TransferError, match="lead to version 23"):
        chosen(STORED, 23, "v22")
    with pytest.raises(TransferError, match="lead to version 22"):
        chosen([delta(22)], 22, "v20")
