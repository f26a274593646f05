"""Three trajectories of one update, and what their losses depend on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from asyncrl.algo.aggregate import Ragged
from asyncrl.algo.logprobs import Scores
from asyncrl.config.catalogue import LOSSES
from asyncrl.config.config import Config
from asyncrl.errors import BrokenInvariant
from asyncrl.messages.trajectory import Span
from asyncrl.trainer.algorithm.estimates import Estimates
from asyncrl.trainer.algorithm.mini_batch import (
    LossInputs,
    MicroBatchLoss,
    MiniBatch,
    TrainedPart,
    objective,
    trains_without_advantage,
)
from asyncrl.trainer.algorithm.recipe import Recipe
from asyncrl.trainer.packing.step import TrainingStep, TrainingTrajectory, TrajectorySize, local_step
from asyncrl.trainer.ranks.ranks import SingleRank
from tests.trainer.episode_trajectories import episode

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


# ── test objective ────────────────────────────────────────────────────────────────────────────
# A micro-batch's share of the loss, worked by hand on three tokens of two trajectories.

WEIGHTS = torch.tensor([0.5, 0.25, 0.25])


def objective_loss_inputs(**changed: object) -> LossInputs:
    plain: dict[str, Any] = {
        "sequences": Ragged([2, 1]),
        "behavior_logprobs": torch.tensor([-1.0, -1.0, -1.0]),
        "old_logprobs": torch.tensor([-1.0, -1.0, -1.0]),
        "advantages": torch.tensor([1.0, 1.0, -1.0]),
        "weights": WEIGHTS,
    }
    return LossInputs(**{**plain, **changed})


def loss_of(
    config: Callable[..., Config], algorithm: dict[str, Any], scores: Scores, **changed: object
) -> MicroBatchLoss:
    settings = config(algorithm=algorithm)
    return objective(Recipe(settings), settings.algorithm, scores, objective_loss_inputs(**changed))


LOGPROBS = torch.tensor([-1.1, -0.9, -1.0])


def test_regularisers_are_weighed_like_the_policys_loss(config):
    algorithm = {"loss": "reinforce", "kl_coef": 0.1, "kl": "k1", "entropy_coef": 0.2}
    scores = Scores(LOGPROBS, entropy=torch.tensor([2.0, 1.0, 1.0]))
    parts = loss_of(config, algorithm, scores, ref_logprobs=torch.tensor([-1.0, -1.0, -1.0]))

    policy = 0.5 * 1.1 + 0.25 * 0.9 + 0.25 * -1.0
    kl = 0.5 * -0.1 + 0.25 * 0.1
    entropy = 0.5 * 2.0 + 0.25 + 0.25
    assert parts.loss.item() == pytest.approx(policy + 0.1 * kl - 0.2 * entropy, abs=1e-6)
    assert set(parts.metrics) == {"kl_ref", "entropy"}


def test_importance_weighs_the_policys_loss_alone(config):
    algorithm = {"loss": "reinforce", "correction": {"mode": "decoupled", "importance": "token"}}
    importance = torch.tensor([2.0, 0.0, 1.0])
    policy = 2 * 0.5 * 1.1 + 0.25 * -1.0
    assert loss_of(config, algorithm, Scores(LOGPROBS), importance=importance).loss.item() == pytest.approx(policy)
    damped = loss_of(config, {**algorithm, "sampler_kl_coef": 2.0}, Scores(LOGPROBS), importance=importance)
    assert damped.loss.item() == pytest.approx(policy + 2.0 * (0.5 + 0.25) * 0.1**2 / 2)


def test_the_kl_to_the_sampler_is_of_the_tokens_in_the_policys_loss(config):
    correction = {"rejection": "token_k1", "rejection_threshold": "0.95_2.0"}
    algorithm = {"loss": "reinforce", "sampler_kl_coef": 2.0, "correction": correction}
    logprobs = LOGPROBS.clone().requires_grad_()
    parts = loss_of(config, algorithm, Scores(logprobs))
    torch.autograd.backward(parts.loss)

    assert parts.loss.item() == pytest.approx(0.5 * 1.1 - 0.25 + 2.0 * 0.5 * 0.1**2 / 2), "the second is rejected"
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.5 * (-1.0 + 2.0 * -0.1), 0.0, 0.25])


def test_a_rejected_token_is_in_no_mean_of_its_sequence(config):
    """GSPO's ratio of the first trajectory is that of its kept token alone."""
    algorithm = {"loss": "gspo", "clip_low": 0.9, "clip_high": 9.0, "correction": {"mode": "decoupled"}}
    keep = torch.tensor([True, False, True])
    parts = loss_of(config, algorithm, Scores(LOGPROBS), keep=keep, weights=WEIGHTS * keep)
    assert parts.loss.item() == pytest.approx(-0.5 * torch.tensor(-0.1).exp().item() + 0.25, abs=1e-6)


