"""
Orders of `schedule.order` in a simulated cluster whose completion lengths differ by a factor of 50.

    python bench/windowed.py [--steps 96] [--seeds 3]

The broker's own rules run under virtual time, as in `asyncrl plan`; no model is needed. Each line compares one order
with greedy, which is ``order = "completion"`` and trains on whatever completes first. Lengths are log-normal, their
99th percentile 50 times the first; ``prompt share`` is the share of the variance that a prompt's completions have in
common, and with 1 whole groups differ by the factor of 50. Fields of a line:

    ours, peer_value   tokens trained per second, in the middle half of the run
    staleness          mean and largest age of a trajectory in versions, and the bound that the schedule promises
    ks                 Kolmogorov-Smirnov distance at a quarter and half of the run, of the lengths trained so far and
                       those of as many groups in the order admitted
    restarted          groups sampled again because they were too old; what had been sampled of them is lost
"""

import argparse
import json
import random
from bisect import bisect_right
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import smoke
from msgspec import Struct

from asyncrl.broker.ledger.state import most_versions
from asyncrl.tools.plan.lengths import Lognormal
from asyncrl.tools.plan.plan_file import decode, inputs
from asyncrl.tools.plan.sections import Plan
from asyncrl.tools.plan.simulate import Simulation
from asyncrl.tools.plan.simulated.cluster import completion_tokens, trajectory_staleness

MEDIAN, SPREAD = 500, 50.0
GROUPS, SIZE = 16, 8
ORDERS: dict[str, dict[str, Any]] = {
    "fifo": {"order": "fifo"},
    "windowed": {"order": "windowed"},
    "windowed, R = 32 P": {"order": "windowed", "order_window": 32 * GROUPS},
    "greedy, sampled again when too old": {"order": "completion", "max_staleness": 2, "on_straggler": "reissue"},
    "greedy": {"order": "completion"},
}
STRAGGLER, ONE_IN = 50, 150
"""One completion in a group of so many is this many times as long as others."""


class Figures(Struct, frozen=True):
    tokens_per_s: float
    trainer_idle: float
    staleness_mean: float
    staleness_max: float
    bound: int | None
    ks: list[float]
    restarted: int


class Stragglers(Struct, frozen=True):
    """Equal lengths, but for one completion of one group in `ONE_IN`."""

    mean: float = MEDIAN

    def group(self, rng: random.Random, size: int) -> list[int]:
        lengths = [MEDIAN] * size
        if rng.random() < 1 / ONE_IN:
            lengths[rng.randrange(size)] = MEDIAN * STRAGGLER
        return lengths


def main() -> None:
    options = parsed()
    for staleness in (1.0, 2.0):
        for share in (0.0, 0.5, 1.0):
            lengths = {"median": MEDIAN, "p99": MEDIAN * SPREAD**0.5, "max_tokens": 40_000, "prompt_share": share}
            compare(f"spread 50, prompt share {share:g}, S={staleness:g}", lengths, staleness, options)
        one = {"median": MEDIAN, "max_tokens": MEDIAN * STRAGGLER}
        compare(f"one group in {ONE_IN} takes {STRAGGLER} times as long, S={staleness:g}", one, staleness, options)


def compare(case: str, lengths: dict[str, Any], staleness: float, options: argparse.Namespace) -> None:
    found = {
        name: mean([measured(plan_of(lengths, staleness, order, seed), options.steps) for seed in range(options.seeds)])
        for name, order in ORDERS.items()
    }
    greedy = found["greedy"]
    for name, figures in found.items():
        line = {
            "bench": "windowed",
            "case": case,
            "order": name,
            "ours": round(figures.tokens_per_s),
            "unit": "tokens/s",
            "peer": "greedy",
            "peer_value": round(greedy.tokens_per_s),
            "ratio": round(figures.tokens_per_s / greedy.tokens_per_s, 3),
            "better": "higher",
            "trainer_idle": round(figures.trainer_idle, 3),
            "staleness": [round(figures.staleness_mean, 2), figures.staleness_max, figures.bound],
            "ks": [round(distance, 3) for distance in figures.ks],
            "restarted": figures.restarted,
        }
        print(json.dumps(line), flush=True)


