"""Each trajectory is computed as if it were alone, however trajectories are packed into rows."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's conventional alias
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.packed_attention import (
    _batched_attention,
    _capability,
    _kernel,
    _log_slow,
    _npu_takes,
    _varlen_attention,
    kernel_options,
    packed_attention,
    picture_attention,
    use_packed_attention,
)
from asyncrl.trainer.packing.row import Row
from asyncrl.trainer.packing.step import TrainingTrajectory
from tests.conftest import make_vision_model
from tests.trainer.pictured_trajectories import pictured_trajectories, reader
from tests.weights.groups.fake_npu import npu_fusion_attention

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


PROMPTS = [np.arange(length, dtype=np.int32) + length for length in range(1, 5)]


def ragged(lengths: Sequence[tuple[int, int]]) -> list[TrainingTrajectory]:
    """Build trajectories from pairs of a prompt number and a completion length."""
    random = np.random.default_rng(len(lengths))
    return [
        TrainingTrajectory(
            group_id=prompt,
            prompt_ids=PROMPTS[prompt],
            completion_ids=random.integers(0, VOCAB, completion).astype(np.int32),
            behavior_logprobs=np.zeros(completion, np.float32),
            reward=0.0,
        )
        for prompt, completion in lengths
    ]


def tokens(trajectory: TrainingTrajectory) -> Tensor:
    return torch.from_numpy(np.concatenate((trajectory.prompt_ids, trajectory.completion_ids))).long()


def pushes(trajectories: Sequence[TrainingTrajectory]) -> list[Tensor]:
    """Upstream gradients, some positive and some not."""
    return [torch.sin(torch.arange(len(trajectory.completion_ids)) + 1.0) for trajectory in trajectories]


def packed(policy: Policy, trajectories: Sequence[TrainingTrajectory], rows: Sequence[Sequence[int]]) -> Result:
    found, push = [torch.empty(0)] * len(trajectories), pushes(trajectories)
    for row in rows:
        batch = collate([trajectories[place] for place in row], device=CPU)
        logprobs = policy.score(batch, temperature=1.0).logprobs
        torch.dot(logprobs, torch.cat([push[place] for place in row] or [torch.empty(0)])).backward()
        for place, part in zip(row, torch.split(logprobs.detach(), list(batch.lengths)), strict=True):
            found[place] = part
    gradients = [weight.grad for weight in policy.parameters().values() if weight.grad is not None]
    policy.model.zero_grad()
    return found, gradients


def plain(model: torch.nn.Module, trajectories: Sequence[TrainingTrajectory], *, padded: bool) -> Result:
    """Reference by transformers' own attention: one right-padded batch, or one trajectory at a time."""
    found: list[Tensor] = []
    for together in [trajectories] if padded else [[trajectory] for trajectory in trajectories]:
        ids = torch.nn.utils.rnn.pad_sequence([tokens(trajectory) for trajectory in together], batch_first=True)
        logprobs = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
        for row, trajectory, push in zip(logprobs, together, pushes(together), strict=True):
            states = row[len(trajectory.prompt_ids) - 1 : len(tokens(trajectory)) - 1]
            part = states.gather(1, torch.tensor(trajectory.completion_ids).long()[:, None])[:, 0]
            torch.dot(part, push).backward(retain_graph=True)
            found.append(part.detach())
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    return found, gradients


@pytest.fixture(scope="module")
def policy(model_path):
    return Policy(model_path)


@pytest.fixture(scope="module")
def alone(model_path):
    return AutoModelForCausalLM.from_pretrained(model_path, attn_implementation="eager")


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_packed_equals_one_by_one_equals_padded_in_any_order_and_packing(policy, alone, data):
    lengths = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=9))
    trajectories = ragged(lengths)
    order = data.draw(st.permutations(range(len(trajectories))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(trajectories)), max_size=4)))  # two alike: a row of nothing
    rows = [order[start:end] for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]

    got = packed(policy, trajectories, rows)

    for expected in (plain(alone, trajectories, padded=False), plain(alone, trajectories, padded=True)):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)  # gradients sum up in another order


