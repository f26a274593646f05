from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl.algo.advantages.table import ADVANTAGES
from asyncrl.algo.aggregate import AGGREGATIONS
from asyncrl.algo.kl import KL_ESTIMATORS
from asyncrl.algo.losses.table import LOSSES
from asyncrl.config.presets import PRESETS
from asyncrl.config.sections import Algorithm
from asyncrl.errors import AsyncrlError
from asyncrl.messages import Span
from asyncrl.trainer.learner import Learner

BETA1 = 0.9
TAUGHT = [name for name, estimator in ADVANTAGES.items() if "baseline" not in estimator.needs]
"""Estimators that need nothing but the step itself."""


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    """After one unclipped step AdamW's first moment is the gradient, times 1 - beta1."""
    state = learner.snapshot().tensors["optimizer"]
    return {name.removesuffix("/exp_avg"): state[name] / (1 - BETA1) for name in state if name.endswith("/exp_avg")}


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in learner.named_weights()}


def step_loss_in_float64(path, reference_path, samples, algorithm: Algorithm, norm: float):
    """The whole step written the other way: one trajectory at a time, no padding, nothing left out, float64."""
    model, reference = (
        AutoModelForCausalLM.from_pretrained(where, dtype=torch.float64) for where in (path, reference_path)
    )
    losses = []
    for sample in samples:
        rewards = np.array([other.reward for other in samples if other.group_id == sample.group_id])
        advantage = (sample.reward - rewards.mean()) / (
            rewards.std(ddof=1) + 1e-6 if algorithm.advantage == "grpo" else 1.0
        )
        ids = torch.tensor(np.concatenate([sample.prompt_ids, sample.completion_ids])).long()
        length = len(sample.completion_ids)
        new, ref = (
            m(input_ids=ids[None]).logits[0, -length - 1 : -1].log_softmax(-1).gather(1, ids[-length:, None])[:, 0]
            for m in (model, reference)
        )
        ratio = (new - torch.tensor(sample.behavior_logprobs).double()).exp()
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
        loss = torch.minimum(loss, torch.tensor(-advantage * 3.0).double()) if advantage < 0 else loss
        d = ref.detach() - new
        losses.append(loss + algorithm.kl_coef * (d.exp() - d - 1).clamp(max=10.0))
    match algorithm.aggregation:
        case "token-mean":
            total = torch.cat(losses).mean()
        case "token-sum":
            total = torch.cat(losses).sum()
        case "seq-mean-token-sum":
            total = torch.stack([loss.sum() for loss in losses]).mean()
        case "seq-mean-token-sum-norm":
            total = torch.stack([loss.sum() for loss in losses]).mean() / norm
        case "seq-mean-token-mean":
            total = torch.stack([loss.mean() for loss in losses]).mean()
    total.backward()
    return total.item(), {name: weight.grad for name, weight in model.named_parameters()}


ALGORITHMS = [
    {"aggregation": aggregation, "advantage": advantage, "kl_coef": kl_coef}
    for aggregation in AGGREGATIONS
    for advantage, kl_coef in (("grpo", 0.0), ("dr_grpo", 0.3))
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: "-".join(map(str, algorithm.values())))
def test_loss_and_gradient_are_those_of_the_formula_however_the_step_is_cut(
    model_path, save_model, config, make_samples, algorithm
) -> None:
    """Trajectories with zero advantage are left out of the forward pass here, and not there."""
    reference_path, samples = save_model(seed=1), make_samples()
    settings = config(algorithm=algorithm)
    loss, grads = step_loss_in_float64(model_path, reference_path, samples, settings.algorithm, norm=20.0)
    for max_tokens in (36, 100, 10_000):
        learner = Learner(
            config(algorithm=algorithm, trainer={"max_tokens_per_micro_batch": max_tokens}),
            model_path,
            reference_path=reference_path,
        )
        metrics = learner.train(samples)

        assert metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-5)
        scale = max(grad.abs().max().item() for grad in grads.values())
        for name, grad in gradients(learner).items():
            torch.testing.assert_close(grad.double(), grads[name], rtol=1e-5, atol=1e-5 * max(scale, 1.0))


def test_trajectories_that_teach_nothing_are_left_out_but_counted(model_path, config, make_samples) -> None:
    samples = make_samples()
    metrics = Learner(config(), model_path).train(samples)
    taught = [sample for sample in samples if sample.group_id % 3 != 2]

    assert metrics["num_trajectories"] == len(samples)
    assert metrics["num_tokens"] == sum(len(sample.completion_ids) for sample in samples)
    assert metrics["trained_tokens"] == sum(len(sample.completion_ids) for sample in taught)
    assert metrics["zero_advantage_fraction"] == pytest.approx(1 / 3)
    assert metrics["reward_mean"] == pytest.approx(np.mean([sample.reward for sample in samples]))


