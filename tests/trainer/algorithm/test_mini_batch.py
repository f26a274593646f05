"""Three trajectories of one update, and what their losses depend on."""

from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.errors import BrokenInvariant
from asyncrl.trainer.algorithm.estimates import Estimates
from asyncrl.trainer.algorithm.mini_batch import LossInputs, MiniBatch
from asyncrl.trainer.packing.step import local_step
from asyncrl.trainer.packing.trajectory import TrainingTrajectory

CPU = torch.device("cpu")
ADVANTAGES = ([1.0, 2.0], [0.0, 0.0, 0.0], [-1.0])
KEEP = ([True, False], [True, True, False], [False])


def per_token(*rows: list[Any]) -> list[np.ndarray]:
    return [np.array(row) for row in rows]


def trajectory(place: int, length: int) -> TrainingTrajectory:
    """Its log-probs identify its tokens: token t of place p has -(p + t/10)."""
    ids = np.arange(length, dtype=np.int32)
    return TrainingTrajectory(place, ids[:1], ids, (-(place + ids / 10)).astype(np.float32), 0.0)


def mini_batch(keep: list[np.ndarray] | None = None, **known: Any) -> MiniBatch:
    """A token weighs as many hundredths as its trajectory has tokens that count."""
    nothing = dict.fromkeys(("old_logprobs", "ref_logprobs", "old_values", "selected"))
    estimates = known.pop("estimates", None) or Estimates(per_token(*ADVANTAGES), keep=keep)
    weights = {place: estimates.num_kept(place) / 100 for place in range(3)}
    settings: dict[str, Any] = {"places": [0, 1, 2], "token_weights": weights} | nothing | known
    return MiniBatch(
        step=local_step(trajectory(place, n) for place, n in enumerate((2, 3, 1))), estimates=estimates, **settings
    )


def listed(tensor: torch.Tensor | None) -> list[float]:
    assert tensor is not None
    return [round(value, 6) for value in tensor.tolist()]


def loss_inputs(of: MiniBatch, places: list[int], is_compared: np.ndarray | None = None) -> LossInputs:
    return of.loss_inputs(places, is_compared, device=CPU)


def test_trajectories_lie_end_to_end_in_the_order_of_the_micro_batch() -> None:
    found = loss_inputs(mini_batch(), [2, 0])

    assert found.sequences.lengths.tolist() == [1, 2]
    assert listed(found.behavior_logprobs) == [-2.0, 0.0, -0.1]
    assert listed(found.advantages) == [-1.0, 1.0, 2.0]
    assert listed(found.weights) == [0.01, 0.02, 0.02]
    assert {found.behavior_logprobs.dtype, found.advantages.dtype, found.weights.dtype} == {torch.float32}


def test_a_rejected_token_has_no_weight_and_does_not_count_in_the_length() -> None:
    of = mini_batch(keep=per_token(*KEEP))
    found = loss_inputs(of, [0, 1, 2])

    assert listed(found.weights) == [0.01, 0.0, 0.02, 0.02, 0.0, 0.0]
    assert listed(found.keep) == [True, False, True, True, False, False]
    assert of.num_kept == 3


def test_ratios_are_against_the_sampler_unless_another_policy_is_named() -> None:
    old = per_token([-5.0, -6.0], [-7.0, -8.0, -9.0], [-4.0])
    plain, decoupled = loss_inputs(mini_batch(), [2, 0]), loss_inputs(mini_batch(old_logprobs=old), [2, 0])

    assert listed(plain.old_logprobs) == listed(plain.behavior_logprobs)
    assert listed(decoupled.old_logprobs) == [-4.0, -5.0, -6.0]
    assert listed(decoupled.behavior_logprobs) == [-2.0, 0.0, -0.1]


def test_unused_inputs_are_none_and_all_others_are_cut_alike() -> None:
    optional = ("importance", "keep", "ref_logprobs", "is_selected", "is_compared")
    assert [getattr(loss_inputs(mini_batch(), [0]), name) for name in optional] == [None] * 5

    found = loss_inputs(
        mini_batch(
            estimates=Estimates(per_token(*ADVANTAGES), importance=per_token([0.5, 0.6], [0.7, 0.8, 0.9], [1.5])),
            ref_logprobs=per_token([-0.3, -0.4], [-0.5, -0.6, -0.7], [-0.8]),
            selected={0: np.array([False, True]), 2: np.array([True])},
        ),
        [2, 0],
        np.array([False, True, True]),
    )
    assert listed(found.importance) == [1.5, 0.5, 0.6]
    assert listed(found.ref_logprobs) == [-0.8, -0.3, -0.4]
    assert listed(found.is_selected) == [True, False, True]
    assert listed(found.is_compared) == [False, True, True]


def test_a_rank_that_has_run_out_of_trajectories_gets_empty_tensors_of_the_right_kind() -> None:
    of = mini_batch(keep=per_token(*KEEP), selected={}, old_logprobs=per_token([], [], []))
    found = loss_inputs(of, [])

    assert len(found.sequences) == 0
    shapes = {tensor.shape for tensor in (found.behavior_logprobs, found.old_logprobs, found.advantages, found.weights)}
    assert shapes == {(0,)}
    assert found.keep is not None
    assert found.is_selected is not None
    assert (found.keep.dtype, found.is_selected.dtype, found.weights.dtype) == (torch.bool, torch.bool, torch.float32)


def test_trajectories_with_an_advantage_and_kept_tokens_are_told() -> None:
    assert mini_batch().with_advantage == [0, 2]
    assert mini_batch(places=[2, 1]).with_advantage == [2]
    assert mini_batch(places=[2, 1]).num_kept == 4
    assert mini_batch(keep=per_token(*KEEP), places=[2]).num_kept == 0, "all of it is rejected"


def test_value_inputs_are_old_values_targets_and_mask() -> None:
    targets = per_token([1.0, 1.0], [0.0, 0.5, 1.0], [0.25])
    estimates = Estimates(per_token(*ADVANTAGES), value_targets=targets, keep=per_token(*KEEP))
    old_values = per_token([0.1, 0.2], [0.3, 0.4, 0.5], [0.6])
    old, wanted, keep = mini_batch(estimates=estimates, old_values=old_values).value_inputs([2, 0], device=CPU)

    assert listed(old) == [0.6, 0.1, 0.2]
    assert listed(wanted) == [0.25, 1.0, 1.0]
    assert keep.tolist() == [False, True, False]


@pytest.mark.parametrize("known", ["old_values", "value_targets"])
def test_value_inputs_need_values_from_before_the_step(known):
    values = per_token([0.1, 0.2], [0.3, 0.4, 0.5], [0.6])
    estimates = Estimates(per_token(*ADVANTAGES), value_targets=values if known == "value_targets" else None)
    of = mini_batch(estimates=estimates, old_values=values if known == "old_values" else None)
    with pytest.raises(BrokenInvariant, match="no values were computed"):
        of.value_inputs([0], device=CPU)
