import numpy as np

from asyncrl.algo.advantages.greedy_baseline import remax
from asyncrl.algo.outcomes import Outcome


def test_what_is_still_to_come_is_compared_with_the_greedy_answer() -> None:
    # rewards -.5 0 3, to come 2.5 3 3, greedy 1
    outcome = Outcome(group_id=1, length=3, reward=3.0, baseline=1.0, penalties=np.array([0.5, 0.0, 0.0]))

    assert remax([outcome])[0].tolist() == [1.5, 2.0, 2.0]


def test_doing_what_the_greedy_answer_does_teaches_exactly_nothing() -> None:
    assert remax([Outcome(group_id=1, length=2, reward=0.1, baseline=0.1)])[0].tolist() == [0.0, 0.0]
