"""The bids of `examples/bids.py`: two seats, and the higher number wins."""

import pytest

from asyncrl.environment import Said, Step, Task
from examples.bids import Bids


def played(*texts: str, shared: bool = False) -> tuple[list[Step], dict[str, float]]:
    environment = Bids(shared=shared)
    steps = [environment.reset(Task([{"role": "user", "content": "unread"}]))]
    for text in texts:
        steps.append(environment.step(Said(text, seat=steps[-1].seat)))
    return steps, environment.score()


def test_each_seat_is_asked_and_reads_nothing_of_the_other() -> None:
    steps, _ = played(" #### 6")
    assert [(step.seat, step.messages[0]["content"]) for step in steps] == [
        (0, "Tom a b How many now?"),
        (1, "Ann a b How many now?"),
    ]
    assert all(step.restart for step in steps)


@pytest.mark.parametrize(
    ("texts", "rewards"),
    [
        ((" #### 6", " #### 4"), [1.0, -1.0]),
        ((" #### 0", " #### 9"), [-1.0, 1.0]),
        ((" #### 5", " #### 5"), [0.0, 0.0]),
        ((" #### 0", " #### 10"), [1.0, -1.0]),
        ((" a ?", " #### 0"), [-1.0, 1.0]),
        (("", " #### 1 1"), [0.0, 0.0]),
    ],
)
def test_the_higher_number_wins_and_what_is_none_beats_nothing(texts: tuple[str, ...], rewards: list[float]) -> None:
    assert played(*texts)[0][-1] == Step(reward=rewards, done=True)
    assert played(*texts, shared=True)[0][-1] == Step(reward=[0.0, 0.0], done=True)


def test_it_is_solved_when_both_say_the_highest() -> None:
    assert played(" #### 9", " #### 9")[1] == {"correct": 1.0, "bid": 9.0}
    assert played(" #### 9", " #### 6")[1] == {"correct": 0.0, "bid": 7.5}
    assert played()[1] == {"correct": 0.0, "bid": 0.0}
