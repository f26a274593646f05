"""The built-in trackers have the methods that a follower calls."""

import inspect

import pytest

from asyncrl.observe.trackers import mlflow, tensorboard, wandb
from asyncrl.observe.trackers.tracker import Tracker

METHODS = ("start", "log", "event", "finish")


@pytest.mark.parametrize("module", [tensorboard, wandb, mlflow])
def test_each_has_one_class_with_the_methods_of_a_tracker(module: object) -> None:
    classes = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if hasattr(kind, "finish")]
    own = [kind for kind in classes if kind is not Tracker]
    assert len(own) == 1
    for name in METHODS:
        expected = len(inspect.signature(getattr(Tracker, name)).parameters)
        assert len(inspect.signature(getattr(own[0], name)).parameters) == expected, name
