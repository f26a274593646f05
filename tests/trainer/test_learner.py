"""The weights of the last publish, kept for the steps until the next one."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from asyncrl.config.catalogue import ADVANTAGES, AGGREGATIONS, KL_ESTIMATORS, LOSSES
from asyncrl.config.correction import PRESETS
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.errors import AsyncrlError
from asyncrl.messages.trajectory import Span
from asyncrl.trainer.algorithm.mini_batch import as_context, in_untrained_turns
from asyncrl.trainer.checkpoints.writer import PromptFiles
from asyncrl.trainer.learner import Anchor, Learner
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.step import UNASSIGNED, TrainingStep, TrainingTrajectory, local_step
from tests.conftest import make_vision_model
from tests.trainer.checkpoints.writing import write_model
from tests.trainer.episode_trajectories import episodes, rows
from tests.trainer.pictured_trajectories import pictured_trajectories
from tests.weights.groups.fake_npu import installed_at


def scene(steps_per_publish: int = 3) -> tuple[nn.Parameter, Anchor]:
    weight = nn.Parameter(torch.zeros(2))
    return weight, Anchor({"w": weight}, steps_per_publish)


def applied(weight: nn.Parameter, anchor: Anchor) -> float:
    with anchor.applied():
        return float(weight.detach()[0])


def test_steps_of_one_publish_have_the_weights_it_began_with() -> None:
    weight, anchor = scene()
    seen = []
    for step in range(5):
        anchor.begin(step)
        seen.append(applied(weight, anchor))
        assert float(weight.detach()[0]) == step, "those in training come back"
        weight.data += 1
    assert seen == [0, 0, 0, 3, 3]


def test_weights_in_training_come_back_after_an_error() -> None:
    weight, anchor = scene()
    anchor.begin(0)
    weight.data += 1
    anchor.begin(1)
    try:
        with anchor.applied():
            raise ValueError
    except ValueError:
        pass
    assert float(weight.detach()[0]) == 1
    assert applied(weight, anchor) == 0


def test_a_process_that_begins_between_two_publishes_begins_with_published_weights() -> None:
    weight, anchor = scene()
    anchor.begin(4)
    weight.data += 1
    anchor.begin(5)
    assert applied(weight, anchor) == 0


# ── test learner ──────────────────────────────────────────────────────────────────────────────

CPU = torch.device("cpu")
BETA1 = 0.9
TAUGHT = [name for name, estimator in ADVANTAGES.items() if "baseline" not in estimator.needs]
"""Estimators that need nothing but the step itself."""


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    """After one unclipped step AdamW's first moment is the gradient, times 1 - beta1."""
    state = learner.snapshot().tensors["optimizer"]
    return {name.removesuffix("/exp_avg"): state[name] / (1 - BETA1) for name in state if name.endswith("/exp_avg")}


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in learner.named_weights()}


def step_loss_in_float64(
    path: Path, reference_path: Path, trajectories: list[TrainingTrajectory], algorithm: Algorithm, norm: float
) -> tuple[float, dict[str, torch.Tensor]]:
    """Reference implementation of a step: one trajectory at a time, no padding, nothing skipped, float64."""
    model, reference = (
        AutoModelForCausalLM.from_pretrained(where, dtype=torch.float64) for where in (path, reference_path)
    )
    losses = []
    for trajectory in trajectories:
        rewards = np.array([other.reward for other in trajectories if other.group_id == trajectory.group_id])
        advantage = (trajectory.reward - rewards.mean()) / (
            rewards.std(ddof=1) + 1e-6 if algorithm.advantage == "grpo" else 1.0
        )
        ids = torch.tensor(np.concatenate([trajectory.prompt_ids, trajectory.completion_ids])).long()
        length = len(trajectory.completion_ids)
        new, ref = (
            m(input_ids=ids[None]).logits[0, -length - 1 : -1].log_softmax(-1).gather(1, ids[-length:, None])[:, 0]
            for m in (model, reference)
        )
        log_ratio = new - torch.tensor(trajectory.behavior_logprobs).double()
        ratio = log_ratio.exp()
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
        loss = torch.minimum(loss, torch.tensor(-advantage * 3.0).double()) if advantage < 0 else loss
        d = ref.detach() - new
        loss = loss + algorithm.sampler_kl_coef * log_ratio**2 / 2
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
        case "prompt-mean":
            groups: dict[int, list[torch.Tensor]] = {}
            for trajectory, loss in zip(trajectories, losses, strict=True):
                groups.setdefault(trajectory.group_id, []).append(loss)
            total = torch.stack([torch.cat(group).mean() for group in groups.values()]).mean()
    total.backward()
    return total.item(), {name: weight.grad for name, weight in model.named_parameters()}