def plan_of(lengths: dict[str, Any], staleness: float, order: dict[str, Any], seed: int) -> Plan:
    """Six engines of 64 slots and a trainer of two devices, which is not what a run waits for most of the time."""
    return decode(
        {
            "devices": 8,
            "lengths": lengths,
            "rollout": {
                "devices": 6,
                "slots": 64,
                "decode": [[1, 40], [32, 900], [64, 1500]],
                "prefill_tokens_per_s": 8000,
                "prompt_tokens": 100,
                "kv": "keep",
            },
            "trainer": {"speeds": [{"devices": 2, "tokens_per_s": 6000}]},
            "publish": {"seconds": 1.0, "pause_s": 0.3},
            "schedule": {"groups_per_step": GROUPS, "group_size": SIZE, "staleness": staleness, **order},
            "horizon": {"seed": seed},
        }
    )


def measured(plan: Plan, steps: int) -> Figures:
    given = inputs(plan)
    if not isinstance(given.lengths, Lognormal) or not given.lengths.sigma:
        given = type(given)(Stragglers(), given.step_s, given.training)  # type: ignore[arg-type]  # it has a group and a mean
    simulation = Simulation(plan, given, steps)
    distances = []
    for part in (4, 2):
        simulation.advance_to(steps // part)
        distances.append(distance_from_admitted(simulation))
    simulation.advance_to(steps)
    middle = simulation.trainer.done[steps // 4 : 3 * steps // 4]
    seconds = middle[-1].ended_s - middle[0].began_s
    shares = trajectory_staleness(simulation.trainer.done)
    groups = [group for step in simulation.trainer.done for group in {t.unit.group_id for t in step.trajectories}]
    assert sorted(groups) == list(range(steps * GROUPS)), "every group that was admitted is trained on"
    return Figures(
        tokens_per_s=completion_tokens(middle) / seconds,
        trainer_idle=1 - sum(step.ended_s - step.began_s for step in middle) / seconds,
        staleness_mean=sum(age * share for age, share in shares.items()),
        staleness_max=max(shares),
        bound=most_versions(plan.schedule),
        ks=distances,
        restarted=simulation.cluster.num_restarted,
    )


def distance_from_admitted(simulation: Simulation) -> float:
    done, lengths_of = simulation.trainer.done, simulation.cluster.lengths_of
    trained = [trajectory.summary.num_tokens for step in done for trajectory in step.trajectories]
    admitted = [length for group in range(len(done) * GROUPS) for length in lengths_of(group, range(SIZE))]
    return kolmogorov_smirnov(trained, admitted)


def kolmogorov_smirnov(ours: Sequence[int], theirs: Sequence[int]) -> float:
    """Largest difference of two empirical distribution functions."""
    a, b = sorted(ours), sorted(theirs)
    return max(abs(bisect_right(a, x) / len(a) - bisect_right(b, x) / len(b)) for x in {*a, *b})


def mean(of_seeds: Sequence[Figures]) -> Figures:
    """Means over seeds, and the largest staleness and number of restarts."""
    return Figures(
        tokens_per_s=fmean(figures.tokens_per_s for figures in of_seeds),
        trainer_idle=fmean(figures.trainer_idle for figures in of_seeds),
        staleness_mean=fmean(figures.staleness_mean for figures in of_seeds),
        staleness_max=max(figures.staleness_max for figures in of_seeds),
        bound=of_seeds[0].bound,
        ks=[fmean(distances) for distances in zip(*(figures.ks for figures in of_seeds), strict=True)],
        restarted=max(figures.restarted for figures in of_seeds),
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--seeds", type=int, default=3)
    return smoke.parsed(parser)


if __name__ == "__main__":
    main()
