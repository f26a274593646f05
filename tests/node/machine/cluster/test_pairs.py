from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.node.machine.cluster.cluster_file import Machine, MachineRole
from asyncrl.node.machine.cluster.pairs import connecting_pairs, rounds


def machines(*roles: list[MachineRole]) -> list[Machine]:
    return [Machine(name=name, roles=each) for name, each in zip("abcdef", roles, strict=False)]


@pytest.mark.parametrize(
    ("roles", "pairs"),
    [
        ([["trainer"], ["rollout"]], ["ab", "ba"]),
        ([["trainer"], ["trainer"]], ["ab", "ba"]),
        ([["rollout"], ["rollout"]], []),
        ([["broker"], ["trainer"], ["reward"]], []),
        ([["broker", "spool"], ["reward"]], ["ba"]),
        ([["trainer", "spool"], ["rollout"]], ["ab", "ba"]),
    ],
)
def test_members_of_a_collective_connect_both_ways_and_users_of_a_spool_to_it(
    roles: list[list[MachineRole]], pairs: list[str]
) -> None:
    assert ["".join(pair) for pair in connecting_pairs(machines(*roles))] == pairs


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")).filter(lambda p: p[0] != p[1]), unique=True
    )
)
def test_each_pair_has_a_round_in_which_no_machine_is_busy_twice(pairs: list[tuple[str, str]]) -> None:
    found = list(rounds(pairs))
    assert sorted(pair for each in found for pair in each) == sorted(pairs)
    assert all(Counter(name for pair in each for name in pair).most_common(1)[0][1] == 1 for each in found)
