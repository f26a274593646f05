import numpy as np

from asyncrl.algo.advantages.groups import groups, on_every_token, per_group
from asyncrl.algo.outcomes import Outcome

SCATTERED = [Outcome(group_id=group, length=place, reward=place) for place, group in enumerate([5, 3, 5, 4, 3])]


def test_siblings_need_not_be_adjacent() -> None:
    assert groups(SCATTERED) == {5: [0, 2], 3: [1, 4], 4: [3]}


def test_numbers_of_groups_come_back_in_the_order_of_the_outcomes() -> None:
    numbers = per_group(SCATTERED, lambda group: np.full(len(group), 10.0 * len(group) + group[0].group_id))

    assert numbers.tolist() == [25, 23, 25, 14, 23]


def test_every_token_has_its_trajectorys_number_and_an_empty_one_has_none() -> None:
    spread = on_every_token(SCATTERED[:3], np.array([7.0, 8.0, 9.0]))

    assert [part.tolist() for part in spread] == [[], [8.0], [9.0, 9.0]]