ALGORITHMS = [
    {"aggregation": aggregation, "advantage": advantage, "kl_coef": kl_coef}
    for aggregation in AGGREGATIONS
    for advantage, kl_coef in (("grpo", 0.0), ("dr_grpo", 0.3))
] + [{"aggregation": "token-mean", "advantage": "grpo", "kl_coef": 0.0, "sampler_kl_coef": 0.5}]


@pytest.fixture(scope="module")
def reference_path(save_model: Callable[..., Path]) -> Path:
    return save_model(seed=1)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: "-".join(map(str, algorithm.values())))
def test_loss_and_gradient_are_those_of_the_formula_however_the_step_is_cut(
    model_path, reference_path, config, make_trajectories, algorithm
):
    """Trajectories with zero advantage are left out of the forward pass here, and not there."""
    trajectories = make_trajectories(num_groups=3)
    settings = config(algorithm=algorithm)
    loss, grads = step_loss_in_float64(model_path, reference_path, trajectories, settings.algorithm, norm=20.0)
    for max_tokens in (36, 100, 10_000):
        learner = Learner(
            config(algorithm=algorithm, trainer={"max_tokens_per_micro_batch": max_tokens}),
            model_path,
            reference_path=reference_path,
        )
        metrics = learner.train(trajectories)

        assert metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-5)
        scale = max(grad.abs().max().item() for grad in grads.values())
        for name, grad in gradients(learner).items():
            torch.testing.assert_close(grad.double(), grads[name], rtol=1e-5, atol=1e-5 * max(scale, 1.0))


def test_trajectories_without_advantage_are_left_out_but_counted(model_path, config, make_trajectories):
    trajectories = make_trajectories()
    metrics = Learner(config(), model_path).train(trajectories)
    with_advantage = [trajectory for trajectory in trajectories if trajectory.group_id % 3 != 2]

    assert metrics["num_trajectories"] == len(trajectories)
    assert metrics["num_tokens"] == sum(len(trajectory.completion_ids) for trajectory in trajectories)
    assert metrics["trained_tokens"] == sum(len(trajectory.completion_ids) for trajectory in with_advantage)
    assert metrics["zero_advantage_fraction"] == pytest.approx(1 / 3)
    assert metrics["reward_mean"] == pytest.approx(np.mean([trajectory.reward for trajectory in trajectories]))


def test_a_step_without_any_signal_is_a_step_with_gradient_zero(model_path, config, make_trajectories):
    learner = Learner(config(trainer={"weight_decay": 0.0}), model_path)
    before = weights(learner)
    metrics = learner.train([replace(trajectory, reward=1.0) for trajectory in make_trajectories()])

    assert (metrics["grad_norm"], metrics["loss"], metrics["skipped"]) == (0.0, 0.0, 0.0)
    assert all(torch.equal(weight, before[name]) for name, weight in learner.named_weights())
    assert learner.num_steps == 1


