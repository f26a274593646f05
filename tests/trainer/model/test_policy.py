import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, PreTrainedTokenizerFast

from asyncrl.errors import ConfigError
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.weights.contents.layout import TensorSpec


def batch_of(trajectories):
    return collate(trajectories, device=torch.device("cpu"))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_packed_logprobs_are_those_of_each_trajectory_alone(model_path, make_trajectories, temperature):
    trajectories = make_trajectories()
    got = Policy(model_path).score(batch_of(trajectories), temperature=temperature).logprobs

    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    alone = []
    for trajectory in trajectories:
        prompt, completion = (torch.tensor(ids).long() for ids in (trajectory.prompt_ids, trajectory.completion_ids))
        logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
        alone.append((logits / temperature).log_softmax(-1).gather(1, completion[:, None])[:, 0])
    torch.testing.assert_close(got.double(), torch.cat(alone), rtol=1e-5, atol=1e-5)


def test_tied_weights_are_published_once_under_hugging_face_names(model_path, save_model):
    saved = load_file(model_path / "model.safetensors")
    published = dict(Policy(model_path).named_weights())

    assert published.keys() == saved.keys()
    assert "lm_head.weight" not in published
    assert all(torch.equal(published[name], saved[name]) for name in saved)
    assert "lm_head.weight" in dict(Policy(save_model(tie_word_embeddings=False)).named_weights())


def test_specs_describe_what_is_published(model_path):
    policy = Policy(model_path, dtype="bfloat16")
    weights = list(policy.named_weights())

    assert all(weight.dtype == torch.bfloat16 for _, weight in weights)
    assert all(weight.dtype == torch.float32 for weight in policy.parameters().values())
    assert sorted(policy.specs()) == sorted(
        TensorSpec(name=name, shape=tuple(weight.shape), dtype="bfloat16") for name, weight in weights
    )


def test_bfloat16_products_stay_near_float32_ones(model_path, make_trajectories):
    batch = batch_of(make_trajectories())
    exact = Policy(model_path).score(batch, temperature=1.0).logprobs
    rough = Policy(model_path, dtype="bfloat16").score(batch, temperature=1.0).logprobs
    assert 0 < (exact - rough).abs().mean() < 0.02


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_nothing_to_score_still_gives_every_parameter_a_gradient_of_zero(model_path, gradient_checkpointing):
    """Ranks of a sharded model run equally many passes, with or without trajectories left."""
    policy = Policy(model_path, gradient_checkpointing=gradient_checkpointing)
    scores = policy.score(batch_of([]), temperature=1.0, entropy=True)
    assert scores.entropy is not None
    (scores.logprobs.sum() + scores.entropy.sum()).backward()

    assert scores.logprobs.shape == (0,)
    assert all(weight.grad is not None and not weight.grad.any() for weight in policy.parameters().values())


def test_entropy_and_sum_of_squares_are_those_of_the_whole_distribution(model_path, make_trajectories):
    trajectories = make_trajectories()
    scores = Policy(model_path).score(batch_of(trajectories), temperature=0.7, entropy=True, sum_pi_squared=True)

    model = AutoModelForCausalLM.from_pretrained(model_path)
    whole = [torch.from_numpy(np.concatenate((s.prompt_ids, s.completion_ids)))[None] for s in trajectories]
    logits = [
        model(input_ids=ids).logits[0, len(s.prompt_ids) - 1 : -1] for ids, s in zip(whole, trajectories, strict=True)
    ]
    log_p = (torch.cat(logits) / 0.7).log_softmax(-1)
    torch.testing.assert_close(scores.entropy, -(log_p.exp() * log_p).sum(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores.sum_pi_squared, log_p.exp().square().sum(-1), rtol=1e-5, atol=1e-6)


def test_ids_beyond_the_tokenizer_have_no_probability(model_path, make_trajectories, tmp_path):
    known = 20
    trajectories = [replace(one, completion_ids=one.completion_ids % known) for one in make_trajectories()]
    shutil.copytree(model_path, tmp_path, dirs_exist_ok=True)
    vocabulary = {f"w{index}": index for index in range(known)}
    words = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1").save_pretrained(tmp_path)
    policy = Policy(tmp_path)
    scores = policy.score(batch_of(trajectories), temperature=0.7, entropy=True)

    assert policy.token_ids.vocab_size == known
    model = AutoModelForCausalLM.from_pretrained(model_path)
    whole = [torch.from_numpy(np.concatenate((s.prompt_ids, s.completion_ids)))[None] for s in trajectories]
    logits = [
        model(input_ids=ids).logits[0, len(s.prompt_ids) - 1 : -1, :known]
        for ids, s in zip(whole, trajectories, strict=True)
    ]
    log_p = (torch.cat(logits) / 0.7).log_softmax(-1)
    sampled = torch.cat([torch.from_numpy(s.completion_ids).long() for s in trajectories])
    torch.testing.assert_close(scores.logprobs, log_p.gather(1, sampled[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores.entropy, -(log_p.exp() * log_p).sum(-1), rtol=1e-5, atol=1e-5)


def test_a_model_that_caps_the_scores_of_its_attention_is_refused(tmp_path):
    shape = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    config = Gemma2Config(
        vocab_size=32, intermediate_size=16, num_hidden_layers=1, final_logit_softcapping=None, **shape
    )
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="gives its attention 'softcap', which is not computed here"):
        Policy(tmp_path)


def test_a_model_that_caps_its_logits_is_refused(tmp_path):
    shape = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    config = Gemma2Config(
        vocab_size=32,
        intermediate_size=16,
        num_hidden_layers=1,
        final_logit_softcapping=0.5,
        attn_logit_softcapping=None,
        initializer_range=1.0,
        **shape,
    )
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="soft-capping"):
        Policy(tmp_path)
