"""Messages that a steady run never sends to a simulated rollout."""

from asyncrl.messages.rollout import Cancelled
from asyncrl.messages.trajectory import Unit
from asyncrl.plan.inputs import inputs
from asyncrl.plan.simulate import Simulation
from tests.plan.plans import a_plan


def test_cancelled_trajectories_give_their_credits_back():
    plan = a_plan()
    simulation = Simulation(plan, inputs(plan))
    rollout, node = simulation.rollouts[0], simulation.cluster.scheduler.nodes.get("rollout0.0")
    assert node is not None
    while not rollout.engine.num_unfinished:
        simulation.cluster.events.advance()
    assert (rollout.engine.num_unfinished, node.credits) == (4, 4)
    rollout.handle(Cancelled([], [Unit(0, 1), Unit(9, 9)]))
    assert (rollout.engine.num_unfinished, node.credits) == (3, 5)
