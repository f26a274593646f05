"""
Tokens of a step that are trained; the others become context (`asyncrl.trainer.packing.untrained`).

    turns with ``is_trained`` false            with an [environment]
    tokens more than L versions old            with ``schedule.on_straggler = "mask"``, L = ``max_staleness``

Tokens are in the payloads, and every rank needs the lengths of all trajectories for its means, so ranks tell each other
how many are left. Old tokens come first in a trajectory: without them its end is learned more than its beginning, so
they are counted by quarters.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from asyncrl.config.config import Config
from asyncrl.trainer.packing.step import Step
from asyncrl.trainer.packing.trajectory import TrainingTrajectory
from asyncrl.trainer.packing.untrained import as_context, in_untrained_turns, older_than
from asyncrl.trainer.ranks.per_token import all_gather_per_token
from asyncrl.trainer.ranks.ranks import Ranks

QUARTERS = 4
Counts = NDArray[np.float32]
"""Tokens left, tokens of untrained turns, and old tokens in each quarter of the trajectory."""


class TrainedPart:
    """Finds the tokens to train."""

    def __init__(self, config: Config) -> None:
        schedule = config.schedule
        self._max_staleness = schedule.max_staleness if schedule.on_straggler == "mask" else None
        self._steps_per_publish = schedule.steps_per_publish
        self._has_turns = config.environment.is_set
        self.is_whole = self._max_staleness is None and not self._has_turns
        """True if every token of the run is trained."""

    def of_trajectory(self, trajectory: TrainingTrajectory, step: int) -> tuple[TrainingTrajectory, Counts]:
        """
        The trajectory with its untrained tokens as context, and what is counted.

        Args:
            step: Number of the step that trains it.
        """
        untrained = in_untrained_turns(trajectory)
        num_in_turns = untrained.sum()
        quarters = np.zeros(QUARTERS, np.intp)
        if self._max_staleness is not None:
            is_old = older_than(trajectory, step // self._steps_per_publish - self._max_staleness)
            quarter = QUARTERS * np.flatnonzero(is_old) // max(len(is_old), 1)
            quarters = np.bincount(quarter, minlength=QUARTERS)
            untrained = untrained | is_old
        part = as_context(trajectory, untrained)
        return part, np.array([len(part.completion_ids), num_in_turns, *quarters], np.float32)

    def of_step(self, step: Step, number: int, ranks: Ranks) -> tuple[Step, dict[str, float]]:
        """
        The step with untrained tokens as context, and metrics of them. Collective; every trajectory must have an owner.

        ``number`` is that of the step. A step that is whole stays as it is.
        """
        if self.is_whole:
            return step, {}
        own = {place: self.of_trajectory(one, number) for place, one in step.trajectories.items()}
        shared = all_gather_per_token(
            {"counts": {place: counts for place, (_, counts) in own.items()}},
            lengths=[2 + QUARTERS] * len(step.infos),
            owners=step.owners,
            ranks=ranks,
        )["counts"]
        infos = [info.with_trained(int(counts[0])) for info, counts in zip(step.infos, shared, strict=True)]
        part = replace(step, infos=infos, trajectories={place: one for place, (one, _) in own.items()})
        return part, self._metrics(np.sum(shared, 0))

    def _metrics(self, counts: NDArray[np.float64]) -> dict[str, float]:
        _, in_turns, *quarters = counts.tolist()
        metrics = {"untrained/turn_tokens": in_turns} if self._has_turns else {}
        if self._max_staleness is not None:
            metrics["untrained/old_tokens"] = sum(quarters)
            metrics |= {f"untrained/old_quarter_{place + 1}": tokens for place, tokens in enumerate(quarters)}
        return metrics
