"""What a simulated rollout does with messages that a steady run never sends."""

from asyncrl.messages import Cancelled, Unit
from asyncrl.plan.inputs import inputs
from asyncrl.plan.simulate import Simulation
from tests.plan.plans import a_plan


def test_cancelled_trajectories_give_their_credits_back():
    plan = a_plan()
    simulation = Simulation(plan, inputs(plan))
    rollout, node = simulation.rollouts[0], simulation.cluster.scheduler.nodes.get("rollout0.0")
    while not rollout.decoding.num_in_hand:
        simulation.cluster.agenda.advance()
    assert (rollout.decoding.num_in_hand, node.credits) == (4, 4)
    rollout.take(Cancelled([], [Unit(0, 1), Unit(9, 9)]))
    assert (rollout.decoding.num_in_hand, node.credits) == (3, 5)