def test_a_token_sees_nothing_of_its_neighbours_not_even_an_infinity(policy):
    """A mask that subtracts would let NaN through: 0 times NaN is NaN."""
    query, key, value = torch.randn(3, 1, 2, 5, 8)
    poisoned = value.clone()
    poisoned[:, :, 3:] = torch.nan
    attend = policy.model.model.layers[0].self_attn
    two = Row([np.arange(3), np.arange(3, 5)], CPU)
    clean, _ = packed_attention(attend, query, key, value, None, row=two)
    dirty, _ = packed_attention(attend, query, key, poisoned, None, row=two)
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
def test_other_attentions_are_kept_apart_too(model):
    ids = torch.arange(20)[None] % VOCAB
    sequences = [np.r_[:5, 5:7], np.r_[:5, 7:9], np.r_[:5, 9:13], np.r_[13:20]]
    model.set_attn_implementation("eager")
    expected = [model(input_ids=ids[:, places], use_cache=False).logits for places in sequences]
    use_packed_attention(model)
    positions = torch.cat([torch.arange(*ends) for ends in ((7,), (5, 7), (5, 9), (7,))])[None]
    got = model(input_ids=ids, position_ids=positions, use_cache=False, row=Row(sequences, CPU)).logits
    for places, logits in zip(sequences, expected, strict=True):
        torch.testing.assert_close(got[:, places], logits, rtol=1e-5, atol=1e-5)


RELEASES = {
    "2.10": {"is_causal"},
    "2.11": {"scale", "window_size"},
    "2.13": {"scale", "window_size", "enable_gqa"},
}
"""torch: arguments of its kernel besides the sequences."""


def documented(query, key, value, ends, key_ends, longest, most_keys, **given):
    """Reference by its documentation: sequences end at ``ends``; a token sees itself and ``left`` tokens before."""
    assert ends.tolist() == key_ends.tolist()
    assert longest == most_keys == int(ends.diff().max())
    left, right = given.get("window_size", (-1, 0 if given.get("is_causal") else -1))
    found = []
    for start, end in itertools.pairwise(ends.tolist()):
        at = torch.arange(end - start)
        mask = torch.ones(len(at), len(at), dtype=torch.bool)
        mask &= (at <= at[:, None] + right) if right >= 0 else True
        mask &= (at >= at[:, None] - left) if left >= 0 else True
        q, k, v = (part[start:end].transpose(0, 1) for part in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, mask, scale=given.get("scale"), enable_gqa=True)
        found.append(out.transpose(0, 1))
    return torch.cat(found)


