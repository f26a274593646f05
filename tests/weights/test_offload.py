"""On a CPU nothing moves; `tests/trainer/npu_process.py` and that of the built-in engine park memory of a device."""

import torch

from asyncrl.weights.offload import Offloader


def test_memory_of_the_host_stays_where_it_is() -> None:
    kept, freed = torch.arange(4.0), torch.zeros(4)
    offloader = Offloader()
    assert offloader.offload([kept], [freed]) == 0
    assert kept.tolist() == [0, 1, 2, 3]
    assert freed.untyped_storage().nbytes() == 16
    offloader.onload()
    assert kept.tolist() == [0, 1, 2, 3]


def test_memory_that_was_never_parked_is_fetched_without_effect() -> None:
    Offloader().onload()
