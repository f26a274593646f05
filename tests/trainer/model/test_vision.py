"""Models that read pictures, against transformers' own forward pass of each sequence alone."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in the stubs
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import AutoModelForImageTextToText

from asyncrl.engine import Request
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.trainer.checkpoints.writer import PromptFiles
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.model.vision import picture_features, vision_tower
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import RankGroup
from asyncrl.trainer.ranks.sharding import full_tensor
from asyncrl.vision.processor import ImageProcessor
from tests.conftest import BEYOND_TOKENIZER, make_vision_model
from tests.trainer.pictured_trajectories import pictured_trajectories, reader

CPU = torch.device("cpu")
TOWER = "model.visual."


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen2_5_vl", "qwen3_vl, head of its own"])
def path(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    family, _, head = request.param.partition(",")
    make_vision_model(folder, family, tied=not head)
    return folder


def batch_of(policy: Policy, trajectories: list[TrainingTrajectory]):
    return collate(trajectories, device=CPU, processor=reader(policy))


def grad_of(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def tower_of(policy: Policy) -> nn.Module:
    tower = vision_tower(policy.model)
    assert tower is not None
    return tower


def alone(model, processor: ImageProcessor, trajectory: TrainingTrajectory, temperature: float = 1.0):
    """Log-probs [T] of a trajectory by transformers' public arguments, without the tokens that are never sampled."""
    ids = torch.tensor(np.concatenate([trajectory.prompt_ids, trajectory.completion_ids])).long()[None]
    pictures = {}
    if trajectory.images:
        pixels = processor.pixels([image.content for image in trajectory.images])
        pictures = {
            "pixel_values": pixels.values,
            "image_grid_thw": torch.tensor(pixels.grids),
            "mm_token_type_ids": (ids == processor.image_token_id).int(),
        }
    model.model.rope_deltas = None  # the module keeps those of the last pictures
    logits = model(input_ids=ids, use_cache=False, **pictures).logits[0, len(trajectory.prompt_ids) - 1 : -1]
    logits[:, [*processor.vision_token_ids, *BEYOND_TOKENIZER]] = -torch.inf
    completion = torch.tensor(trajectory.completion_ids).long()[:, None]
    return (logits / temperature).log_softmax(-1).gather(1, completion)[:, 0]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_packed_logprobs_are_those_of_each_trajectory_alone(path, temperature):
    policy = Policy(path)
    trajectories = pictured_trajectories(reader(policy))
    got = policy.score(batch_of(policy, trajectories), temperature=temperature).logprobs
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)

    with torch.no_grad():
        expected = torch.cat([alone(model, reader(policy), one, temperature) for one in trajectories])
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gradient_checkpointing", [False, True, "selective"])
def test_gradients_of_tower_and_language_model_are_those_of_each_trajectory_alone(path, gradient_checkpointing):
    policy = Policy(path, gradient_checkpointing=gradient_checkpointing)
    trajectories = pictured_trajectories(reader(policy))
    policy.score(batch_of(policy, trajectories), temperature=1.0).logprobs.sum().backward()

    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    torch.cat([alone(model, reader(policy), one) for one in trajectories]).sum().backward()
    expected = dict(model.named_parameters())
    assert any(grad_of(weight).any() for name, weight in policy.parameters().items() if name.startswith(TOWER))
    for name, weight in policy.parameters().items():
        gradient = grad_of(expected[name])
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-5 * scale, msg=name)


def test_the_tower_runs_once_for_each_distinct_picture_of_a_row(path):
    policy = Policy(path)
    trajectories = pictured_trajectories(reader(policy))
    seen = []
    tower_of(policy).register_forward_hook(
        lambda _, args, kwargs, output: seen.append(len(args[0] if args else kwargs["hidden_states"])), with_kwargs=True
    )
    policy.score(batch_of(policy, trajectories), temperature=1.0)

    distinct = {image.digest: image for one in trajectories for image in one.images}.values()
    assert seen == [sum(np.prod(image.grid) for image in distinct)]


@pytest.mark.parametrize("count", [0, 3], ids=["no trajectories", "text alone"])
def test_a_row_without_pictures_gives_the_tower_a_gradient_of_zero(path, count):
    policy = Policy(path)
    batch = batch_of(policy, pictured_trajectories(reader(policy), num_groups=1, group_size=count))
    assert batch.pictures is None
    policy.score(batch, temperature=1.0).logprobs.sum().backward()

    for name, weight in policy.parameters().items():
        assert weight.grad is not None, name
        assert not (name.startswith(TOWER) and grad_of(weight).any()), name


def test_tokens_of_pictures_have_no_probability(path):
    policy = Policy(path)
    batch = batch_of(policy, pictured_trajectories(reader(policy)))
    scores = policy.score(batch, temperature=0.7, entropy=True, sum_pi_squared=True)
    assert scores.entropy is not None
    assert scores.sum_pi_squared is not None
    assert torch.cat([scores.logprobs, scores.entropy, scores.sum_pi_squared]).isfinite().all()
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    assert all(grad_of(weight).isfinite().all() for weight in policy.parameters().values())


