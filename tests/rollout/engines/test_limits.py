from typing import Any

import pytest
import torch

from asyncrl.engine import Completion, Request
from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.rollout.engines import limits
from asyncrl.rollout.engines.limits import Masks, Spans, check
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import checkpoint_tensors


def request(prompt_ids: list[int], max_tokens: int = 4, **sampling: Any) -> Request:
    return Request(prompt_ids=prompt_ids, sampling=Sampling(max_tokens=max_tokens, **sampling), seed=0)


def test_a_request_that_just_fits_is_served():
    check(request([0, 9, 5], max_tokens=5, top_p=0.1, top_k=3, stop=["x"]), positions=8, vocab_size=10)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (request([]), "at least 1 token"),
        (request([1], max_tokens=0), "max_tokens of at least 1"),
        (request([1, 2, 3, 4, 5]), "5 tokens and max_tokens=4 do not fit a slot of 8"),
        (request([1, 10]), "ids from 1 to 10, but the model knows 0 to 9"),
        (request([-1]), "ids from -1"),
        (request([1], temperature=-0.5), "temperature >= 0"),
        (request([1], temperature=float("nan")), "temperature >= 0"),
        (request([1], top_p=0.0), "0 < top_p <= 1"),
        (request([1], top_k=-1), "top_k >= 0"),
        (request([1], stop=["a", ""]), "stop string is empty"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_for_good(refused, why):
    with pytest.raises(EngineError, match=why) as caught:
        check(refused, positions=8, vocab_size=10)

    assert not caught.value.retryable


# ── test masks ────────────────────────────────────────────────────────────────────────────────

RESUMED = Completion(
    completion_ids=[8],
    behavior_logprobs=[-0.5],
    spans=[Span(3, 0, 1)],
    finish_reason="unfinished",
    generate_s=1.0,
    mask_counts=[2],
    mask_ids=[8, 9],
)


def test_masks_follow_those_of_the_completion_it_resumes_from() -> None:
    masks = Masks(RESUMED)
    masks.add([1, 5, 7])

    assert (masks.counts, masks.ids) == ([2, 3], [8, 9, 1, 5, 7])
    assert RESUMED.mask_ids == [8, 9], "it is borrowed"


def test_without_masks_a_completion_has_none() -> None:
    assert (Masks().counts, Masks().ids) == ([], [])


# ── test parameters ───────────────────────────────────────────────────────────────────────────


def test_specs_have_name_shape_and_dtype(make_model):
    first = limits.specs(make_model().bfloat16())[0]

    assert first == TensorSpec(name="model.embed_tokens.weight", shape=(64, 32), dtype="bfloat16")


def test_loading_changes_values_and_keeps_the_parameters(make_model):
    model, new = make_model(), make_model(seed=1)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]

    limits.load(model, dict(new.named_parameters()))

    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), new.parameters(), strict=True))
    assert torch.equal(model.lm_head.weight, new.model.embed_tokens.weight)


def test_missing_and_unknown_names_are_refused(make_model):
    model = make_model()
    weights = dict(model.named_parameters())
    norm = weights.pop("model.norm.weight")

    with pytest.raises(EngineError, match=r"the weights lack 'model\.norm\.weight'; send"):
        limits.load(model, weights)
    with pytest.raises(EngineError, match="weights have 'a' and 1 more, unknown to the model"):
        limits.load(model, weights | {"model.norm.weight": norm, "a": norm, "b": norm})


def test_one_wrong_shape_leaves_every_parameter_as_it_was(make_model):
    model, before = make_model(), make_model()
    weights = dict(make_model(seed=1).named_parameters()) | {"model.norm.weight": torch.ones(1)}

    with pytest.raises(EngineError, match=r"has shape \(1,\), but the model's has \(32,\)"):
        limits.load(model, weights)

    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_single_experts_are_copied_into_their_fused_tensor(make_model):
    model, new = make_model("qwen3_moe"), make_model("qwen3_moe", seed=1)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    weights = {name: tensor.clone() for name, tensor in checkpoint_tensors(new)}
    assert "model.layers.0.mlp.experts.2.up_proj.weight" in weights

    limits.load(model, weights)

    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), new.parameters(), strict=True))


def test_one_expert_missing_leaves_every_parameter_as_it_was(make_model):
    model, before = make_model("qwen3_moe"), make_model("qwen3_moe")
    weights = dict(checkpoint_tensors(make_model("qwen3_moe", seed=1)))
    del weights["model.layers.1.mlp.experts.0.down_proj.weight"]

    with pytest.raises(EngineError, match=r"weights lack 'model\.layers\.1\.mlp\.experts\.0\.down_proj\.weight'; send"):
        limits.load(model, weights)

    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_a_model_whose_checkpoints_are_in_another_order_is_refused(make_model, monkeypatch):
    def reordered(_model, tensors):
        return {name: tensor.flip(0) for name, tensor in tensors.items()}

    limits.check_loadable(make_model())
    monkeypatch.setattr("asyncrl.weights.contents.names.revert_weight_conversion", reordered)
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM stores weights in another order"):
        limits.check_loadable(make_model())


# ── test spans ────────────────────────────────────────────────────────────────────────────────


def spans_with(*versions: tuple[int, int]) -> Spans:
    spans = Spans()
    for policy_version, num_tokens in versions:
        spans.set_version(policy_version, num_tokens)
    return spans


def test_spans_cover_every_token_once():
    assert spans_with((3, 0), (4, 2), (6, 5)).until(9) == [Span(3, 0, 2), Span(4, 2, 5), Span(6, 5, 9)]


def test_a_version_without_tokens_has_no_span():
    assert spans_with((3, 0), (4, 0), (5, 2), (6, 2)).until(4) == [Span(4, 0, 2), Span(6, 2, 4)]


def test_the_newest_version_may_have_no_token_yet():
    assert spans_with((3, 0), (4, 2)).until(2) == [Span(3, 0, 2)]


def test_the_same_version_again_extends_its_span():
    assert spans_with((3, 0), (3, 2), (4, 5), (3, 5)).until(6) == [Span(3, 0, 6)]


def test_resumed_tokens_keep_their_versions():
    spans = Spans([Span(3, 0, 2), Span(4, 2, 5)])
    spans.set_version(6, 5)

    assert spans.until(7) == [Span(3, 0, 2), Span(4, 2, 5), Span(6, 5, 7)]
    assert spans.until(4) == [Span(3, 0, 2), Span(4, 2, 4)]
