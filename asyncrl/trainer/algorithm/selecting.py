"""Which tokens of a mini-batch the loss treats apart: asked of all its tokens, on every rank alike."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.algo.losses.selection import StepTokens, token_keys
from asyncrl.trainer.algorithm.estimates import BEHAVIOR, Estimates
from asyncrl.trainer.algorithm.recipe import LOGPROBS, Recipe
from asyncrl.trainer.packing.step import Step
from asyncrl.trainer.ranks.per_token import Column


def selected(
    recipe: Recipe,
    step: Step,
    places: Sequence[int],
    columns: Mapping[str, Column],
    estimates: Estimates,
    *,
    seed: int,
) -> dict[int, NDArray[np.bool_]] | None:
    """
    [T] of each trajectory at ``places``; None if the loss has no selection.

    Judged by the policy that the step begins with: it is known on every rank, and for the first mini-batch it is the
    policy in training.
    """
    if recipe.select is None:
        return None
    described = [step.described[place] for place in places]
    lengths = [one.outcome.length for one in described]
    logprobs, old = columns[LOGPROBS], columns[LOGPROBS if recipe.is_decoupled else BEHAVIOR]
    picked = recipe.select(
        StepTokens(
            advantages=_joined([estimates.advantages[place] for place in places]),
            logprobs=_joined([logprobs[place] for place in places]),
            old_logprobs=_joined([old[place] for place in places]),
            keys=token_keys([one.outcome.group_id for one in described], [one.index for one in described], lengths),
            seed=seed,
        )
    )
    return dict(zip(places, np.split(picked, np.cumsum(lengths)[:-1]), strict=True))


def _joined(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([*parts, np.empty(0)])
