"""A run in which everything fails ends, and says why; one in which something succeeds goes on."""

import pytest

from asyncrl.broker.drops import LEAST_IN_A_ROW, DropBook
from asyncrl.errors import RunFailed


@pytest.mark.parametrize(("window", "limit"), [(1, LEAST_IN_A_ROW), (16, 32), (100, 200)])
def test_more_drops_in_a_row_than_two_windows_end_the_run(window, limit):
    drops = DropBook(window)
    for _ in range(limit):
        drops.dropped("reward: no such unit")
    with pytest.raises(RunFailed, match=rf"^{limit + 1} groups in a row .* because of reward: no such unit$"):
        drops.dropped("reward: no such unit")


def test_one_complete_group_starts_the_count_anew():
    drops = DropBook(window=1)
    for _ in range(10):
        for _ in range(LEAST_IN_A_ROW):
            drops.dropped("bad luck")
        drops.completed()
