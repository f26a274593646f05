"""However trajectories are laid into rows, each is computed as if it were alone."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from asyncrl.trainer.batch import TrainingSample, collate
from asyncrl.trainer.packed_attention import boundaries, pack, packed_attention
from asyncrl.trainer.policy import Policy

CPU = torch.device("cpu")
VOCAB = 32
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.3,
}
Result = tuple[list[Tensor], list[Tensor]]
"""Log-probs of each trajectory, and gradients."""


def trajectories(lengths: Sequence[tuple[int, int]]) -> list[TrainingSample]:
    random = np.random.default_rng(len(lengths))
    return [
        TrainingSample(
            group_id=0,
            prompt_ids=random.integers(0, VOCAB, prompt).astype(np.int32),
            completion_ids=random.integers(0, VOCAB, completion).astype(np.int32),
            behavior_logprobs=np.zeros(completion, np.float32),
            reward=0.0,
        )
        for prompt, completion in lengths
    ]


def pushes(samples: Sequence[TrainingSample]) -> list[Tensor]:
    """Upstream gradients, some positive and some not."""
    return [torch.sin(torch.arange(len(sample.completion_ids)) + 1.0) for sample in samples]


def packed(policy: Policy, samples: Sequence[TrainingSample], rows: Sequence[Sequence[int]]) -> Result:
    found, push = [torch.empty(0)] * len(samples), pushes(samples)
    for row in rows:
        batch = collate([samples[place] for place in row], device=CPU)
        logprobs = policy.score(batch, temperature=1.0).logprobs
        torch.dot(logprobs, torch.cat([push[place] for place in row] or [torch.empty(0)])).backward()
        for place, part in zip(row, torch.split(logprobs.detach(), batch.lengths), strict=True):
            found[place] = part
    gradients = [weight.grad for weight in policy.parameters().values()]
    policy.model.zero_grad()
    return found, gradients


def plain(model: torch.nn.Module, samples: Sequence[TrainingSample], *, padded: bool) -> Result:
    """By transformers' own attention: one rectangle, padded on the right, or one trajectory at a time."""
    found: list[Tensor] = []
    for chosen in [samples] if padded else [[sample] for sample in samples]:
        ids = torch.zeros(len(chosen), max(sample.num_tokens for sample in chosen), dtype=torch.int64)
        for row, sample in zip(ids, chosen, strict=True):
            row[: sample.num_tokens] = torch.tensor(np.concatenate((sample.prompt_ids, sample.completion_ids)))
        logprobs = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
        for row, sample, push in zip(logprobs, chosen, pushes(chosen), strict=True):
            states = row[len(sample.prompt_ids) - 1 : sample.num_tokens - 1]
            part = states.gather(1, torch.tensor(sample.completion_ids).long()[:, None])[:, 0]
            torch.dot(part, push).backward(retain_graph=True)
            found.append(part.detach())
    gradients = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    return found, gradients


@pytest.fixture(scope="module")
def policy(model_path) -> Policy:
    return Policy(model_path)


@pytest.fixture(scope="module")
def alone(model_path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(model_path, attn_implementation="eager")


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_packed_is_one_by_one_is_padded_in_any_order_and_any_packing(policy, alone, data) -> None:
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=7))
    samples = trajectories(lengths)
    order = data.draw(st.permutations(range(len(samples))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(samples)), max_size=4)))  # two alike: a row of nothing
    rows = [order[start:end] for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]

    got = packed(policy, samples, rows)

    for expected in (plain(alone, samples, padded=False), plain(alone, samples, padded=True)):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)  # gradients sum up in another order


def test_a_token_sees_nothing_of_its_neighbours_not_even_an_infinity(policy) -> None:
    """A mask that subtracts would let NaN through: 0 times NaN is NaN."""
    query, key, value = torch.randn(3, 1, 2, 5, 8)
    poisoned = value.clone()
    poisoned[:, :, 3:] = torch.nan
    attend = policy.model.model.layers[0].self_attn
    cut = boundaries([3, 2], CPU)
    clean, _ = packed_attention(attend, query, key, value, None, **cut)
    dirty, _ = packed_attention(attend, query, key, poisoned, None, **cut)
    assert torch.equal(clean[:, :3], dirty[:, :3])
    assert dirty[:, 3:].isnan().all()


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(MistralForCausalLM(MistralConfig(**SHAPE, num_key_value_heads=1, sliding_window=3)), id="window"),
        pytest.param(
            LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2)), id="as many key heads as query heads"
        ),
    ],
)
def test_other_attentions_are_kept_apart_too(model) -> None:
    ids = torch.arange(14)[None] % VOCAB
    model.set_attn_implementation("eager")
    expected = [model(input_ids=part, use_cache=False).logits for part in torch.split(ids, [5, 2, 7], 1)]
    pack(model)
    positions = torch.cat([torch.arange(length) for length in (5, 2, 7)])[None]
    got = model(input_ids=ids, position_ids=positions, use_cache=False, **boundaries([5, 2, 7], CPU)).logits
    torch.testing.assert_close(got, torch.cat(expected, 1), rtol=1e-5, atol=1e-5)


def test_boundaries_are_what_kernels_of_transformers_take() -> None:
    made = boundaries([3, 1, 4], CPU)
    assert made["cu_seq_lens_q"].tolist() == made["cu_seq_lens_k"].tolist() == [0, 3, 4, 8]
    assert made["cu_seq_lens_q"].dtype == torch.int32
    assert made["max_length_q"] == made["max_length_k"] == 4