@pytest.mark.parametrize("mode", ["decoupled", "bypass"])
@pytest.mark.parametrize("advantage", TAUGHT)
def test_a_step_that_keeps_no_token_is_skipped_and_says_so(model_path, config, make_trajectories, advantage, mode):
    correction = {"mode": mode, "rejection": "token_k1", "rejection_threshold": "1e-9_2e-9"}
    algorithm = {"advantage": advantage, "loss": "gspo", "correction": correction}
    algorithm |= {"reward_weights": {"reward": 1.0}} if advantage == "gdpo" else {}
    learner = Learner(config(algorithm=algorithm, trainer={"weight_decay": 0.1}), model_path)
    before = weights(learner)
    metrics = learner.train(make_trajectories())

    assert (metrics["grad_norm"], metrics["kept_tokens"]) == (0.0, 0.0)
    assert (metrics["skipped"], metrics["skipped_empty"]) == (1.0, 1.0)
    assert all(torch.equal(weight, before[name]) for name, weight in learner.named_weights())
    assert learner.num_steps == 1


def on_policy(model_path: Path, trajectory: TrainingTrajectory, temperature: float) -> TrainingTrajectory:
    """The trajectory with the log-probs of this model, as version 3."""
    ids = torch.tensor(np.concatenate([trajectory.prompt_ids, trajectory.completion_ids])).long()
    length = len(trajectory.completion_ids)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(model_path)(input_ids=ids[None]).logits[0, -length - 1 : -1]
    exact = (logits / temperature).log_softmax(-1).gather(1, ids[-length:, None])[:, 0]
    return replace(trajectory, behavior_logprobs=exact.numpy(), spans=[Span(3, 0, length)])


def test_on_policy_log_probs_have_no_gap_and_no_kl(model_path, config, make_trajectories):
    trajectories = [on_policy(model_path, trajectory, 0.7) for trajectory in make_trajectories()]
    metrics = Learner(config(sampling={"temperature": 0.7}), model_path).train(trajectories, 3)

    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["log_ratio_abs_max"] == metrics["logprob_gap_max"] < 1e-5
    assert metrics["logprob_gap_tokens"] == metrics["trained_tokens"]
    assert metrics["clip_fraction"] == 0.0


def test_a_non_finite_step_is_skipped_and_reported(model_path, config, make_trajectories):
    learner, trajectories = Learner(config(), model_path), make_trajectories()
    before = weights(learner)
    broken = replace(trajectories[0], behavior_logprobs=trajectories[0].behavior_logprobs * np.float32("nan"))
    metrics = learner.train([broken, *trajectories[1:]])

    assert metrics["skipped"] == 1.0
    assert all(torch.equal(weight, before[name]) for name, weight in learner.named_weights())
    assert learner.train(trajectories)["skipped"] == 0.0
    assert all(torch.isfinite(weight).all() for _, weight in learner.named_weights())


def test_the_gradient_is_clipped_to_its_norm(model_path, config, make_trajectories):
    learner = Learner(config(trainer={"grad_clip": 0.01}), model_path)
    metrics = learner.train(make_trajectories())
    norm = torch.stack([grad.norm() for grad in gradients(learner).values()]).norm()

    assert metrics["grad_norm"] > 0.01
    assert norm.item() == pytest.approx(0.01, rel=1e-3)


def test_the_learning_rate_follows_the_schedule(model_path, config, make_trajectories):
    learner = Learner(config(trainer={"lr": 3e-4, "warmup_steps": 3}), model_path)
    rates = [learner.train(make_trajectories())["lr"] for _ in range(4)]
    assert rates == pytest.approx([1e-4, 2e-4, 3e-4, 3e-4])


def test_a_learning_rate_that_is_set_between_steps_follows_the_same_schedule(model_path, config, make_trajectories):
    learner = Learner(config(trainer={"lr": 3e-4, "warmup_steps": 3}), model_path)
    rates = [learner.train(make_trajectories())["lr"]]
    learner.lr = 6e-4
    rates += [learner.train(make_trajectories())["lr"] for _ in range(3)]
    assert rates == pytest.approx([1e-4, 4e-4, 6e-4, 6e-4])