def test_a_frozen_tower_is_not_trained_and_still_published_and_saved(path):
    policy = Policy(path, freeze_vision=True)
    policy.score(batch_of(policy, pictured_trajectories(reader(policy))), temperature=1.0).logprobs.sum().backward()

    assert not any(name.startswith(TOWER) for name in policy.parameters())
    assert all(weight.grad is None for weight in tower_of(policy).parameters())
    assert all(grad_of(weight).any() for weight in policy.parameters().values())
    whole = Policy(path)
    assert dict(policy.named_weights()).keys() == dict(whole.named_weights()).keys()
    assert dict(policy.saved_weights()).keys() == dict(whole.saved_weights()).keys()


def test_a_model_without_a_tower_cannot_have_it_frozen(model_path):
    with pytest.raises(ConfigError, match=r"model.path=.*, a Qwen3ForCausalLM, has no vision tower; set it to false"):
        Policy(model_path, freeze_vision=True)


def test_a_checkpoint_has_the_files_by_which_pictures_are_read(path, tmp_path):
    policy = Policy(path)
    for files in (*policy.configs, PromptFiles(path)):
        files.save_pretrained(tmp_path)
    saved = ImageProcessor.load(tmp_path)
    assert saved is not None
    assert saved.version == reader(policy).version


# ── sharded ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def group() -> Iterator[RankGroup]:
    group = RankGroup(HashStore(), rank=0, size=1, timeout_s=60.0)
    yield group
    group.close()


@pytest.mark.parametrize("freeze_vision", [False, True])
@pytest.mark.parametrize("count", [0, 3], ids=["no trajectories", "pictures"])
def test_a_sharded_model_computes_the_same_with_sharded_gradients(path, group, freeze_vision, count):
    plain, sharded = (Policy(path, freeze_vision=freeze_vision, mesh=mesh) for mesh in (None, group.mesh))
    batch = batch_of(plain, pictured_trajectories(reader(plain), group_size=count))
    scores = [policy.score(batch, temperature=0.7) for policy in (plain, sharded)]
    for score in scores:
        score.logprobs.square().sum().backward()

    torch.testing.assert_close(scores[1].logprobs, scores[0].logprobs)
    assert plain.parameters().keys() == sharded.parameters().keys()
    for name, weight in plain.parameters().items():
        gradient = sharded.parameters()[name].grad
        assert isinstance(gradient, DTensor), name
        torch.testing.assert_close(full_tensor(gradient), weight.grad, msg=name)


def test_each_block_of_the_tower_is_sharded_separately(path, group):
    policy = Policy(path, mesh=group.mesh)
    sharded = {name for name, module in policy.model.named_modules() if isinstance(module, FSDPModule)}
    assert sharded == {f"model.{part}.{i}" for part in ("visual.blocks", "language_model.layers") for i in range(2)}


def test_bfloat16_features_are_bit_for_bit_those_of_transformers(path):
    """Whose sampler is compared with the trainer: rotations of patches are not rounded."""
    policy, theirs = Policy(path, dtype="bfloat16"), AutoModelForImageTextToText.from_pretrained(path, dtype="bfloat16")
    batch = batch_of(policy, pictured_trajectories(reader(policy)))

    def features(model):
        seen = picture_features(model, batch.pictures, CPU)["mm_encoder_outputs"]["image"]
        return [*seen.pooler_output, *(one for layer in getattr(seen, "deepstack_features", ()) for one in layer)]

    with torch.no_grad():
        found, expected = policy._computation.run(features, policy.model), features(theirs)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_bfloat16_products_stay_near_float32_ones(path):
    exact, rough = Policy(path), Policy(path, dtype="bfloat16")
    batch = batch_of(exact, pictured_trajectories(reader(exact)))
    difference = exact.score(batch, temperature=1.0).logprobs - rough.score(batch, temperature=1.0).logprobs
    assert 0 < difference.abs().mean() < 0.1


# ── sampled ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_log_probs_of_sampler_and_trainer_agree_before_and_after_a_step(family, config, tmp_path):
    make_vision_model(tmp_path, family)
    settings = config(trainer={"lr": 1e-2}, algorithm={"clip_high": 100.0})
    learner = Learner(settings, tmp_path)
    engine = TransformersEngine.load(str(tmp_path), slots=4, max_tokens_per_slot=128)
    for version in range(2):
        step = asyncio.run(sampled(engine, reader(learner.policy), version))
        metrics = learner.train(step, version)
        assert metrics["logprob_gap_max"] < 1e-4
        assert any("visual" in name for name, _ in learner.named_weights())
        asyncio.run(swapped(engine, dict(learner.named_weights()), version + 1))


async def sampled(engine: TransformersEngine, processor: ImageProcessor, version: int) -> list[TrainingTrajectory]:
    """Two groups: with one picture, and with two."""
    prompts = [one for one in pictured_trajectories(processor, num_groups=3, seed=version) if one.images]
    requests = [
        Request(
            prompt_ids=one.prompt_ids.tolist(),
            sampling=Sampling(max_tokens=12),
            seed=place,
            images=tuple(image.content for image in one.images),
        )
        for place, one in enumerate(prompts)
    ]
    completions = await asyncio.gather(*map(engine.generate, requests))
    return [
        replace(
            one,
            completion_ids=np.array(completion.completion_ids, np.int32),
            behavior_logprobs=np.array(completion.behavior_logprobs, np.float32),
            spans=completion.spans,
        )
        for one, completion in zip(prompts, completions, strict=True)
    ]


async def swapped(engine: TransformersEngine, weights: dict[str, torch.Tensor], version: int) -> None:
    await engine.pause()
    await engine.swap(version, weights)
    await engine.resume()
