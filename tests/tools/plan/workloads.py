"""
Workloads for ``schedule.staleness = "auto"``, and how its choices compare with every other one.

A choice is made with one seed, and judged with another one over more versions. Ratios are of throughputs.
"""

import math
import random
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.sections.schedule import AUTO_START
from asyncrl.tools.plan.fit import ObservedSpeeds, StretchSampling, choice_of, fit
from asyncrl.tools.plan.lengths import RecordedLengths
from asyncrl.tools.plan.plan_file import Inputs, decode, inputs
from asyncrl.tools.plan.sections import Plan
from asyncrl.tools.plan.simulate import AUTO_STALENESS, Simulation, search, simulate
from asyncrl.tools.plan.simulated.cluster import SimulationResult, completion_tokens
from asyncrl.tools.plan.simulated.rollout import colocated

SEEN_GROUPS = 256
"""Groups whose lengths a run has recorded when it chooses."""
JUDGED = 8
"""Fixed settings that are judged: the fastest of all with the seed of the choice."""
COMPLETIONS, HEAVY, HEAVY_COMPLETIONS = 4096, 1.0, 16_384
"""
Completions of a judgement at least; more where sigma is ``HEAVY`` or above, and few long ones make up much of a step's
time: two seeds then differ by 3 % after 4096.
"""
ROUNDS = 3
"""Choices of a run at most, each by what was seen since the one before."""

MARIN = {
    "devices": 16,
    "lengths": {"mean": 179, "sigma": 0.6, "max_tokens": 1024},  # 1,147,575 tokens in 25 updates of 64 x 4
    "rollout": {
        "devices": 8,
        "slots": 64,
        "decode": [[1, 600], [32, 12000]],
        "prefill_tokens_per_s": 1e6,
        "kv": "keep",
    },
    "trainer": {"speeds": [{"devices": d, "groups": 64, "seconds": 143 / 25} for d in (8, 16)]},
    "publish": {"seconds": (184.3 - 125.8) / 25, "pause_s": 125.8 / 25, "blocks_trainer": True},
    "synchronous": {"other_s": 48.79 / 20},  # its weight sync, of another pair of runs
    "schedule": {"groups_per_step": 64, "group_size": 4, "staleness": "auto"},
    "search": {"multiple_of": 8},
}
"""
Marin's Qwen screen on 16 H100 (marin-community/marin, issue 8936, 2026-09-06): synchronous 250.5 s for 25 updates,
asynchronous 339.5 s, 184.3 s of it for weights, every second update 256.4 s. Both had 8 devices for each side, so
training is no faster on 16. The speed of decoding is assumed.
"""

NEMO = {
    "devices": 8,
    "lengths": {"mean": 3154, "sigma": 0.3, "max_tokens": 4096},
    "rollout": {"devices": 4, "slots": 64, "decode": [[1, 150], [64, 3250]], "prefill_tokens_per_s": 1e6},
    "trainer": {"speeds": [{"devices": 8, "groups": 4, "seconds": 122}]},
    "publish": {"seconds": 5, "pause_s": 2},
    "synchronous": {"other_s": 55},
    "schedule": {"groups_per_step": 4, "group_size": 32, "staleness": "auto"},
    "search": {"multiple_of": 4, "publishes": 2},
}
"""
NeMo RL 0.4, Qwen3-30B-A3B on 32 H100 (docs/about/performance-summary.md): on policy 225 s a step, one step off 244 s.
The division of the 225 s is assumed, such that half of the devices train in the published 244 s. Here each device is
four, and a step and an engine's batch are a sixteenth and a quarter.
"""
PUBLISHED = {"marin": MARIN, "nemo": NEMO}


class Score(Struct, frozen=True):
    """Throughput of the choice, over that of other choices."""

    chosen: str
    of_better: float
    """Of the better of synchronous and asynchronous (staleness 1)."""
    of_best: float
    """Of the best fixed setting in hindsight."""


