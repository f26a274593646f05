"""examples/shown_squares.py, played by a policy that sees, and by one that does not."""

from typing import Any

import numpy as np

from asyncrl.environment import Said, Task
from asyncrl.tools.toy.drawn_squares import SquaresProblem, png
from asyncrl.vision.picture import decode
from tests.examples.conftest import load_example

PROBLEM = SquaresProblem("red", ("red", "blue", "red", "pink", "green", "blue", "red", "cyan", "pink"), 7)
ROW = {"asked": PROBLEM.asked, "squares": " ".join(PROBLEM.squares), "seed": PROBLEM.seed}

example = load_example("shown_squares")


def after_a_look(**options: Any) -> tuple[Any, list[Any]]:
    """The environment after the first turn, and the parts of its answer."""
    environment = example.Squares(**options)
    assert environment.reset(Task(messages=[{"role": "user", "content": "How many?"}], extra=ROW)) is None
    step = environment.step(Said("anything"))
    assert not step.done
    return environment, step.messages[0]["content"]


def test_the_first_turn_is_answered_with_the_picture_and_the_question() -> None:
    _, (picture, question) = after_a_look()
    assert question == {"type": "text", "text": "How many red?"}
    assert picture == {"type": "image", "data": png(PROBLEM)}
    assert np.asarray(decode(picture["data"])).shape == (24, 24, 3)


def test_the_second_turn_is_rewarded_for_the_count_at_its_end() -> None:
    for said, reward in ((PROBLEM.chain(), 1.0), (" #### 3", 1.0), (" #### 4", 0.0), ("3", 0.0), (" ####", 0.0)):
        environment, _ = after_a_look()
        step = environment.step(Said(said))
        assert (step.reward, step.done) == (reward, True)


def test_the_control_shows_another_picture_and_asks_the_same() -> None:
    _, (picture, question) = after_a_look(swapped=True)
    assert question["text"] == "How many red?"
    assert picture["data"] != png(PROBLEM)
