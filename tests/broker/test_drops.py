"""A group dropped now and then is made up for; if nothing else ever happens, the run ends and says why."""

import pytest

from asyncrl.broker.drops import LEAST_IN_A_ROW, DropBook
from asyncrl.errors import RunFailed


@pytest.mark.parametrize(("window", "limit"), [(4, LEAST_IN_A_ROW), (100, 200)], ids=["at least 32", "two windows"])
def test_only_drops_in_a_row_end_the_run(window: int, limit: int) -> None:
    book = DropBook(window)
    for _ in range(3):
        for _ in range(limit):
            book.dropped("reward: the verifier raised")
        book.completed()
    for _ in range(limit):
        book.dropped("reward: the verifier raised")

    with pytest.raises(RunFailed, match=f"{limit + 1} groups in a row .* because of reward: the verifier raised"):
        book.dropped("reward: the verifier raised")