def workload(seed: int) -> Plan:
    """A random cluster: its balance of sampling and training, its tail of lengths, and what a publish costs."""
    rng = random.Random(f"workload {seed}")
    per_replica = rng.choice([1, 1, 2])
    devices = rng.choice([4, 8])
    slots, groups, size = rng.choice([8, 16, 32]), rng.choice([4, 8]), rng.choice([4, 8])
    alone = rng.uniform(20, 150)
    full = alone * slots * rng.uniform(0.25, 0.95)
    mean = math.exp(rng.uniform(math.log(100), math.log(3000)))
    step_tokens = groups * size * mean
    sampled_per_s = full * devices / 2 / per_replica
    balance = math.exp(rng.uniform(-math.log(6), math.log(6)))
    step_s = step_tokens / sampled_per_s
    publish_s = step_s * rng.choice([0.0, 0.02, 0.1, 0.3, 0.8])
    return decode(
        {
            "devices": devices,
            "lengths": {
                "mean": mean,
                "sigma": rng.choice([0.0, 0.3, 0.7, 1.1]),
                "prompt_share": rng.choice([0.0, 0.3]),
                "max_tokens": int(8 * mean),
            },
            "rollout": {
                "devices": devices // 2,
                "devices_per_replica": per_replica,
                "slots": slots,
                "decode": [[1, alone], [slots, full]],
                "prefill_tokens_per_s": 200 * alone,
                "prompt_tokens": rng.choice([0, int(mean / 4)]),
                "kv": rng.choice(["keep", "recompute"]),
            },
            "trainer": {"speeds": [{"devices": devices // 2, "tokens_per_s": sampled_per_s * balance}]},
            "publish": {
                "seconds": publish_s,
                "pause_s": publish_s * rng.choice([0.0, 0.2, 0.7]),
                "blocks_trainer": rng.random() < 0.3,
            },
            "reward": {"seconds": step_s * rng.choice([0.0, 0.0, 0.1])},
            "synchronous": {"other_s": step_s * rng.choice([0.0, 0.1, 0.3])},
            "schedule": {
                "groups_per_step": groups,
                "group_size": size,
                "staleness": "auto",
                "order": rng.choice(["fifo", "fifo", "completion"]),
            },
        }
    )


def published(name: str) -> Plan:
    return decode(PUBLISHED[name])


def planned(plan: Plan, completions: int = COMPLETIONS) -> Score:
    """Settings that `asyncrl plan` finds with known speeds: staleness, steps per publish and split."""
    found = search(plan, inputs(plan))
    best, known = found.best, inputs(_judging(plan, completions))

    @cache
    def judged(split: int, staleness: float, cadence: int) -> float:
        schedule = replace(plan.schedule, staleness=staleness, steps_per_publish=cadence)
        other = replace(plan, schedule=schedule, rollout=replace(plan.rollout, devices=split))
        return simulate(_judging(other, completions), known).group_s

    def group_s(result: SimulationResult) -> float:
        return judged(result.rollout_devices, result.staleness, result.steps_per_publish)

    fast = sorted(found.tried, key=lambda result: result.group_s)[:JUDGED]
    plain = [result for result in found.tried if result.staleness == 1 and result.steps_per_publish == 1]
    in_turn = colocated(_judging(plan, completions), known.lengths, known.step_s, known.training).group_s
    separate = group_s(min(plain, key=lambda result: result.group_s))
    chosen = in_turn if best.rollout_devices == plan.devices else group_s(best)
    name = f"{best.rollout_devices} of {plan.devices}, S {best.staleness:g}, T {best.steps_per_publish}"
    return Score(name, min(in_turn, separate) / chosen, min(in_turn, chosen, *map(group_s, fast)) / chosen)


def followed(plan: Plan, completions: int = COMPLETIONS) -> Score:
    """Staleness that a run comes to by what is seen of it, beginning with 1, at the plan's split."""
    staleness, lengths = AUTO_START, recorded(plan)
    for _ in range(ROUNDS):
        now = with_staleness(plan, staleness)
        before, staleness = staleness, choice_of(fit(seen(now, inputs(now)), now.schedule, lengths)).staleness
        if staleness == before:
            break
    judged = _judging(plan, completions)
    known = inputs(judged)
    step_s = {s: simulate(with_staleness(judged, s), known).step_s for s in AUTO_STALENESS}
    chosen = step_s[staleness]
    return Score(f"S {staleness:g}", min(step_s[0.0], step_s[1.0]) / chosen, min(step_s.values()) / chosen)


def seen(plan: Plan, known: Inputs) -> ObservedSpeeds:
    """What `observed` reads from the files of a run, of a simulated one."""
    simulation = Simulation(plan, known)
    simulation.advance_to(simulation.first)
    before, samplings, began_s = _sampled(simulation), [], simulation.cluster.events.now_s
    for step in range(simulation.first, simulation.last):
        simulation.advance_to(step + 1)
        after = _sampled(simulation)
        pairs = zip(before, after, strict=True)
        samplings += [StretchSampling(*(new - old for old, new in zip(*pair, strict=True))) for pair in pairs]
        before = after
    steps = simulation.trainer.done[simulation.first : simulation.last]
    trained = completion_tokens(steps) + sum(len(step.trajectories) for step in steps) * plan.rollout.prompt_tokens
    return ObservedSpeeds(
        step_s=(simulation.cluster.events.now_s - began_s) / len(steps),
        rollouts=plan.replicas,
        slots=plan.rollout.slots,
        samplings=[sampling for sampling in samplings if sampling.decode_steps > 0],
        trained_per_s=trained / sum(step.ended_s - step.began_s for step in steps),
        publish_s=plan.publish.seconds,
        pause_s=plan.publish.pause_s,
    )


def _sampled(simulation: Simulation) -> list[tuple[float, float, float]]:
    """Seconds, decode steps and tokens of each rollout so far."""
    simulation.totals()
    engines = [rollout.engine for rollout in simulation.rollouts]
    return [(engine.busy_s, engine.decode_steps, engine.num_tokens) for engine in engines]


def recorded(plan: Plan) -> RecordedLengths:
    """Lengths of the groups that a run has trained on so far."""
    lengths = inputs(plan).lengths
    rngs = (random.Random(f"seen {group}") for group in range(SEEN_GROUPS))
    return RecordedLengths([lengths.group(rng, plan.schedule.group_size) for rng in rngs])


def with_staleness(plan: Plan, staleness: float) -> Plan:
    return replace(plan, schedule=replace(plan.schedule, staleness=staleness))


def _judging(plan: Plan, completions: int) -> Plan:
    if plan.lengths.sigma >= HEAVY:
        completions = max(completions, HEAVY_COMPLETIONS)
    return replace(plan, horizon=replace(plan.horizon, seed=1, publishes=max(16, plan.versions_with(completions))))


def as_line(seed: int | str, plan: Plan, completions: int = COMPLETIONS) -> dict[str, Any]:
    """Both scores of a workload, judged over so many completions at least, as `bench/auto.py` records them."""
    scores = {"planned": planned(plan, completions), "followed": followed(plan, completions)}
    return {"workload": seed} | {
        f"{how}_{key}": getattr(score, key) for how, score in scores.items() for key in Score.__struct_fields__
    }