def test_training_raises_the_probability_of_what_was_rewarded(model_path, config, make_trajectories):
    learner = Learner(config(trainer={"lr": 3e-3}, algorithm={"clip_high": 100.0}), model_path)
    trajectories = [trajectory for trajectory in make_trajectories() if trajectory.group_id % 3 != 2]
    losses = [learner.train(trajectories)["loss"] for _ in range(8)]
    assert losses[-1] < losses[0] - 0.1


def test_kl_to_the_reference_starts_at_zero_and_grows(model_path, config, make_trajectories):
    learner = Learner(config(algorithm={"kl_coef": 0.1}), model_path)
    first, second = (learner.train(make_trajectories()) for _ in range(2))

    assert first["kl_ref"] == pytest.approx(0.0, abs=1e-9)
    assert second["kl_ref"] > 0


def test_a_kl_in_both_is_that_in_the_loss_and_that_in_the_reward(save_model, model_path, config, make_trajectories):
    """Against a reference that differs, so that neither KL is zero."""
    each: dict[str, dict[str, Any]] = {
        "loss": {"kl_coef": 0.1},
        "reward": {"kl_coef": 0.3, "kl_in": "reward", "kl": "k1"},
    }
    each["both"] = {"kl_coef": 0.1, "kl_in": "both", "kl_reward_coef": 0.3, "kl_reward": "k1"}
    reference, found = save_model(seed=7), {}
    for name, kl in each.items():
        settings = config(algorithm={"advantage": "dr_grpo", "loss": "reinforce", **kl})
        found[name] = Learner(settings, model_path, reference_path=reference).train(make_trajectories())

    both, in_loss, in_reward = found["both"], found["loss"], found["reward"]
    assert both["kl_ref"] == pytest.approx(in_loss["kl_ref"])
    assert both["advantage_std"] == pytest.approx(in_reward["advantage_std"])
    assert both["kl_in_reward"] == pytest.approx(in_reward["kl_in_reward"])
    assert both["kl_coef"] == 0.3
    without = Learner(config(algorithm={"advantage": "dr_grpo", "loss": "reinforce"}), model_path)
    in_loss_alone = in_loss["loss"] - without.train(make_trajectories())["loss"]
    assert both["loss"] == pytest.approx(in_reward["loss"] + in_loss_alone, abs=1e-5)


