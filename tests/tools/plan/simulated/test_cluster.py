"""Messages between the real scheduler and simulated nodes."""

import random
from functools import partial
from itertools import pairwise

import pytest

from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Lease, Settled
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trainer import ScoredTrajectory
from asyncrl.messages.trajectory import Span, TrajectorySummary, Unit
from asyncrl.messages.weights import Transfer
from asyncrl.tools.plan.plan_file import inputs
from asyncrl.tools.plan.simulate import Simulation
from asyncrl.tools.plan.simulated.cluster import (
    EventQueue,
    Prompts,
    SimulatedCluster,
    SimulationResult,
    TrainedStep,
    completion_tokens,
    token_staleness,
    trajectory_staleness,
)
from asyncrl.tools.plan.simulated.rollout import SimulatedRollout
from tests.tools.plan.plans import a_plan, finished, spread_out


def a_cluster() -> SimulatedCluster:
    plan = spread_out()
    return SimulatedCluster(plan, 4, inputs(plan).lengths)


def test_a_node_handles_one_message_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    handle, handled, inside = SimulatedRollout.handle, list[Message](), list[SimulatedRollout]()

    def watched(rollout: SimulatedRollout, message: Message) -> None:
        assert rollout not in inside, "a message of the broker arrived while another one was handled"
        inside.append(rollout)
        handled.append(message)
        handle(rollout, message)
        inside.remove(rollout)

    monkeypatch.setattr(SimulatedRollout, "handle", watched)
    plan = spread_out()
    simulation = Simulation(plan, inputs(plan))
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
    assert SimulatedCluster(a_plan(), 1, inputs(a_plan()).lengths).lengths_of(0, [0, 1]) == [100, 100]


def test_prompts_never_end() -> None:
    assert Prompts().at(10**9).group_id == 10**9


# ── test event queue ──────────────────────────────────────────────────────────────────────────
# Order of events.


def test_events_happen_in_order_of_time_and_then_of_asking():
    events = EventQueue()
    seen: list[tuple[float, str]] = []

    def note(name: str) -> None:
        seen.append((events.now_s, name))

    for name, seconds in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
        events.after(seconds, partial(note, name))
    assert len(events) == 3
    while events.advance():
        pass
    assert seen == [(1.0, "first"), (1.0, "second"), (2.0, "late")]
    assert not events.advance()


# ── test trainer ──────────────────────────────────────────────────────────────────────────────
# Steps and versions of the simulated trainer.


def test_steps_follow_one_another_and_take_as_long_as_their_tokens() -> None:
    steps = finished(a_plan({"rollout.prompt_tokens": 50}), steps=3).trainer.done
    assert [step.step for step in steps] == [0, 1, 2]
    assert [step.ended_s - step.began_s for step in steps] == pytest.approx([6.0] * 3)  # 4 x 150 tokens at 100 / s
    assert all(before.ended_s <= after.began_s for before, after in pairwise(steps))


def test_a_version_contains_the_steps_of_one_publish() -> None:
    steps = finished(a_plan({"schedule.steps_per_publish": 2}), steps=4).trainer.done
    assert [step.policy_version for step in steps] == [0, 0, 1, 1]


def test_the_last_step_is_published_even_if_it_fills_no_publish() -> None:
    simulation = finished(a_plan({"schedule.steps_per_publish": 2}), steps=3)
    assert simulation.cluster.scheduler.transfers.live_version == 2


def test_a_blocking_publish_delays_the_next_step() -> None:
    changes = {"staleness": 1.0, "trainer.speeds": [{"devices": 1, "tokens_per_s": 20}], "publish.seconds": 3.0}
    overlapping = finished(a_plan(changes), steps=4).trainer.done
    blocking = finished(a_plan(changes | {"publish.blocks_trainer": True}), steps=4).trainer.done
    assert overlapping[2].began_s - overlapping[1].ended_s == pytest.approx(0.0)
    assert blocking[2].began_s - blocking[1].ended_s == pytest.approx(3.0)


# ── test result ───────────────────────────────────────────────────────────────────────────────
# Shares of tokens and trajectories, computed by hand.


def a_trajectory(index: int, spans: list[Span]) -> ScoredTrajectory:
    summary = TrajectorySummary(
        num_tokens=spans[-1].end,
        prompt_tokens=5,
        oldest_version=spans[0].policy_version,
        newest_version=spans[-1].policy_version,
        num_spans=len(spans),
        finish_reason="stop",
    )
    return ScoredTrajectory(Unit(0, index), SpoolRef("spool", 0, 0, 0, 0), 0.0, {}, summary)


def a_step(policy_version: int, *spans: list[Span]) -> TrainedStep:
    trajectories = [a_trajectory(index, of_one) for index, of_one in enumerate(spans)]
    return TrainedStep(0, policy_version, 0.0, 1.0, trajectories, list(spans))


STEPS = [a_step(3, [Span(2, 0, 10)], [Span(1, 0, 10), Span(3, 10, 30)])]


def test_every_token_counts_by_its_own_version() -> None:
    assert token_staleness(STEPS) == pytest.approx({0: 20 / 40, 1: 10 / 40, 2: 10 / 40})


def test_a_trajectory_counts_by_its_oldest_version() -> None:
    assert trajectory_staleness(STEPS) == {1: 0.5, 2: 0.5}


def test_prompt_tokens_are_no_completion_tokens() -> None:
    assert completion_tokens(STEPS) == 40


def test_mean_and_maximum_are_those_of_the_shares() -> None:
    result = SimulationResult(
        devices=2, rollout_devices=1, staleness=1.0, steps_per_publish=2, step_s=1.0, group_s=1.0, rollout_idle=0.0,
        running=1.0, trainer_idle=0.0, tokens_per_s=1.0, trajectory_staleness={0: 0.25, 2: 0.75},
    )  # fmt: skip
    assert (result.staleness_mean, result.staleness_max) == (1.5, 2)
    assert result.lag == 3.0