def test_in_bypass_mode_correction_is_against_the_sampler_as_things_are_now(config):
    correction = {"rejection": "token_k1", "rejection_threshold": "0.95_2.0"}
    algorithm = {"loss": "reinforce", "kl_coef": 0.1, "kl": "k1", "correction": correction}
    parts = loss_of(config, algorithm, Scores(LOGPROBS), ref_logprobs=torch.tensor([-1.0, -1.0, -1.0]))

    # sampler to trainer: e^.1, e^-.1 = .905 (rejected), 1; the KL to the reference is of all tokens
    assert parts.loss.item() == pytest.approx(0.5 * 1.1 - 0.25 + 0.1 * (0.5 * -0.1 + 0.25 * 0.1), abs=1e-6)
    assert parts.metrics["rollout_corr/rollout_rs_masked_fraction"].tolist() == [False, True, False]


def test_in_bypass_mode_a_mean_over_a_trajectory_is_over_what_is_kept_of_it(config):
    correction = {"rejection": "token_k1", "rejection_threshold": "0.95_2.0"}
    algorithm = {"loss": "reinforce", "aggregation": "seq-mean-token-mean", "correction": correction}
    parts = loss_of(config, algorithm, Scores(LOGPROBS), weights=torch.tensor([0.25, 0.25, 0.5]))
    assert parts.loss.item() == pytest.approx(0.5 * 1.1 - 0.5 * 1.0, abs=1e-6), "the second token is rejected"


def test_losses_of_sequences_take_the_geometric_mean_of_importance(config):
    algorithm = {"loss": "gmpo", "correction": {"mode": "decoupled", "importance": "token"}}
    plain = loss_of(config, algorithm, Scores(LOGPROBS), weights=torch.tensor([0.5, 0.5, 0.0]))
    weighed = loss_of(
        config,
        algorithm,
        Scores(LOGPROBS),
        weights=torch.tensor([0.5, 0.5, 0.0]),
        importance=torch.tensor([0.5, 2.0, 1.0]),
    )
    assert weighed.loss.item() == pytest.approx(plain.loss.item(), abs=1e-6), "the square root of .5 times 2"


DIVERGED = Scores(torch.tensor([-1.1, -0.9, -1.6]))
"""The last trajectory, of advantage -1, is less likely than the sampler found it by .6 nats."""


@pytest.mark.parametrize("mode", ["bypass", "decoupled"])
def test_a_divergent_sequence_is_in_the_policys_loss_no_more_and_divides_it_as_before(config, mode):
    algorithm = {"loss": "reinforce", "correction": {"mode": mode, "mask_divergent": 0.5}}
    masked = loss_of(config, algorithm, DIVERGED)
    spared = loss_of(config, {**algorithm, "correction": {"mode": mode, "mask_divergent": 0.7}}, DIVERGED)

    assert masked.loss.item() == pytest.approx(0.5 * 1.1 + 0.25 * 0.9, abs=1e-6)
    assert spared.loss.item() == pytest.approx(0.5 * 1.1 + 0.25 * 0.9 - 0.25 * 1.6, abs=1e-6)
    assert masked.metrics["divergent_masked_fraction"].tolist() == [False, False, True]


def test_a_divergent_sequence_stays_in_the_kl_to_the_reference(config):
    algorithm = {"loss": "reinforce", "kl_coef": 1.0, "kl": "k1", "correction": {"mask_divergent": 0.5}}
    parts = loss_of(config, algorithm, DIVERGED, ref_logprobs=torch.tensor([-1.1, -0.9, -1.0]))
    assert parts.loss.item() == pytest.approx(0.5 * 1.1 + 0.25 * 0.9 - 0.25 * 0.6, abs=1e-6)


def test_rejected_tokens_and_divergent_sequences_are_left_out_together(config):
    correction = {"rejection": "token_k1", "rejection_threshold": "0.95_2.0", "mask_divergent": 0.5}
    algorithm = {"loss": "reinforce", "aggregation": "seq-mean-token-mean", "correction": correction}
    parts = loss_of(config, algorithm, DIVERGED, weights=torch.tensor([0.25, 0.25, 0.5]))
    assert parts.loss.item() == pytest.approx(0.5 * 1.1, abs=1e-6)


def test_the_gradient_of_a_step_of_divergent_sequences_alone_is_zero(config):
    logprobs = torch.tensor([-2.0, -2.0, -2.0], requires_grad=True)
    algorithm = {"loss": "gspo", "correction": {"mask_divergent": 0.5}}
    parts = loss_of(config, algorithm, Scores(logprobs), advantages=torch.tensor([-1.0, -1.0, -1.0]))
    torch.autograd.backward(parts.loss)
    assert logprobs.grad is not None
    assert not logprobs.grad.any()


def is_asked_of_all(config: Callable[..., Config], **algorithm: object) -> bool:
    settings = config(algorithm=algorithm)
    return trains_without_advantage(Recipe(settings), settings.algorithm)