@pytest.mark.parametrize("takes", RELEASES.values(), ids=RELEASES)
@pytest.mark.parametrize(("window", "is_causal"), [(None, True), (3, True), (9, True), (None, False)])
@pytest.mark.parametrize("scale", [8**-0.5, None, 0.5])
def test_the_varlen_kernel_gets_arguments_equivalent_to_batches(takes, window, is_causal, scale, monkeypatch):
    def kernel(*arguments, **given):
        assert given.keys() == takes
        return documented(*arguments, **given)

    monkeypatch.setattr("asyncrl.trainer.packing.packed_attention.varlen_attn", kernel)
    row = Row([np.arange(6), np.arange(6, 9), np.arange(9, 12), np.arange(12, 14)], CPU)
    heads = torch.randn(14, 4, 8), *torch.randn(2, 14, 2, 8)
    options = kernel_options(takes, 8, max(row.lengths), scale, window, is_causal=is_causal)
    if isinstance(options, str):
        assert takes == RELEASES["2.10"]
        assert (scale, options) == (0.5, "a scale of the scores other than 8^-0.5") or (
            (window, options) == (3, "a sliding window")
        )
        return
    assert takes != RELEASES["2.10"] or (scale != 0.5 and window != 3)
    got = _varlen_attention(heads, row, torch.float32, options)
    expected = _batched_attention(heads, row.lengths, scale, window, is_causal=is_causal)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_patches_see_all_of_their_picture_and_nothing_of_others():
    ends = torch.tensor([0, 4, 10, 12, 16, 17], dtype=torch.int32)
    parts = [torch.randn(1, 2, 17, 8, requires_grad=True) for _ in range(3)]
    got, _ = picture_attention(torch.nn.Module(), parts[0], parts[1], parts[2], None, scaling=0.3, cu_seq_lens_q=ends)
    got.square().sum().backward()
    found = [part.grad for part in parts]

    alone = [part.detach().requires_grad_() for part in parts]
    pictures = zip(*(torch.split(part, ends.diff().tolist(), 2) for part in alone), strict=True)
    out = torch.cat([F.scaled_dot_product_attention(q, k, v, scale=0.3) for q, k, v in pictures], 2).transpose(1, 2)
    out.square().sum().backward()
    torch.testing.assert_close(got, out, rtol=1e-5, atol=1e-6)
    for gradient, part in zip(found, alone, strict=True):
        torch.testing.assert_close(gradient, part.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_a_layer_of_a_tower_attends_to_all_pictures_in_one_call(family, tmp_path, monkeypatch):
    calls = []

    def counting(*args, **kwargs):
        calls.append(kwargs["cu_seq_lens_q"].tolist())
        return picture_attention(*args, **kwargs)

    monkeypatch.setattr("asyncrl.trainer.packing.packed_attention.picture_attention", counting)
    make_vision_model(tmp_path, family)
    policy = Policy(tmp_path)
    trajectories = pictured_trajectories(reader(policy), group_size=1)
    policy.score(collate(trajectories, device=CPU, processor=reader(policy)), temperature=1.0)
    depth = policy.model.config.vision_config.depth
    assert len(calls) == depth
    assert len({ends[-1] for ends in calls}) == 1


@pytest.mark.parametrize(
    ("capability", "dtype", "window", "lacks"),
    [
        ((8, 0), torch.bfloat16, None, None),
        ((9, 0), torch.float16, None, None),
        ((7, 5), torch.float16, None, "a GPU of compute capability 7.5; 8.0 is the least"),
        ((9, 0), torch.float32, None, "torch.float32; it takes 16-bit numbers"),
        ((9, 0), torch.bfloat16, 2, "a sliding window"),
    ],
)
def test_sequences_that_the_kernel_does_not_take_are_attended_to_as_batches_which_is_said_once(
    monkeypatch, caplog, capability, dtype, window, lacks
):
    _capability.cache_clear()
    _log_slow.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr("asyncrl.trainer.packing.packed_attention.TAKES", RELEASES["2.10"])
    heads, row = (torch.zeros(4, 2, 8, dtype=dtype),) * 3, Row([np.arange(4)], CPU)
    taken = [_kernel(heads, row, 8**-0.5, window) for _ in range(2)]
    assert taken == [None if lacks else (dtype, {"is_causal": True})] * 2
    expected = [f"attention.slow torch={str(torch.__version__)!r} kernel_lacks={lacks!r}"] if lacks else []
    assert [record.getMessage() for record in caplog.records] == expected
    _capability.cache_clear()
    _log_slow.cache_clear()


# ── test heads that kernels do not take ───────────────────────────────────────────────────────


def flash_attention(query, key, value, ends, key_ends, longest, most_keys, **given):
    """`documented`, which refuses what ``mha_varlen_fwd`` of torch's flash_api.cpp refuses, check by check."""
    num_heads, head_size = query.shape[1:]
    num_heads_k = key.shape[1]
    checks = {
        "FlashAttention only support fp16 and bf16 data type": query.dtype in {torch.float16, torch.bfloat16},
        "query and key must have the same dtype": key.dtype == query.dtype,
        "query and value must have the same dtype": value.dtype == query.dtype,
        "cu_seqlens must have dtype int32": ends.dtype == key_ends.dtype == torch.int32,
        "Input tensor must have contiguous last dimension": {one.stride(-1) for one in (query, key, value)} == {1},
        "only supports head dimension at most 256": head_size <= 256,
        "heads in key/value must divide number of heads in query": num_heads % num_heads_k == 0,
        "head_size must be a multiple of 8": head_size % 8 == 0,
        "k must have shape": key.shape == (len(key), num_heads_k, head_size),
        "v must have shape": value.shape == (len(key), num_heads_k, head_size),
    }
    if broken := [words for words, is_met in checks.items() if not is_met]:
        raise RuntimeError(broken[0])
    return documented(query, key, value, ends, key_ends, longest, most_keys, **given)


WIDTHS = st.sampled_from([1, 4, 8, 12, 16, 60, 64, 72, 128, 192, 248, 256, 257, 264, 512, 768, 776])
SHAPES = st.tuples(WIDTHS, WIDTHS | st.none(), st.integers(1, 3), st.integers(1, 3))
"""Widths of keys and of values, None for the same; heads of keys, and query heads of each."""


def made_heads(
    shape: tuple[int, int | None, int, int], num_tokens: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """[heads, tokens, width] queries, keys and values."""
    width, value_width, kv_heads, shared = shape
    generator = torch.Generator().manual_seed(width)

    def made(count: int, size: int) -> Tensor:
        return torch.randn(count, num_tokens, size, generator=generator).to(dtype)

    return made(kv_heads * shared, width), made(kv_heads, width), made(kv_heads, value_width or width)


@settings(max_examples=150, deadline=None)
@given(
    shape=SHAPES, dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]), is_wide=st.booleans(),
    takes=st.sampled_from(list(RELEASES.values())),
)  # fmt: skip
@example(shape=(192, 128, 2, 1), dtype=torch.bfloat16, is_wide=True, takes=RELEASES["2.13"])
def test_heads_of_every_shape_are_attended_to_and_by_the_kernel_if_it_takes_them(shape, dtype, is_wide, takes):
    """The CPU passes for a GPU of compute capability 9.0."""
    (query, key, value), calls = made_heads(shape, 7, dtype), []
    row, scale = Row([np.arange(5), np.array([0, 1, 5, 6])], CPU), None if is_wide else shape[0] ** -0.5

    def kernel(*arguments, **given):
        calls.append(given)
        return flash_attention(*arguments, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncrl.trainer.packing.packed_attention.varlen_attn", kernel)
        patch.setattr("asyncrl.trainer.packing.packed_attention.TAKES", takes)
        patch.setattr("asyncrl.trainer.packing.packed_attention._capability", lambda _: (9, 0))
        patch.setattr(torch.Tensor, "is_cuda", property(lambda _: True), raising=False)
        got, _ = packed_attention(torch.nn.Module(), query[None], key[None], value[None], None, scaling=scale, row=row)

    q, k, v = query.float(), key.float(), value.float()
    for places, own in ((np.arange(5), slice(0, 5)), (np.array([0, 1, 5, 6]), slice(2, 4))):
        out = F.scaled_dot_product_attention(
            q[:, places], k[:, places], v[:, places], is_causal=True, scale=scale, enable_gqa=True
        ).transpose(0, 1)
        found = got[0, places].float()
        torch.testing.assert_close(found[own], out[own], rtol=2e-2, atol=2e-2)
    ends = torch.tensor([0, 7]).int()
    try:
        flash_attention(query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), ends, ends, 7, 7)
    except RuntimeError:
        assert not calls
    else:
        assert calls


@settings(max_examples=100, deadline=None)
@given(shape=SHAPES, num_heads=st.sampled_from([None, 256, 260]))
def test_an_npus_kernel_is_asked_whether_it_takes_the_heads(shape, num_heads):
    query, key, value = (part.transpose(0, 1) for part in made_heads(shape, 3, torch.float32))
    if num_heads:
        query = torch.zeros(3, num_heads // key.shape[1] * key.shape[1], shape[0])
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    try:
        npu_fusion_attention(
            query, key, value, query.shape[1], "TND", atten_mask=mask, scale=1.0, actual_seq_qlen=[3],
            actual_seq_kvlen=[3], sparse_mode=3,
        )  # fmt: skip
    except RuntimeError:
        assert not _npu_takes((query, key, value))
    else:
        assert _npu_takes((query, key, value))
