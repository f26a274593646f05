import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def garbage_collected_later() -> Iterator[None]:
    """A collection of all objects of a test process takes as much CPU time as an answer may."""
    gc.disable()
    yield
    gc.enable()