def test_a_step_without_any_signal_is_a_step_with_gradient_zero(model_path, config, make_samples) -> None:
    learner = Learner(config(trainer={"weight_decay": 0.0}), model_path)
    before = weights(learner)
    metrics = learner.train([replace(sample, reward=1.0) for sample in make_samples()])

    assert (metrics["grad_norm"], metrics["loss"], metrics["skipped"]) == (0.0, 0.0, 0.0)
    assert all(torch.equal(weight, before[name]) for name, weight in learner.named_weights())
    assert learner.num_steps == 1


def test_on_policy_log_probs_have_no_gap_and_no_kl(model_path, config, make_samples) -> None:
    samples = []
    for sample in make_samples():
        ids = torch.tensor(np.concatenate([sample.prompt_ids, sample.completion_ids])).long()
        length = len(sample.completion_ids)
        with torch.no_grad():
            logits = AutoModelForCausalLM.from_pretrained(model_path)(input_ids=ids[None]).logits[0, -length - 1 : -1]
        exact = (logits / 0.7).log_softmax(-1).gather(1, ids[-length:, None])[:, 0]
        samples.append(replace(sample, behavior_logprobs=exact.numpy(), spans=[Span(3, 0, length)]))
    metrics = Learner(config(sampling={"temperature": 0.7}), model_path).train(samples, 3)

    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["log_ratio_abs_max"] == metrics["logprob_gap_max"] < 1e-5
    assert metrics["logprob_gap_tokens"] == metrics["trained_tokens"]
    assert metrics["clip_fraction"] == 0.0


def test_a_step_that_is_not_finite_is_skipped_and_said(model_path, config, make_samples) -> None:
    learner, samples = Learner(config(), model_path), make_samples()
    before = weights(learner)
    broken = replace(samples[0], behavior_logprobs=samples[0].behavior_logprobs * np.float32("nan"))
    metrics = learner.train([broken, *samples[1:]])

    assert metrics["skipped"] == 1.0
    assert all(torch.equal(weight, before[name]) for name, weight in learner.named_weights())
    assert learner.train(samples)["skipped"] == 0.0
    assert all(torch.isfinite(weight).all() for _, weight in learner.named_weights())


def test_the_gradient_is_clipped_to_its_norm(model_path, config, make_samples) -> None:
    learner = Learner(config(trainer={"grad_clip": 0.01}), model_path)
    metrics = learner.train(make_samples())
    norm = torch.stack([grad.norm() for grad in gradients(learner).values()]).norm()

    assert metrics["grad_norm"] > 0.01
    assert norm.item() == pytest.approx(0.01, rel=1e-3)


def test_the_learning_rate_follows_the_schedule(model_path, config, make_samples) -> None:
    learner = Learner(config(trainer={"lr": 3e-4, "warmup_steps": 3}), model_path)
    rates = [learner.train(make_samples())["lr"] for _ in range(4)]
    assert rates == pytest.approx([1e-4, 2e-4, 3e-4, 3e-4])


def test_training_raises_the_probability_of_what_was_rewarded(model_path, config, make_samples) -> None:
    learner = Learner(config(trainer={"lr": 3e-3}, algorithm={"clip_high": 100.0}), model_path)
    samples = [sample for sample in make_samples() if sample.group_id % 3 != 2]
    losses = [learner.train(samples)["loss"] for _ in range(8)]
    assert losses[-1] < losses[0] - 0.1


def test_kl_to_the_reference_starts_at_zero_and_grows(model_path, config, make_samples) -> None:
    learner = Learner(config(algorithm={"kl_coef": 0.1}), model_path)
    first, second = (learner.train(make_samples()) for _ in range(2))

    assert first["kl_ref"] == pytest.approx(0.0, abs=1e-9)
    assert second["kl_ref"] > 0


def test_a_resumed_learner_goes_on_bit_for_bit(model_path, config, make_samples, tmp_path) -> None:
    settings = config(trainer={"warmup_steps": 5})
    learner = Learner(settings, model_path)
    for seed in range(2):
        learner.train(make_samples(seed=seed))
    learner.policy.model.save_pretrained(tmp_path)
    resumed = Learner(settings, tmp_path)
    resumed.resume(learner.num_steps, learner.snapshot().tensors)

    assert resumed.train(make_samples(seed=2)) == learner.train(make_samples(seed=2))
    assert all(torch.equal(weight, dict(resumed.named_weights())[name]) for name, weight in learner.named_weights())


EVERYTHING = [
    *({"loss": name} | ({"dro_beta": 0.1} if name == "dro" else {}) for name in LOSSES),
    *({"advantage": name} | ({"reward_weights": {"form": 1.0}} if name == "gdpo" else {}) for name in TAUGHT),
    *({"kl_coef": 0.1, "kl": name} for name in (*KL_ESTIMATORS, "k3+")),
    {"kl_coef": 0.1, "kl_in": "reward", "kl": "k1", "kl_target": 0.01, "kl_horizon": 1000},
    {"entropy_coef": 0.01},
    *({"loss": preset.loss or "gspo", "correction": {"preset": name}} for name, preset in PRESETS.items()),
]


