import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.trainer.packing.trie import Trie

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=12)


def symbols(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def test_equal_beginnings_have_the_same_places_and_new_symbols_the_next_ones() -> None:
    trie = Trie()
    found = [trie.insert((), symbols(*ids)) for ids in ([1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 4, 6], [1, 2], [9])]
    assert [places.tolist() for places, _ in found] == [[0, 1, 2, 3], [0, 1, 4], [0, 1, 2, 3, 5], [0, 1], [6]]
    assert [known for _, known in found] == [0, 2, 4, 2, 0]
    assert trie.size == 7


def test_sequences_with_other_roots_share_nothing() -> None:
    trie = Trie()
    assert trie.insert("picture", symbols(1, 2))[0].tolist() == [0, 1]
    assert trie.insert("other", symbols(1, 2))[0].tolist() == [2, 3]
    assert trie.insert("picture", symbols(1, 2))[1] == 2


def test_nothing_takes_no_place() -> None:
    places, known = Trie().insert((), symbols())
    assert (len(places), known) == (0, 0)


@given(SEQUENCES)
def test_each_beginning_has_one_place_however_sequences_branch(sequences: list[list[int]]) -> None:
    trie = Trie()
    place_of: dict[tuple[int, ...], int] = {}
    for sequence in sequences:
        beginnings = [tuple(sequence[: end + 1]) for end in range(len(sequence))]
        num_known = sum(beginning in place_of for beginning in beginnings)
        places, known = trie.insert((), symbols(*sequence))
        assert known == num_known
        for beginning, place in zip(beginnings, places.tolist(), strict=True):
            assert place_of.setdefault(beginning, place) == place
    assert sorted(place_of.values()) == list(range(trie.size))