def test_all_steps_of_a_publish_are_compared_with_the_published_policy(model_path, config, make_trajectories):
    """The same as if the published policy had sampled, and ratios were taken against the sampler."""
    published = Policy(model_path)

    def sampled_by_it(trajectory: TrainingTrajectory) -> TrainingTrajectory:
        with torch.no_grad():
            logprobs = published.score(collate([trajectory], device=CPU), temperature=1.0).logprobs
        return replace(trajectory, behavior_logprobs=logprobs.numpy())

    weights = {}
    for name, correction in (("step", {}), ("publish", {"anchor": "publish"}), ("bypass", {"mode": "bypass"})):
        algorithm = {"loss": "sapo", "correction": {"mode": "decoupled"} | correction}
        learner = Learner(config(algorithm=algorithm, schedule={"steps_per_publish": 2}), model_path)
        for seed in range(2):
            step = make_trajectories(seed=seed)
            learner.train([sampled_by_it(one) for one in step] if name == "bypass" else step)
        weights[name] = torch.cat([weight.flatten() for _, weight in learner.named_weights()])

    torch.testing.assert_close(weights["publish"], weights["bypass"], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(weights["publish"], weights["step"], rtol=1e-4, atol=1e-6)


def test_a_resumed_learner_goes_on_bit_for_bit(model_path, config, make_trajectories, tmp_path):
    settings = config(trainer={"warmup_steps": 5})
    learner = Learner(settings, model_path)
    for seed in range(2):
        learner.train(make_trajectories(seed=seed))
    learner.policy.model.save_pretrained(tmp_path)
    resumed = Learner(settings, tmp_path)
    resumed.resume(learner.num_steps, learner.snapshot().tensors)

    assert resumed.train(make_trajectories(seed=2)) == learner.train(make_trajectories(seed=2))
    assert all(torch.equal(weight, dict(resumed.named_weights())[name]) for name, weight in learner.named_weights())


@pytest.mark.parametrize("freeze_vision", [False, True])
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_a_checkpoint_of_a_model_that_reads_pictures_goes_on_bit_for_bit(family, freeze_vision, config, tmp_path):
    base, saved = tmp_path / "base", tmp_path / "saved"
    make_vision_model(base, family)
    settings = config(trainer={"freeze_vision": freeze_vision}, algorithm={"kl_coef": 0.1, "entropy_coef": 0.01})
    learner = Learner(settings, base)
    before, processor = weights(learner), learner.policy.processor
    assert processor
    steps = [pictured_trajectories(processor, seed=seed) for seed in range(3)]
    for step in steps[:2]:
        assert learner.train(step)["skipped"] == 0
    moved = {name for name, weight in weights(learner).items() if not torch.equal(weight, before[name])}
    assert {name for name in before if "visual" not in name} <= moved
    assert freeze_vision != any("visual" in name for name in moved)

    snapshot = learner.snapshot()
    write_model(saved, snapshot)
    PromptFiles(base).save_pretrained(saved)
    assert any("visual" in name for name in snapshot.weights)
    assert freeze_vision != any("visual" in name for name in snapshot.tensors["optimizer"])
    resumed = Learner(settings, saved, reference_path=base)
    resumed.resume(learner.num_steps, snapshot.tensors)
    assert resumed.train(steps[2]) == learner.train(steps[2])
    assert all(torch.equal(weight, dict(resumed.named_weights())[name]) for name, weight in learner.named_weights())


EVERYTHING = [
    *({"loss": name} | ({"dro_beta": 0.1} if name == "dro" else {}) for name in LOSSES),
    *({"advantage": name} | ({"reward_weights": {"form": 1.0}} if name == "gdpo" else {}) for name in TAUGHT),
    *({"kl_coef": 0.1, "kl": name} for name in (*KL_ESTIMATORS, "k3+")),
    {"kl_coef": 0.1, "kl_in": "reward", "kl": "k1", "kl_target": 0.01, "kl_horizon": 1000},
    {"kl_coef": 0.1, "kl": "k3", "kl_in": "both", "kl_reward_coef": 0.3},
    {"entropy_coef": 0.01},
    *({"loss": preset.loss or "gspo", "correction": {"preset": name}} for name, preset in PRESETS.items()),
]


@pytest.mark.slow("three steps for each of fifty algorithms")
@pytest.mark.parametrize("algorithm", EVERYTHING, ids=str)
def test_every_algorithm_takes_the_same_step_however_it_is_cut(model_path, config, make_trajectories, algorithm):
    """Every second trajectory is one that the model would write: rejection keeps these, and leaves out others."""
    steps, settings = [], config(algorithm=algorithm)
    trajectories = [
        one if place % 2 else on_policy(model_path, one, settings.sampling.temperature)
        for place, one in enumerate(make_trajectories(num_groups=3))
    ]
    for max_tokens in (36, 10_000):
        learner = Learner(config(algorithm=algorithm, trainer={"max_tokens_per_micro_batch": max_tokens}), model_path)
        steps.append((learner.train(trajectories), gradients(learner)))
    (metrics, grads), (at_once, grads_at_once) = steps

    assert metrics["skipped"] == 0.0
    assert metrics["kept_tokens"] == at_once["kept_tokens"] > 0
    assert metrics["loss"] == pytest.approx(at_once["loss"], rel=1e-4, abs=1e-5)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, grads_at_once[name], rtol=1e-4, atol=1e-5)


