"""Schedules of faults reach every machine, and have faults of every kind."""

import pytest

from tests.cluster.faults import Drain, Partition, PowerCut, Separation, every_fault, some_faults
from tests.cluster.placement import CLUSTER, LAYOUTS, SINGLE, Layout


def test_every_machine_of_a_cluster_has_every_fault() -> None:
    faults = list(every_fault(CLUSTER))
    for kind in (PowerCut, Partition, Drain):
        assert [fault.machine for fault in faults if isinstance(fault, kind)] == list(CLUSTER.machines)


def test_every_rollout_of_a_cluster_is_separated_from_every_machine_of_the_trainer() -> None:
    pairs = {(fault.machine, fault.other) for fault in every_fault(CLUSTER) if isinstance(fault, Separation)}
    assert pairs == {(rollout, f"trainer-{i}") for rollout in ("rollout-a", "rollout-far") for i in "ab"}


def test_the_short_form_has_every_kind_of_fault_and_restarts_the_broker() -> None:
    faults = list(some_faults(CLUSTER))
    assert {type(fault) for fault in faults} == {PowerCut, Partition, Drain}
    assert Drain(machine=CLUSTER.broker) in faults


def test_a_machine_alone_has_no_line_to_cut() -> None:
    assert {type(fault) for fault in (*every_fault(SINGLE), *some_faults(SINGLE))} == {PowerCut, Drain}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_have_all_roles_and_names_that_interfaces_can_have(layout: Layout) -> None:
    assert {role for placement in layout.placements for role in placement.roles} >= {
        "broker",
        "reward",
        "trainer",
        "rollout",
    }
    assert layout.placements[0].roles[0] == "broker"
    assert all(len(machine) <= 11 for machine in layout.machines)
