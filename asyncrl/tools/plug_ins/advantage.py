"""
`asyncrl advantage try`: an advantage estimator on a small synthetic step, beside the built-in `grpo`.

    group      rewards
    one right  0 0 0 1      the usual one; the right trajectory should get more than the others
    graded     .1 .4 .7 1
    all equal  1 1 1 1      nothing to learn, by a baseline of the group
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from asyncrl.algo.advantages import resolve_advantage
from asyncrl.algo.outcomes import Floats, Outcome
from asyncrl.config.run_file import overridden
from asyncrl.trainer.algorithm.recipe import Recipe

GROUPS: Mapping[str, Sequence[float]] = {
    "one right": (0.0, 0.0, 0.0, 1.0),
    "graded": (0.1, 0.4, 0.7, 1.0),
    "all equal": (1.0, 1.0, 1.0, 1.0),
}
LENGTHS = (3, 17, 9, 31)
"""Tokens of the trajectories of each group."""


class AdvantageResult(Struct, frozen=True):
    """One trajectory. Advantages are means over its tokens."""

    group: str
    reward: float
    length: int
    advantage: float
    grpo: float


def step() -> list[Outcome]:
    """Trajectories with every field that an estimator may need, the same each time."""
    random = np.random.default_rng(0)

    def numbers(length: int, low: float, high: float) -> Floats:
        return random.uniform(low, high, length)

    return [
        Outcome(
            group_id=group_id,
            length=length,
            reward=reward,
            metrics={"correct": float(reward == 1.0)},
            baseline=0.5,
            logprobs=numbers(length, -3.0, 0.0),
            sum_pi_squared=numbers(length, 0.1, 1.0),
            values=numbers(length, 0.0, 1.0),
            importance=np.ones(length),
        )
        for group_id, rewards in enumerate(GROUPS.values())
        for reward, length in zip(rewards, LENGTHS, strict=True)
    ]


def examine(advantage: str, overrides: Sequence[str] = ()) -> list[AdvantageResult]:
    """
    Compute the advantages of the step by the estimator of a name; ``overrides`` are those of ``--set``.

    Raises:
        ConfigError: An override does not fit, or the function cannot be loaded, raises, or
            returns no finite number for each token.
        AsyncrlError: A built-in estimator does not apply to this step.
    """
    raw = {"model": {"path": "-"}, "data": {"train": "-"}, "algorithm": {"advantage": advantage}}
    outcomes, config = step(), overridden(raw, overrides)
    ours, usual = Recipe(config).advantages(outcomes), resolve_advantage("grpo").function(outcomes)
    names = list(GROUPS)
    return [
        AdvantageResult(names[outcome.group_id], outcome.reward, outcome.length, float(own.mean()), float(other.mean()))
        for outcome, own, other in zip(outcomes, ours, usual, strict=True)
    ]


def problems(results: Sequence[AdvantageResult]) -> list[str]:
    """Reasons not to train with it, in sentences."""
    if not any(one.advantage for one in results):
        return ["every advantage is 0: nothing is trained"]
    found = []
    for name in GROUPS:
        group = [one for one in results if one.group == name]
        best, worst = max(group, key=lambda one: one.reward), min(group, key=lambda one: one.reward)
        if best.reward > worst.reward and best.advantage <= worst.advantage:
            found.append(
                f"in the group {name!r} the reward {best.reward:g} has the advantage {best.advantage:.3g}, no more "
                f"than {worst.advantage:.3g} of the reward {worst.reward:g}: better trajectories should become likelier"
            )
    return found


def table(results: Sequence[AdvantageResult]) -> list[list[str]]:
    rows = [
        [one.group, f"{one.reward:g}", str(one.length), f"{one.advantage:+.3f}", f"{one.grpo:+.3f}"] for one in results
    ]
    return [["group", "reward", "tokens", "advantage", "of grpo"], *rows]