def test_several_updates_of_a_step_are_reported_as_one(model_path, config, make_trajectories):
    once = Learner(config(), model_path).train(make_trajectories())
    several = Learner(config(trainer={"mini_batches": 3, "epochs": 2}), model_path).train(make_trajectories())

    assert several["trained_tokens"] == 2 * once["trained_tokens"]
    assert several["lr"] == once["lr"]
    assert several["log_ratio_abs_mean"] != once["log_ratio_abs_mean"], "later updates see other weights"


def test_a_critic_reduces_its_loss(model_path, config, make_trajectories):
    learner = Learner(config(algorithm={"advantage": "gae", "lam": 0.9}, critic={"lr": 1e-2}), model_path)
    metrics = [learner.train(make_trajectories()) for _ in range(6)]

    assert metrics[-1]["critic_loss"] < 0.7 * metrics[0]["critic_loss"]
    assert metrics[0]["critic_explained_variance"] == metrics[0]["critic_clip_fraction"] == 0.0
    assert metrics[-1]["critic_explained_variance"] > 0.05
    assert {"critic", "critic_optimizer"} <= learner.snapshot().tensors.keys()


def test_a_clipped_critic_is_reported(model_path, config, make_trajectories):
    settings = config(algorithm={"advantage": "gae"}, critic={"value_clip": 1e-6}, trainer={"epochs": 2})
    metrics = Learner(settings, model_path).train(make_trajectories())
    assert 0.0 < metrics["critic_clip_fraction"] <= 0.5, "in the second of two updates"


def test_the_weight_of_a_kl_in_the_reward_adapts_and_is_kept(model_path, config, make_trajectories):
    settings = config(
        algorithm={"kl_coef": 0.1, "kl_in": "reward", "kl": "k1", "kl_target": 0.01, "kl_horizon": 100},
    )
    learner = Learner(settings, model_path)
    metrics = [learner.train(make_trajectories()) for _ in range(3)]
    snapshot = learner.snapshot()
    resumed = Learner(settings, model_path)
    resumed.resume(3, snapshot.tensors, snapshot.state)

    assert metrics[0]["kl_coef"] == 0.1
    assert metrics[1]["kl_coef"] < 0.1, "there was no KL at first"
    assert resumed.snapshot().state == snapshot.state


def test_adapters_learn_beside_the_base_and_are_published_merged(model_path, config, make_trajectories, tmp_path):
    settings = config(trainer={"lora": {"rank": 2}, "lr": 1e-2})
    learner = Learner(settings, model_path)
    for seed in range(2):
        learner.train(make_trajectories(seed=seed))
    snapshot = learner.snapshot()
    write_model(tmp_path, snapshot)
    merged = Learner(config(), tmp_path)
    resumed = Learner(settings, model_path)
    resumed.resume(2, snapshot.tensors, snapshot.state)

    for name, weight in learner.named_weights():
        torch.testing.assert_close(dict(merged.named_weights())[name], weight)
    assert resumed.train(make_trajectories(seed=2)) == learner.train(make_trajectories(seed=2))


@pytest.mark.parametrize("order", [[], [0, 4, 1, 2]], ids=["no trajectories", "a scattered group"])
def test_anything_but_whole_groups_is_refused(model_path, config, make_trajectories, order):
    trajectories = make_trajectories()
    with pytest.raises(AsyncrlError, match="expected whole groups"):
        Learner(config(), model_path).train([trajectories[i] for i in order])


def test_a_step_of_which_nothing_is_left_counts_and_changes_no_weights(model_path, config, make_trajectories):
    learner = Learner(config(), model_path)
    before = {name: weight.clone() for name, weight in learner.named_weights()}
    whole = local_step(make_trajectories())

    metrics = learner.train(whole.without({outcome.group_id for outcome in whole.outcomes}))

    assert (metrics["skipped"], metrics["num_tokens"], learner.num_steps) == (1.0, 0.0, 1)
    for name, weight in learner.named_weights():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)