@pytest.mark.parametrize("algorithm", EVERYTHING, ids=str)
def test_every_algorithm_takes_the_same_step_however_it_is_cut(model_path, config, make_samples, algorithm) -> None:
    steps = []
    for max_tokens in (36, 10_000):
        learner = Learner(config(algorithm=algorithm, trainer={"max_tokens_per_micro_batch": max_tokens}), model_path)
        steps.append((learner.train(make_samples()), gradients(learner)))
    (metrics, grads), (at_once, grads_at_once) = steps

    assert metrics["skipped"] == 0.0
    assert metrics["loss"] == pytest.approx(at_once["loss"], rel=1e-4, abs=1e-5)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, grads_at_once[name], rtol=1e-4, atol=1e-5)


def test_several_updates_a_step_are_told_as_one(model_path, config, make_samples) -> None:
    once = Learner(config(), model_path).train(make_samples())
    several = Learner(config(trainer={"mini_batches": 3, "epochs": 2}), model_path).train(make_samples())

    assert several["trained_tokens"] == 2 * once["trained_tokens"]
    assert several["lr"] == once["lr"]
    assert several["log_ratio_abs_mean"] != once["log_ratio_abs_mean"], "later updates see other weights"


def test_a_critic_learns_what_to_expect(model_path, config, make_samples) -> None:
    learner = Learner(config(algorithm={"advantage": "gae", "lam": 0.9}, critic={"lr": 1e-2}), model_path)
    metrics = [learner.train(make_samples()) for _ in range(6)]

    assert metrics[-1]["critic_loss"] < 0.7 * metrics[0]["critic_loss"]
    assert metrics[0]["critic_explained_variance"] == metrics[0]["critic_clip_fraction"] == 0.0
    assert metrics[-1]["critic_explained_variance"] > 0.05
    assert {"critic", "critic_optimizer"} <= learner.snapshot().tensors.keys()


def test_a_critic_that_has_moved_as_far_as_it_may_is_told_of(model_path, config, make_samples) -> None:
    settings = config(algorithm={"advantage": "gae"}, critic={"value_clip": 1e-6}, trainer={"epochs": 2})
    metrics = Learner(settings, model_path).train(make_samples())
    assert 0.0 < metrics["critic_clip_fraction"] <= 0.5, "in the second of two updates"


def test_the_weight_of_a_kl_in_the_reward_adapts_and_is_kept(model_path, config, make_samples) -> None:
    settings = config(
        algorithm={"kl_coef": 0.1, "kl_in": "reward", "kl": "k1", "kl_target": 0.01, "kl_horizon": 100},
    )
    learner = Learner(settings, model_path)
    metrics = [learner.train(make_samples()) for _ in range(3)]
    snapshot = learner.snapshot()
    resumed = Learner(settings, model_path)
    resumed.resume(3, snapshot.tensors, snapshot.state)

    assert metrics[0]["kl_coef"] == 0.1
    assert metrics[1]["kl_coef"] < 0.1, "there was no KL at first"
    assert resumed.snapshot().state == snapshot.state


def test_adapters_learn_beside_the_base_and_are_published_merged(model_path, config, make_samples, tmp_path) -> None:
    settings = config(trainer={"lora": {"rank": 2}, "lr": 1e-2})
    learner = Learner(settings, model_path)
    for seed in range(2):
        learner.train(make_samples(seed=seed))
    snapshot = learner.snapshot()
    snapshot.model.save_pretrained(tmp_path, state_dict=snapshot.weights)
    merged = Learner(config(), tmp_path)
    resumed = Learner(settings, model_path)
    resumed.resume(2, snapshot.tensors, snapshot.state)

    for name, weight in learner.named_weights():
        torch.testing.assert_close(dict(merged.named_weights())[name], weight)
    assert resumed.train(make_samples(seed=2)) == learner.train(make_samples(seed=2))


@pytest.mark.parametrize("order", [[], [0, 4, 1, 2]], ids=["no samples", "a scattered group"])
def test_anything_but_whole_groups_is_refused(model_path, config, make_samples, order) -> None:
    samples = make_samples()
    with pytest.raises(AsyncrlError, match="expected whole groups"):
        Learner(config(), model_path).train([samples[i] for i in order])


def test_a_completion_without_tokens_changes_nothing_but_the_counts(model_path, config, make_samples) -> None:
    samples = make_samples(num_groups=1, group_size=2)
    nothing = np.array([], np.int32)
    empty = replace(samples[0], completion_ids=nothing, behavior_logprobs=nothing.astype(np.float32))
    settings = config(trainer={"max_tokens_per_micro_batch": 36})
    with_empty = Learner(settings, model_path)
    metrics = with_empty.train([empty, samples[1]])

    assert metrics["skipped"] == 0.0
    assert metrics["num_trajectories"] == 2.0
    assert metrics["trained_tokens"] == metrics["num_tokens"] == len(samples[1].completion_ids)
