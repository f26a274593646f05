"""The weights of the last publish, kept for the steps until the next one."""

import torch
from torch import nn

from asyncrl.trainer.anchor import Anchor


def scene(steps_per_publish: int = 3) -> tuple[nn.Parameter, Anchor]:
    weight = nn.Parameter(torch.zeros(2))
    return weight, Anchor({"w": weight}, steps_per_publish)


def applied(weight: nn.Parameter, anchor: Anchor) -> float:
    with anchor.applied():
        return float(weight.detach()[0])


def test_steps_of_one_publish_have_the_weights_it_began_with() -> None:
    weight, anchor = scene()
    seen = []
    for step in range(5):
        anchor.begin(step)
        seen.append(applied(weight, anchor))
        assert float(weight.detach()[0]) == step, "those in training come back"
        weight.data += 1
    assert seen == [0, 0, 0, 3, 3]


def test_weights_in_training_come_back_after_an_error() -> None:
    weight, anchor = scene()
    anchor.begin(0)
    weight.data += 1
    anchor.begin(1)
    try:
        with anchor.applied():
            raise ValueError
    except ValueError:
        pass
    assert float(weight.detach()[0]) == 1
    assert applied(weight, anchor) == 0


def test_a_process_that_begins_between_two_publishes_begins_with_published_weights() -> None:
    weight, anchor = scene()
    anchor.begin(4)
    weight.data += 1
    anchor.begin(5)
    assert applied(weight, anchor) == 0
