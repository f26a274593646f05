"""A run in which everything fails ends, and says why; one in which something succeeds goes on."""

import pytest

from asyncrl.broker.groups.drop_limit import LEAST_IN_A_ROW, LEAST_OVERLONG, OVERLONG, DropLimit
from asyncrl.errors import RunFailed


@pytest.mark.parametrize(("window", "limit"), [(1, LEAST_IN_A_ROW), (16, 32), (100, 200)])
def test_more_drops_in_a_row_than_two_windows_end_the_run(window: int, limit: int) -> None:
    drops = DropLimit(window)
    for _ in range(limit):
        drops.dropped("reward: no such unit")
    with pytest.raises(RunFailed, match=rf"^{limit + 1} groups in a row .* because of reward: no such unit$"):
        drops.dropped("reward: no such unit")


def test_one_complete_group_starts_the_count_anew() -> None:
    drops = DropLimit(window=1)
    for _ in range(10):
        for _ in range(LEAST_IN_A_ROW):
            drops.dropped("bad luck")
        drops.completed()


@pytest.mark.parametrize(("window", "limit"), [(1, LEAST_OVERLONG), (16, 256), (100, 1600)])
def test_long_prompts_may_come_in_long_rows_but_not_for_ever(window: int, limit: int) -> None:
    drops = DropLimit(window)
    for _ in range(limit):
        drops.dropped(OVERLONG)
    with pytest.raises(RunFailed, match=rf"^{limit + 1} prompts were filtered .* data.max_prompt_tokens"):
        drops.dropped(OVERLONG)


def test_long_prompts_do_not_count_as_failures_and_a_complete_group_ends_their_row() -> None:
    drops = DropLimit(window=1)
    for _ in range(3):
        for _ in range(LEAST_OVERLONG):
            drops.dropped(OVERLONG)
        drops.dropped("bad luck")
        drops.completed()


def test_a_larger_window_may_fail_as_a_whole_too() -> None:
    limit = DropLimit(16)
    limit.window = 100
    for _ in range(200):
        limit.dropped("broken")
    with pytest.raises(RunFailed):
        limit.dropped("broken")


def test_a_trainer_that_refuses_every_group_ends_the_run_and_one_that_trains_on_some_goes_on() -> None:
    drops = DropLimit(window=1)
    for _ in range(3):
        for _ in range(LEAST_IN_A_ROW):
            drops.untrained("damaged")
            drops.completed()
        drops.trained()
    for _ in range(LEAST_IN_A_ROW):
        drops.untrained("damaged")
    with pytest.raises(RunFailed, match=r"^the trainer left out 33 groups in a row .* because of damaged$"):
        drops.untrained("damaged")