def test_a_vocabulary_is_as_large_as_the_embedding(model_path, config):
    learner = Learner(config(), model_path)
    assert learner.token_ids.vocab_size == learner.policy.model.config.vocab_size


def test_a_completion_without_tokens_changes_nothing_but_the_counts(model_path, config, make_trajectories):
    trajectories = make_trajectories(num_groups=1, group_size=2)
    nothing = np.array([], np.int32)
    empty = replace(trajectories[0], completion_ids=nothing, behavior_logprobs=nothing.astype(np.float32))
    settings = config(trainer={"max_tokens_per_micro_batch": 36})
    with_empty = Learner(settings, model_path)
    metrics = with_empty.train([empty, trajectories[1]])

    assert metrics["skipped"] == 0.0
    assert metrics["num_trajectories"] == 2.0
    assert metrics["trained_tokens"] == metrics["num_tokens"] == len(trajectories[1].completion_ids)


@pytest.mark.slow("imports torch with a fake device in a process of its own")
def test_on_a_device_it_takes_the_same_steps_and_leaves_no_tensor_on_another(model_path: Path, tmp_path: Path) -> None:
    """The device is as strict as torch's, and the weights are staged beside it in page-locked memory."""
    command = [sys.executable, "-m", "tests.trainer.npu_process", str(model_path)]
    environment, root = installed_at(tmp_path), Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["strays"] == []
    assert facts["pinned"] > 1, "the staged version, and what sleeps"
    (metrics, weights, bytes_), (expected_metrics, expected_weights, on_host) = facts["npu"], facts["cpu"]
    awake, moved, asleep = bytes_
    assert asleep == 0
    assert 0.7 * awake < moved < awake, "gradients are zero between two steps, and not moved"
    assert on_host == [awake, 0, awake]
    for found, expected in zip(metrics, expected_metrics, strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    for name, expected in expected_weights.items():
        assert np.asarray(weights[name]) == pytest.approx(np.asarray(expected), abs=1e-4)


# ── episodes ────────────────────────────────────────────────────────────────────────────────

EPISODES = {"function": "unused.py:Unused", "max_tokens": 100}
GIVEN = """
import numpy as np

def given(outcomes):
    return [np.full(outcome.length, outcome.reward) for outcome in outcomes]
"""
"""An estimator whose advantages do not depend on what is a trajectory."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "algorithm",
    [
        {"kl_coef": 0.1, "entropy_coef": 0.01},
        {"correction": {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.5_2.0"}},
    ],
    ids=["regularised", "decoupled"],
)
def test_an_episode_is_trained_as_if_each_turn_had_a_row_of_its_own(
    model_path, reference_path, config, tmp_path, monkeypatch, algorithm, seed
):
    """Tries of branches against one trajectory for each turn, whose prompt is all that it read."""
    (tmp_path / "own.py").write_text(GIVEN)
    algorithm = algorithm | {"advantage": f"{tmp_path / 'own.py'}:given"}

    def trained(trajectories: list[TrainingTrajectory], environment: dict[str, Any]):
        settings = config(algorithm=algorithm, environment=environment, trainer={"max_tokens_per_micro_batch": 600})
        learner = Learner(settings, model_path, reference_path=reference_path)
        return learner.train(trajectories), gradients(learner)

    metrics, grads = trained(episodes(seed=seed), EPISODES)
    parts = [as_context(one, in_untrained_turns(one)) for one in episodes(seed=seed)]
    monkeypatch.setattr(TrainingStep, "micro_batches", lambda _, places, *__: [[place] for place in places])
    expected, separate = trained([row for one in parts for row in rows(one) if len(row.completion_ids)], {})

    assert metrics["untrained/turn_tokens"] > 0
    assert metrics["packed_tokens"] < 0.7 * expected["packed_tokens"]
    assert metrics["num_tokens"] - metrics["untrained/turn_tokens"] == expected["num_tokens"]
    compared = expected.keys() & {"loss", "grad_norm", "kl_ref", "entropy", "rollout_corr/kl"}
    assert {k: metrics[k] for k in compared} == pytest.approx({k: expected[k] for k in compared}, rel=1e-6, abs=1e-6)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, separate[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("max_tokens", [130, 250, 5000])
@pytest.mark.parametrize("advantage", ["grpo", "gae", "reinforce_plus_plus"])
def test_episodes_are_the_same_step_however_it_is_cut(model_path, config, advantage, max_tokens):
    algorithm = {"algorithm": {"advantage": advantage}, "environment": EPISODES}
    cut, whole = (
        Learner(config(**algorithm, trainer={"max_tokens_per_micro_batch": tokens}), model_path)
        for tokens in (max_tokens, 10_000)
    )
    assert cut.train(episodes())["loss"] == pytest.approx(whole.train(episodes())["loss"], rel=1e-5, abs=1e-6)
    ours, theirs = gradients(cut), gradients(whole)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


def test_old_tokens_are_in_no_loss_and_no_mean(model_path, config, make_trajectories):
    """The step of trajectories whose first tokens are old is that of their other tokens, behind the first ones."""
    schedule = {"max_staleness": 1, "on_straggler": "mask", "order": "completion"}
    trajectories, others = [], []
    for one in make_trajectories():
        cut = len(one.completion_ids) // 2
        trajectories.append(replace(one, spans=[Span(0, 0, cut), Span(2, cut, len(one.completion_ids))]))
        others.append(
            replace(
                one,
                prompt_ids=np.concatenate((one.prompt_ids, one.completion_ids[:cut])),
                completion_ids=one.completion_ids[cut:],
                behavior_logprobs=one.behavior_logprobs[cut:],
                spans=(),
            )
        )
    masking, plain = Learner(config(schedule=schedule), model_path), Learner(config(), model_path)
    for learner in (masking, plain):
        learner.resume(2, learner.snapshot().tensors)
    metrics, expected = masking.train(trajectories), plain.train(others)

    old = sum(len(one.completion_ids) // 2 for one in trajectories)
    assert metrics["untrained/old_tokens"] == old > 0
    assert metrics["untrained/old_quarter_1"] > metrics["untrained/old_quarter_2"] > metrics["untrained/old_quarter_3"]
    assert metrics["num_tokens"] - old == expected["num_tokens"]
    shared = expected.keys() - {"packed_tokens", "micro_batches", "num_tokens"}
    assert {k: metrics[k] for k in shared} == pytest.approx({k: expected[k] for k in shared}, rel=1e-5, abs=1e-6)
    ours, theirs = gradients(masking), gradients(plain)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


def test_a_step_that_is_all_old_changes_nothing(model_path, config, make_trajectories):
    schedule = {"max_staleness": 0, "on_straggler": "mask", "order": "completion"}
    learner = Learner(config(schedule=schedule), model_path)
    learner.resume(1, learner.snapshot().tensors)
    metrics = learner.train([replace(one, spans=[Span(0, 0, len(one.completion_ids))]) for one in make_trajectories()])
    assert (metrics["trained_tokens"], metrics["grad_norm"], metrics["loss"]) == (0.0, 0.0, 0.0)


def test_every_trajectory_has_a_rank_if_some_of_its_tokens_may_not_be_trained(model_path, config, make_trajectories):
    step = local_step(make_trajectories())
    assert UNASSIGNED in Learner(config(), model_path).assign_ranks(step.infos)
    assert UNASSIGNED not in Learner(config(environment=EPISODES), model_path).assign_ranks(step.infos)