TIGHT = {"rejection": "token_k1,seq_mean_k1", "rejection_threshold": "0.999_1.001"}


@pytest.mark.parametrize("correction", [{}, {"preset": "decoupled_token_is"}, TIGHT], ids=["", "decoupled", "tight"])
@pytest.mark.parametrize("name", LOSSES)
def test_terms_of_each_token_train_trajectories_without_advantage_whatever_the_loss(config, name, correction):
    algorithm = {"loss": name, "correction": correction} | ({"dro_beta": 0.1} if name == "dro" else {})
    assert is_asked_of_all(config, **algorithm) == (name in {"dro", "kl_cov"})
    for term in ({"sampler_kl_coef": 1e-6}, {"entropy_coef": 1e-12}, {"kl_coef": 1e-6}):
        assert is_asked_of_all(config, **algorithm, **term)
    assert not is_asked_of_all(config, kl_coef=0.1, kl_in="reward")


def test_the_loss_of_a_user_is_asked_for_every_trajectory(config, tmp_path):
    (tmp_path / "own.py").write_text("def own(tokens):\n    return -tokens.advantages * tokens.logprobs\n")
    assert is_asked_of_all(config, loss=f"{tmp_path / 'own.py'}:own")


# ── test trained part ─────────────────────────────────────────────────────────────────────────

MASK = {"max_staleness": 1, "on_straggler": "mask", "order": "completion"}
TURNS = {"function": "unused.py:Unused"}


def completion(*spans: Span) -> TrainingTrajectory:
    ids = np.arange(1, 1 + spans[-1].end, dtype=np.int32)
    return TrainingTrajectory(0, ids[:1], ids, np.full(len(ids), -1.0, np.float32), 1.0, spans)


def part_of(config: Any, step: TrainingStep, number: int) -> tuple[TrainingStep, dict[str, float]]:
    return TrainedPart(config).of_step(step, number, SingleRank())


def test_a_run_without_either_trains_everything(config) -> None:
    step = local_step([completion(Span(0, 0, 8))])
    part, metrics = part_of(config(), step, 9)
    assert part is step
    assert metrics == {}
    assert TrainedPart(config()).is_whole


def test_tokens_more_than_max_staleness_versions_old_are_context(config) -> None:
    step = local_step([completion(Span(3, 0, 3), Span(4, 3, 8)), completion(Span(4, 0, 4))])
    for number, left in ((4, [8, 4]), (5, [5, 4]), (6, [0, 0])):
        part, metrics = part_of(config(schedule=MASK), step, number)
        assert [info.outcome.length for info in part.infos] == left
        assert [len(part.trajectories[place].completion_ids) for place in (0, 1)] == left
        assert [info.size for info in part.infos] == [TrajectorySize(0, 1, 8), TrajectorySize(0, 1, 4)], (
            "they are still read"
        )
        assert metrics["untrained/old_tokens"] == 12 - sum(left)


def test_the_version_of_a_step_is_the_number_of_publishes_before_it(config) -> None:
    step = local_step([completion(Span(3, 0, 8))])
    schedule = MASK | {"steps_per_publish": 4}
    assert [part_of(config(schedule=schedule), step, n)[0].infos[0].outcome.length for n in (16, 19, 20)] == [8, 8, 0]


def test_old_tokens_are_counted_by_quarters_of_their_trajectories(config) -> None:
    step = local_step([completion(Span(0, 0, 5), Span(9, 5, 8)), completion(Span(0, 0, 1), Span(9, 1, 4))])
    _, metrics = part_of(config(schedule=MASK), step, 9)
    assert [metrics[f"untrained/old_quarter_{n}"] for n in (1, 2, 3, 4)] == [3, 2, 1, 0]
    assert "untrained/turn_tokens" not in metrics


def test_turns_that_are_not_trained_are_context(config) -> None:
    one = episode([(-1, [1], [2, 3]), (0, [4], [5, 6, 7])])
    one = replace(one, turns=[one.turns[0], structs.replace(one.turns[1], is_trained=False)])
    part, metrics = part_of(config(environment=TURNS), local_step([one]), 0)
    assert metrics == {"untrained/turn_tokens": 3.0}
    assert part.trajectories[0].completion_ids.tolist() == [2, 3]
    assert part.infos[0].size == TrajectorySize(7, prompt=2, completion=7)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_token_may_be_untrained_for_both_reasons(config, order: tuple[int, int]) -> None:
    one = episode([(-1, [1], [2, 3]), (0, [4], [5, 6, 7])])
    turns = [structs.replace(turn, is_trained=bool(order[place])) for place, turn in enumerate(one.turns)]
    one = replace(one, turns=turns, spans=[Span(0, 0, 3), Span(9, 3, 5)])
    part, _ = part_of(config(environment=TURNS, schedule=MASK), local_step([one]), 9)
    assert part.trajectories[0].completion_ids.tolist() == ([6, 7] if order[1] else [])
