"""Everything that trains has the methods that a trainer's actor calls."""

import inspect

import pytest

from asyncrl.runtime.batches import BatchStream
from asyncrl.runtime.in_memory import MemoryPublisher
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.trainable import Trainable, WeightPublisher
from asyncrl.weights.publish import Publisher


def methods(contract: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(contract, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize(
    ("contract", "kind"),
    [
        (Trainable, Learner),
        (Trainable, BatchStream),
        (WeightPublisher, Publisher),
        (WeightPublisher, MemoryPublisher),
    ],
)
def test_it_has_the_methods_of_its_contract(contract: type, kind: type) -> None:
    assert len(methods(contract)) >= 3
    for name in methods(contract):
        expected = len(inspect.signature(getattr(contract, name)).parameters)
        assert len(inspect.signature(getattr(kind, name)).parameters) == expected, name
