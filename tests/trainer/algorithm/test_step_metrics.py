from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from structlog.testing import capture_logs
from torch import Tensor
from transformers import AutoModelForCausalLM

from asyncrl.algo.aggregate import Ragged
from asyncrl.messages.trajectory import Span
from asyncrl.records.step_keys import key_of
from asyncrl.trainer.algorithm.mini_batch import LossInputs, MicroBatchLoss
from asyncrl.trainer.algorithm.step_metrics import Comparable, StepMetrics, merged
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import SingleRank

OLD, NOW = 3, 4


def a_trajectory(*spans: Span) -> TrainingTrajectory:
    ids = np.ones(6, np.int32)
    return TrainingTrajectory(0, ids[:2], ids, np.full(6, -1.0, np.float32), 1.0, spans)


SWAPPED_ONCE = a_trajectory(Span(OLD, 0, 2), Span(NOW, 2, 5), Span(5, 5, 6))
ONE_VERSION = a_trajectory(Span(NOW, 0, 6))


def test_tokens_of_the_weights_in_training_are_compared(config):
    tokens = Comparable(config()).tokens([SWAPPED_ONCE, ONE_VERSION], NOW)

    assert tokens is not None
    assert tokens.tolist() == [False, False, True, True, True, False] + [True] * 6


def test_with_old_keys_kept_only_the_first_span_is_compared(config):
    comparable = Comparable(config(rollout={"kv": "keep"}))

    assert comparable.tokens([SWAPPED_ONCE], NOW) is None
    for given, version, expected in ((SWAPPED_ONCE, OLD, [True, True] + [False] * 4), (ONE_VERSION, NOW, [True] * 6)):
        tokens = comparable.tokens([given], version)
        assert tokens is not None
        assert tokens.tolist() == expected


@pytest.mark.parametrize("version", [7, None])
def test_weights_that_wrote_no_token_are_compared_with_none(config, version):
    assert Comparable(config()).tokens([SWAPPED_ONCE, a_trajectory()], version) is None


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}])
def test_tokens_of_a_cut_distribution_are_not_compared_and_that_is_logged_once(config, cut):
    with capture_logs() as logs:
        comparable = Comparable(config(sampling=cut, schedule={"staleness": 0}))
        assert comparable.tokens([ONE_VERSION], NOW) is None
        assert comparable.tokens([ONE_VERSION], NOW) is None

    assert [line["event"] for line in logs] == ["logprob_gap.unmeasured"]


def test_with_the_masks_of_the_sampler_tokens_of_a_cut_distribution_are_compared(config):
    with capture_logs() as logs:
        tokens = Comparable(config(sampling={"top_p": 0.9, "replay_mask": True})).tokens([ONE_VERSION], NOW)

    assert tokens is not None
    assert tokens.all()
    assert not logs


def test_steps_without_such_tokens_have_no_gap_metrics(model_path, config, make_trajectories):
    metrics = Learner(config(), model_path).train(make_trajectories(), 0)

    assert "log_ratio_abs_mean" in metrics
    assert not any(name.startswith("logprob_gap") for name in metrics)


# ── test step metrics ─────────────────────────────────────────────────────────────────────────

CPU = torch.device("cpu")


def add(
    step_metrics: StepMetrics, shifts: list[float], is_compared: list[bool] | None = None, **metrics: list[float]
) -> None:
    """A micro-batch of one prompt token and some completion tokens, whose log-probs have moved by ``shifts``."""
    ids, behavior = np.ones(len(shifts), np.int32), torch.full((len(shifts),), -1.0)
    loss_inputs = LossInputs(
        sequences=Ragged([len(shifts)]),
        behavior_logprobs=behavior,
        old_logprobs=behavior,
        advantages=torch.ones(len(shifts)),
        weights=torch.ones(len(shifts)),
        is_compared=None if is_compared is None else torch.tensor(is_compared),
    )
    parts = MicroBatchLoss(torch.tensor(-sum(shifts)), {name: torch.tensor(values) for name, values in metrics.items()})
    batch = collate([TrainingTrajectory(0, ids[:1], ids, behavior.numpy(), 1.0)], device=CPU)
    step_metrics.add(batch, behavior + torch.tensor(shifts), loss_inputs, parts)


def test_the_total_is_of_the_compared_tokens_of_all_micro_batches() -> None:
    step_metrics = StepMetrics()
    add(step_metrics, [0.25, 9.0, 0.5], [True, False, True])
    add(step_metrics, [0.75, float("nan")], [True, False])
    metrics = step_metrics.metrics(SingleRank())

    assert [metrics[f"logprob_gap_{name}"] for name in ("mean", "max", "tokens")] == [0.5, 0.75, 3.0]


