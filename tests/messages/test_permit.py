from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.messages.permit import RECENT, SEAL_BYTES, Permits
from asyncrl.messages.spool import Permit
from asyncrl.messages.trajectory import Unit

LEASE, GROUP, INDICES = (7 << 32) + 12, 5, [0, 2, 3]
ISSUED = Permits(b"key").grant(LEASE, GROUP, "train", INDICES)


def test_a_permit_allows_the_trajectories_of_its_lease_in_every_process_however_often() -> None:
    permits = Permits(b"key")
    for _ in range(2):
        assert [index for index in range(5) if permits.allows(ISSUED, LEASE, Unit(GROUP, index))] == INDICES


@pytest.mark.parametrize("is_known", [True, False])
def test_a_permit_allows_nothing_else(is_known: bool) -> None:
    def allows(permit: Permit, lease_id: int, unit: Unit, key: bytes = b"key") -> bool:
        permits = Permits(key)
        if is_known:
            permits.grant(LEASE, GROUP, "train", INDICES)
        return permits.allows(permit, lease_id, unit)

    assert not allows(ISSUED, LEASE + 1, Unit(GROUP, 0))
    assert not allows(ISSUED, LEASE, Unit(GROUP + 1, 0))
    assert not allows(ISSUED, LEASE, Unit(GROUP, 0, "held_out"))
    assert not allows(Permit([*INDICES, 1], ISSUED.seal), LEASE, Unit(GROUP, 1))
    assert not allows(Permit(), LEASE, Unit(GROUP, 0))
    assert not Permits(b"of another run").allows(ISSUED, LEASE, Unit(GROUP, 0))


@given(st.binary(max_size=20), st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_numbers_and_bytes_of_strangers_are_refused(seal: bytes, number: int, indices: list[int]) -> None:
    assert not Permits(b"key").allows(Permit(indices, seal), number, Unit(number, indices[0] if indices else 0))


def test_a_guess_is_refused() -> None:
    permits, rng = Permits(b"key"), Random(0)
    tries = (Permit(INDICES, rng.randbytes(SEAL_BYTES)) for _ in range(10_000))
    assert not any(permits.allows(permit, LEASE, Unit(GROUP, 0)) for permit in tries)


def test_what_is_remembered_is_bounded_and_the_rest_is_checked_by_its_seal() -> None:
    permits = Permits(b"key")
    issued = [permits.grant(lease_id, 0, "train", [0]) for lease_id in range(RECENT + 10)]
    assert len(permits._recent) == RECENT
    assert permits.allows(issued[0], 0, Unit(0, 0))
