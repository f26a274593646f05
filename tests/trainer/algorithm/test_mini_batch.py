"""Three trajectories of one update, and what their losses depend on."""

from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.errors import BrokenInvariant
from asyncrl.trainer.algorithm.estimates import Estimates
from asyncrl.trainer.algorithm.mini_batch import LossInputs, MiniBatch
from asyncrl.trainer.packing.batch import TrainingTrajectory
from asyncrl.trainer.packing.step import whole

CPU = torch.device("cpu")
ADVANTAGES = ([1.0, 2.0], [0.0, 0.0, 0.0], [-1.0])
KEEP = ([True, False], [True, True, False], [False])


def column(*rows: list[Any]) -> list[np.ndarray]:
    return [np.array(row) for row in rows]


def sample(place: int, length: int) -> TrainingTrajectory:
    """Its sampler's log-probs say where it lies: token t of place p has -(p + t/10)."""
    ids = np.arange(length, dtype=np.int32)
    return TrainingTrajectory(place, ids[:1], ids, (-(place + ids / 10)).astype(np.float32), 0.0)


def mini_batch(keep: list[np.ndarray] | None = None, **known: Any) -> MiniBatch:
    """A token weighs as many hundredths as its trajectory has tokens that count."""
    nothing = dict.fromkeys(("old_logprobs", "ref_logprobs", "old_values", "picked"))
    estimates = known.pop("estimates", None) or Estimates(column(*ADVANTAGES), keep=keep)
    settings = {"places": [0, 1, 2], "weigh": lambda length: length / 100} | nothing | known
    return MiniBatch(step=whole(sample(place, n) for place, n in enumerate((2, 3, 1))), estimates=estimates, **settings)


def listed(tensor: torch.Tensor) -> list[float]:
    return [round(value, 6) for value in tensor.tolist()]


def constants(of: MiniBatch, places: list[int], is_compared: np.ndarray | None = None) -> LossInputs:
    return of.constants(places, is_compared, device=CPU)


def test_trajectories_lie_end_to_end_in_the_order_of_the_micro_batch() -> None:
    found = constants(mini_batch(), [2, 0])

    assert found.sequences.lengths.tolist() == [1, 2]
    assert listed(found.behavior_logprobs) == [-2.0, 0.0, -0.1]
    assert listed(found.advantages) == [-1.0, 1.0, 2.0]
    assert listed(found.weights) == [0.01, 0.02, 0.02]
    assert {found.behavior_logprobs.dtype, found.advantages.dtype, found.weights.dtype} == {torch.float32}


def test_a_rejected_token_has_no_weight_and_makes_those_beside_it_no_longer() -> None:
    of = mini_batch(keep=column(*KEEP))
    found = constants(of, [0, 1, 2])

    assert listed(found.weights) == [0.01, 0.0, 0.02, 0.02, 0.0, 0.0]
    assert found.keep.tolist() == [True, False, True, True, False, False]
    assert of.num_tokens == 3


def test_ratios_are_against_the_sampler_unless_another_policy_is_named() -> None:
    old = column([-5.0, -6.0], [-7.0, -8.0, -9.0], [-4.0])
    plain, decoupled = constants(mini_batch(), [2, 0]), constants(mini_batch(old_logprobs=old), [2, 0])

    assert listed(plain.old_logprobs) == listed(plain.behavior_logprobs)
    assert listed(decoupled.old_logprobs) == [-4.0, -5.0, -6.0]
    assert listed(decoupled.behavior_logprobs) == [-2.0, 0.0, -0.1]


def test_what_the_algorithm_does_not_know_of_is_none_and_the_rest_is_cut_alike() -> None:
    optional = ("importance", "keep", "ref_logprobs", "is_selected", "is_compared")
    assert [getattr(constants(mini_batch(), [0]), name) for name in optional] == [None] * 5

    found = constants(
        mini_batch(
            estimates=Estimates(column(*ADVANTAGES), importance=column([0.5, 0.6], [0.7, 0.8, 0.9], [1.5])),
            ref_logprobs=column([-0.3, -0.4], [-0.5, -0.6, -0.7], [-0.8]),
            picked={0: np.array([False, True]), 2: np.array([True])},
        ),
        [2, 0],
        np.array([False, True, True]),
    )
    assert listed(found.importance) == [1.5, 0.5, 0.6]
    assert listed(found.ref_logprobs) == [-0.8, -0.3, -0.4]
    assert found.is_selected.tolist() == [True, False, True]
    assert found.is_compared.tolist() == [False, True, True]


def test_a_rank_that_has_run_out_of_trajectories_gets_empty_tensors_of_the_right_kind() -> None:
    of = mini_batch(keep=column(*KEEP), picked={}, old_logprobs=column([], [], []))
    found = constants(of, [])

    assert len(found.sequences) == 0
    shapes = {tensor.shape for tensor in (found.behavior_logprobs, found.old_logprobs, found.advantages, found.weights)}
    assert shapes == {(0,)}
    assert (found.keep.dtype, found.is_selected.dtype, found.weights.dtype) == (torch.bool, torch.bool, torch.float32)


def test_those_that_teach_have_any_advantage_and_what_is_divided_by_is_never_zero() -> None:
    assert mini_batch().taught == [0, 2]
    assert mini_batch(places=[2, 1]).taught == [2]
    assert mini_batch(places=[2, 1]).num_tokens == 4
    assert mini_batch(keep=column(*KEEP), places=[2]).num_tokens == 1, "all of it is rejected"


def test_a_critic_is_told_what_it_said_and_should_have_said_and_which_tokens_count() -> None:
    targets = column([1.0, 1.0], [0.0, 0.5, 1.0], [0.25])
    estimates = Estimates(column(*ADVANTAGES), value_targets=targets, keep=column(*KEEP))
    old_values = column([0.1, 0.2], [0.3, 0.4, 0.5], [0.6])
    old, wanted, keep = mini_batch(estimates=estimates, old_values=old_values).values([2, 0], device=CPU)

    assert listed(old) == [0.6, 0.1, 0.2]
    assert listed(wanted) == [0.25, 1.0, 1.0]
    assert keep.tolist() == [False, True, False]


@pytest.mark.parametrize("known", ["old_values", "value_targets"])
def test_a_critic_nobody_asked_before_the_step_is_not_taught(known) -> None:
    values = column([0.1, 0.2], [0.3, 0.4, 0.5], [0.6])
    estimates = Estimates(column(*ADVANTAGES), value_targets=values if known == "value_targets" else None)
    of = mini_batch(estimates=estimates, old_values=values if known == "old_values" else None)
    with pytest.raises(BrokenInvariant, match="nobody asked it"):
        of.values([0], device=CPU)
