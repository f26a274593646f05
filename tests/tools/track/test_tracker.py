"""The built-in trackers have the methods that a follower calls."""

import inspect

from asyncrl.records import trackers
from asyncrl.records.trackers import Tracker

METHODS = ("start", "log", "event", "finish")


def test_each_has_the_methods_of_a_tracker() -> None:
    classes = [kind for _, kind in inspect.getmembers(trackers, inspect.isclass) if hasattr(kind, "finish")]
    own = [kind for kind in classes if kind is not Tracker]
    assert len(own) == 3
    for kind in own:
        for name in METHODS:
            expected = len(inspect.signature(getattr(Tracker, name)).parameters)
            assert len(inspect.signature(getattr(kind, name)).parameters) == expected, (kind, name)