def test_means_are_over_the_tokens_of_all_micro_batches() -> None:
    step_metrics = StepMetrics()
    add(step_metrics, [0.5, -0.5, 0.0], [False, True, True], clip_fraction=[1.0, 0.0, 0.0], kept=[1.0])
    add(step_metrics, [0.2], clip_fraction=[0.0], kept=[2.0])
    metrics = step_metrics.metrics(SingleRank())

    assert metrics["loss"] == pytest.approx(-0.2)
    assert metrics["clip_fraction"] == 0.25
    assert metrics["kept"] == 1.5, "a metric of fewer tokens is a mean over those"
    assert metrics["kl"] == pytest.approx(np.mean([np.exp(r) - 1 - r for r in (0.5, -0.5, 0.0, 0.2)]), abs=1e-6)
    assert metrics["log_ratio_abs_mean"] == pytest.approx(1.2 / 4, abs=1e-6)
    assert metrics["log_ratio_abs_max"] == pytest.approx(0.5, abs=1e-6)
    assert metrics["logprob_gap_mean"] == pytest.approx(0.5 / 2, abs=1e-6)
    assert metrics["logprob_gap_max"] == pytest.approx(0.5, abs=1e-6)
    assert metrics["logprob_gap_tokens"] == 2
    assert (metrics["trained_tokens"], metrics["micro_batches"], metrics["packed_tokens"]) == (4, 2, 4)


def test_a_step_that_trained_on_nothing_has_finite_metrics() -> None:
    assert StepMetrics().metrics(SingleRank()) == {
        "loss": 0.0,
        "log_ratio_abs_max": 0.0,
        "trained_tokens": 0.0,
        "kept_tokens": 0.0,
        "micro_batches": 0.0,
        "packed_tokens": 0.0,
    }


def test_the_effective_sample_size_is_over_all_tokens_and_over_all_trajectories() -> None:
    step_metrics = StepMetrics()
    add(step_metrics, [0.5, -0.5, 0.0])
    add(step_metrics, [0.2])
    metrics = step_metrics.metrics(SingleRank())

    of_tokens, of_sequences = np.exp([0.5, -0.5, 0.0, 0.2]), np.exp([0.0, 0.2])
    for name, weights in (("ess", of_tokens), ("ess_sequence", of_sequences)):
        assert metrics[name] == pytest.approx(weights.sum() ** 2 / (len(weights) * (weights**2).sum()), rel=1e-5)


class Two(SingleRank):
    """Two ranks, of which the other one has said ``other``."""

    size = 2

    def __init__(self) -> None:
        super().__init__()
        self.other = b""

    def all_gather(self, said: bytes) -> list[bytes]:
        self.other = self.other or said
        return [said, self.other]


def test_means_are_over_the_tokens_of_all_ranks() -> None:
    ranks, first, second = Two(), StepMetrics(), StepMetrics()
    add(second, [0.3, 0.3, 0.3])
    second.metrics(ranks)
    add(first, [-0.5])
    metrics = first.metrics(ranks)

    assert metrics["loss"] == pytest.approx(0.5 - 0.9)
    assert metrics["kl"] == pytest.approx((np.exp(-0.5) - 0.5 + 3 * (np.exp(0.3) - 1.3)) / 4)
    assert metrics["log_ratio_abs_max"] == pytest.approx(0.5)
    assert metrics["trained_tokens"] == 4
    weights = np.exp([-0.5, 0.3, 0.3, 0.3])
    assert metrics["ess"] == pytest.approx(weights.sum() ** 2 / (4 * (weights**2).sum()), rel=1e-5)


def test_a_rank_that_trained_on_nothing_takes_no_part_in_the_effective_sample_size() -> None:
    ranks, second = Two(), StepMetrics()
    add(second, [0.3, 0.3])
    second.metrics(ranks)

    assert StepMetrics().metrics(ranks)["ess"] == pytest.approx(1.0)


def test_a_step_of_several_updates_adds_counts_and_averages_the_rest() -> None:
    updates = [
        {"loss": 1.0, "trained_tokens": 3.0, "log_ratio_abs_max": 0.5, "skipped": 1.0, "logprob_gap_mean": 0.1},
        {"loss": 2.0, "trained_tokens": 4.0, "log_ratio_abs_max": 0.2, "skipped": 1.0, "critic_skipped": 1.0},
        {"loss": 1.5, "trained_tokens": 0.0, "log_ratio_abs_max": 0.1, "skipped": 0.0, "critic_skipped": 1.0},
    ]
    assert merged(updates) == {
        "loss": 1.5,
        "trained_tokens": 7.0,
        "log_ratio_abs_max": 0.5,
        "skipped": 2.0,
        "logprob_gap_mean": 0.1,
        "critic_skipped": 2.0,
    }


# ── test every metric of a step ───────────────────────────────────────────────────────────────

REJECTING = {"rejection": "token_k1", "rejection_threshold": "0.8_1.2"}
MODES: dict[str, dict[str, Any]] = {
    "bypass": {},
    "decoupled": {"mode": "decoupled"},
    "anchored": {"mode": "decoupled", "anchor": "publish"},
    "bypass, rejecting": REJECTING,
    "decoupled, rejecting": {"mode": "decoupled", **REJECTING},
}
CUTS: dict[str, dict[str, int]] = {
    "one update": {},
    "micro-batches": {"max_tokens_per_micro_batch": 40},
    "several updates": {"mini_batches": 3, "epochs": 2},
}


