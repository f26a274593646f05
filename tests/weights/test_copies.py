import threading

import pytest
import torch

from asyncrl.weights.contents.header import NO_VERSION
from asyncrl.weights.copies import Copies
from tests.weights.party import LAYOUT

CPU = torch.device("cpu")


def copies(*versions: int, keeps_base: bool = False) -> Copies:
    made = Copies(LAYOUT, CPU, keeps_base=keeps_base)
    for version in versions:
        write(made, version)
    return made


def write(copies: Copies, version: int) -> None:
    with copies.write(version) as staging:
        for bucket in staging.buckets:
            bucket.fill_(version)


def held(copies: Copies, version: int) -> bool:
    with copies.read(version) as staging:
        return staging is not None and all(bool((bucket == version).all()) for bucket in staging.buckets)


def test_the_two_newest_versions_are_there() -> None:
    three = copies(1, 2, 3)

    assert [held(three, version) for version in (1, 2, 3)] == [False, True, True]
    assert three.newest == 3


def test_there_is_nothing_before_the_first() -> None:
    assert copies().newest == NO_VERSION
    with copies().read(NO_VERSION) as staging:
        assert staging is None


def test_the_next_version_is_written_while_one_moves() -> None:
    one = copies(1)
    with one.read(1) as moving:
        write(one, 2)
        assert moving is not None
        assert all(bool((bucket == 1).all()) for bucket in moving.buckets)

    assert held(one, 2)


@pytest.mark.parametrize("keeps_base", [False, True])
def test_a_version_is_written_over_only_when_it_has_moved(keeps_base: bool) -> None:
    """The writer has to wait: the other copies hold the newest and the kept version."""
    some = copies(1, keeps_base=keeps_base)
    if keeps_base:
        some.keep(1)
        write(some, 2)
    moving = some.newest
    with some.read(moving):
        write(some, moving + 1)
        writer = threading.Thread(target=write, args=(some, moving + 2))
        writer.start()
        while writer.is_alive() and not some._changed._waiters:  # type: ignore[attr-defined]
            pass
        assert writer.is_alive()
        assert held(some, moving)
    writer.join()

    assert held(some, moving + 2)


def test_a_kept_version_stays_until_another_is_kept() -> None:
    some = copies(1, keeps_base=True)
    some.keep(1)
    for version in (2, 3, 4):
        write(some, version)
    assert held(some, 1)
    assert not held(some, 2)

    some.keep(4)
    write(some, 5)
    write(some, 6)
    assert [held(some, version) for version in (1, 4, 5, 6)] == [False, True, True, True]
    kept = some.kept()
    assert kept is not None
    assert kept[0] == 4


def test_an_interrupted_write_makes_no_version() -> None:
    one = copies(1)
    with pytest.raises(RuntimeError), one.write(2):
        raise RuntimeError("the model is gone")

    assert one.newest == 1
    assert held(one, 1)
    assert not held(one, 2)
    write(one, 3)
    assert held(one, 1)
