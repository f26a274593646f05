"""The signals of `examples/signals.py`: one seat tells, the other understands."""

import pytest

from asyncrl.environment import Said, Step, Task
from examples.signals import Signals


def played(answer: str, *texts: str, paid: str = "both") -> tuple[list[Step], dict[str, float]]:
    environment = Signals(paid=paid)
    steps = [environment.reset(Task([{"role": "user", "content": "unread"}], answer=answer))]
    for text in texts:
        steps.append(environment.step(Said(text, seat=steps[-1].seat)))
    return steps, environment.score()


def contents(steps: list[Step]) -> list[tuple[int, str]]:
    return [(step.seat, step.messages[0]["content"]) for step in steps if step.messages]


def test_the_listener_reads_the_letter_of_the_number_alone() -> None:
    steps, _ = played("3", " #### 6")
    assert contents(steps) == [(0, "Ann a b How many now?"), (1, "Zoe c How many now?")]
    assert all(step.restart for step in steps)


@pytest.mark.parametrize(("paid", "rewards"), [("both", [1.0, 1.0]), ("speaker", [1.0, 0.0])])
def test_a_name_that_is_understood_is_paid(paid: str, rewards: list[float]) -> None:
    steps, score = played("3", " #### 6", " #### 1", paid=paid)
    assert steps[-1] == Step(reward=rewards, done=True)
    assert score == {"correct": 1.0}


@pytest.mark.parametrize("texts", [(" #### 6", " #### 0"), (" #### 6", " a ?"), (" a ?",), ("",), (" #### 1 1",)])
def test_any_other_word_ends_the_episode_unpaid(texts: tuple[str, ...]) -> None:
    steps, score = played("3", *texts)
    assert steps[-1] == Step(reward=[0.0, 0.0], done=True)
    assert score == {"correct": 0.0}