class Told(NamedTuple):
    """What transformers says about one trajectory, [T] each, and what its group says."""

    shift: NDArray[Any]
    """Log-ratio of the policy at the start of the step to the one that sampled."""
    ratio: NDArray[Any]
    """Ratio that the loss clips."""
    entropy: NDArray[Any]
    is_kept: NDArray[np.bool_]
    is_good: bool


def scored(path: Path, weights: Mapping[str, Tensor], one: TrainingTrajectory) -> tuple[NDArray[Any], NDArray[Any]]:
    """Log-probs and entropies [T] of the completion, by transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(path)
    model.load_state_dict(dict(weights), strict=False)
    ids = torch.tensor(np.concatenate((one.prompt_ids, one.completion_ids))).long()
    with torch.no_grad():
        log_p = model(input_ids=ids[None]).logits[0].double().log_softmax(-1)[len(one.prompt_ids) - 1 : -1]
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(1, ids[len(one.prompt_ids) :, None])[:, 0].numpy(), entropy.numpy()


def effective(weights: NDArray[Any]) -> float:
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


def of_update(told: Sequence[Told]) -> dict[str, float]:
    """Metrics of an update, from the trajectories with an advantage."""
    shift, ratio, entropy, kept = (np.concatenate([getattr(one, name) for one in told]) for name in Told._fields[:4])
    clipped = [(one.ratio > 1.28) if one.is_good else (one.ratio < 0.8) for one in told]
    return {
        "kl": np.mean(np.exp(shift) - 1 - shift),
        "log_ratio_abs_mean": np.abs(shift).mean(),
        "log_ratio_abs_max": np.abs(shift).max(),
        "entropy": entropy.mean(),
        "ess": effective(np.exp(shift)),
        "ess_sequence": effective(np.exp([one.shift.sum() for one in told])),
        "clip_fraction": np.concatenate(clipped)[kept].mean(),
        "trained_tokens": len(ratio),
        "kept_tokens": kept.sum(),
    }


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("mode", MODES)
def test_each_metric_is_what_its_words_say(model_path, config, make_trajectories, monkeypatch, mode, cut):
    """In a step whose policy has moved from the one that sampled, and whose own updates move it by nothing."""
    monkeypatch.setattr("asyncrl.trainer.learner.MEASURED_EVERY", 1)
    settings = config(
        algorithm={"correction": MODES[mode]}, schedule={"steps_per_publish": 2}, trainer={"lr": 0.01, **CUTS[cut]}
    )
    learner, at = Learner(settings, model_path), list[dict[str, Tensor]]()
    for seed, lr in enumerate([0.01, 1e-12]):
        at.append({name: weight.clone() for name, weight in learner.named_weights()})
        learner.lr, trajectories = lr, make_trajectories(seed=seed)
        metrics = learner.train(trajectories)

    told: dict[int, list[Told]] = {}
    for one in trajectories:
        sampled, (now, entropy) = one.behavior_logprobs, scored(model_path, at[1], one)
        old = scored(model_path, at[0], one)[0] if mode == "anchored" else now if "decoupled" in mode else sampled
        away = np.exp(sampled - now)
        kept = (away >= 0.8) & (away <= 1.2) if "rejecting" in mode else np.full(len(now), fill_value=True)
        mean = np.mean([other.reward for other in trajectories if other.group_id == one.group_id])
        is_left_out = mode == "decoupled, rejecting" and not kept.any()
        if not np.isclose(one.reward, mean) and not is_left_out:
            told.setdefault(one.group_id, []).append(
                Told(now - sampled, np.exp(now - old), entropy, kept, bool(one.reward > mean))
            )
    parts = np.array_split(range(6), CUTS[cut].get("mini_batches", 1))
    updates = [of_update([one for group in part for one in told.get(group, [])]) for part in parts]
    expected: dict[str, Any] = {name: np.mean([update[name] for update in updates]) for name in updates[0]}
    expected["log_ratio_abs_max"] = max(update["log_ratio_abs_max"] for update in updates)
    epochs, rewards = CUTS[cut].get("epochs", 1), np.array([one.reward for one in trajectories])
    expected |= {name: epochs * sum(one[name] for one in updates) for name in ("trained_tokens", "kept_tokens")}
    expected |= {
        "num_tokens": sum(len(one.completion_ids) for one in trajectories),
        "num_trajectories": len(rewards),
        "reward_mean": rewards.mean(),
        "reward_std": rewards.std(),
        "zero_advantage_fraction": 1 - sum(map(len, told.values())) / len(rewards),
        "skipped": 0,
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-6), name
    assert expected["kl"] > 0.01, "the policies differ"
    assert [name for name in metrics if key_of(name) is None] == []
