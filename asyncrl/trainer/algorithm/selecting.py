"""Token selection of losses that treat some tokens of a mini-batch apart; every rank selects the same tokens."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.algo.losses.selection import StepTokens, token_keys
from asyncrl.trainer.algorithm.estimates import BEHAVIOR, Estimates
from asyncrl.trainer.algorithm.recipe import LOGPROBS, Recipe
from asyncrl.trainer.packing.step import Step
from asyncrl.trainer.ranks.per_token import PerToken


def select_tokens(
    recipe: Recipe,
    step: Step,
    places: Sequence[int],
    per_token: Mapping[str, PerToken],
    estimates: Estimates,
    *,
    seed: int,
) -> dict[int, NDArray[np.bool_]] | None:
    """
    Select tokens of the trajectories at ``places``: [T] by place, or None if the loss has no selection.

    Log-probs are those of the policy before the step: every rank has them, and for the first mini-batch it is the
    policy in training.
    """
    if recipe.select is None:
        return None
    infos = [step.infos[place] for place in places]
    lengths = [info.outcome.length for info in infos]
    logprobs, old = per_token[LOGPROBS], per_token[LOGPROBS if recipe.is_decoupled else BEHAVIOR]
    selected = recipe.select(
        StepTokens(
            advantages=_joined([estimates.advantages[place] for place in places]),
            logprobs=_joined([logprobs[place] for place in places]),
            old_logprobs=_joined([old[place] for place in places]),
            keys=token_keys([info.outcome.group_id for info in infos], [info.index for info in infos], lengths),
            seed=seed,
        )
    )
    return dict(zip(places, np.split(selected, np.cumsum(lengths)[:-1]), strict=True))


def _joined(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([*parts, np.empty(0)])
