"""Messages between the real scheduler and simulated nodes."""

import random

import pytest

from asyncrl.actor.message import Message
from asyncrl.messages.rollout import Lease, Settled
from asyncrl.messages.weights import Transfer
from asyncrl.plan.inputs import inputs
from asyncrl.plan.simulate import Simulation
from asyncrl.plan.simulated.cluster import Cluster, Prompts
from tests.plan.plans import a_plan, spread_out


def a_cluster() -> Cluster:
    plan = spread_out()
    return Cluster(plan, 4, inputs(plan).lengths)


def test_a_node_handles_one_message_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = spread_out()
    simulation = Simulation(plan, inputs(plan))
    rollout = simulation.rollouts[0]
    handle, handled, is_inside = rollout.handle, list[Message](), [False]

    def watched(message: Message) -> None:
        assert not is_inside[0], "a message of the broker arrived while another one was handled"
        is_inside[0] = True
        handled.append(message)
        handle(message)
        is_inside[0] = False

    monkeypatch.setattr(rollout, "handle", watched)
    simulation.advance_to(4)
    assert {Lease, Settled, Transfer} <= {type(message) for message in handled}


def test_no_delay_calls_at_once_and_a_delay_waits_for_the_clock() -> None:
    cluster = a_cluster()
    called: list[float] = []
    cluster.after(0.0, lambda: called.append(cluster.events.now_s))
    cluster.after(2.0, lambda: called.append(cluster.events.now_s))
    assert called == [0.0]
    assert cluster.events.advance()
    assert called == [0.0, 2.0]


def test_lengths_of_a_group_depend_on_the_seed_and_the_group_alone() -> None:
    cluster, again = a_cluster(), a_cluster()
    again.lengths_of(3, [0])
    random.random()
    assert cluster.lengths_of(5, [0, 1, 2, 3]) == again.lengths_of(5, [0, 1, 2, 3])
    assert cluster.lengths_of(5, [2]) == cluster.lengths_of(5, [0, 1, 2, 3])[2:3]
    assert cluster.lengths_of(5, [0, 1, 2, 3]) != cluster.lengths_of(6, [0, 1, 2, 3])
    assert Cluster(a_plan(), 1, inputs(a_plan()).lengths).lengths_of(0, [0, 1]) == [100, 100]


def test_prompts_never_end() -> None:
    assert Prompts().at(10**9).group_id == 10**9
