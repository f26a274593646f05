import pytest
import torch
from transformers import PreTrainedModel

from asyncrl.algo.products import head_logits
from asyncrl.rollout.engines.transformers import forward, qwen3
from asyncrl.rollout.engines.transformers.forward import Forward, ModelForward
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.qwen3 import Qwen3Forward, fits

SLOTS, POSITIONS = 3, 32


def cache_for(model: PreTrainedModel) -> KVCache:
    return KVCache(model.config, slots=SLOTS, positions=POSITIONS, dtype=model.dtype, device=model.device)


@torch.inference_mode()
def decode(computed: Forward, ids: torch.Tensor, num_steps: int) -> list[torch.Tensor]:
    """Logits of a prefill of all but the last tokens, and of ``num_steps`` greedy steps of rows of unequal length."""
    lengths = torch.tensor([8, 5, 2])
    order = torch.tensor([2, 0, 1])
    computed.prefill(order, ids[order, :7], lengths[order] - 1)
    tokens, positions, out = ids[torch.arange(SLOTS), lengths - 1], lengths - 1, []
    for _ in range(num_steps):
        cells = torch.arange(SLOTS) * POSITIONS + positions
        out.append(computed.step(tokens, positions, cells, int(positions.max()) + 1))
        tokens, positions = out[-1].argmax(-1), positions + 1
    return out


def test_both_forwards_give_the_same_logits(make_model):
    plain, fused, ids = make_model(), make_model(), torch.randint(0, 64, (SLOTS, 8))

    expected = decode(ModelForward(plain, cache_for(plain)), ids, 10)
    actual = decode(Qwen3Forward(fused, cache_for(fused)), ids, 10)

    for step, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5, msg=f"step {step}")


@torch.inference_mode()
def test_an_extension_stores_what_a_prefill_of_all_tokens_stores(make_model):
    model, ids = make_model(), torch.randint(0, 64, (SLOTS, 12))
    slots, starts, lengths = torch.tensor([2, 0, 1]), torch.tensor([3, 7, 1]), torch.tensor([12, 8, 9])
    caches = []
    for compute in (Qwen3Forward, ModelForward):
        computed = compute(model, cache_for(model))
        computed.prefill(slots, ids[:, :7], starts)
        computed.extend(slots, ids, starts, lengths)
        caches.append(computed.cache.storage)
    for slot, length in zip(slots, lengths, strict=True):
        torch.testing.assert_close(caches[0][:, slot, :length], caches[1][:, slot, :length], atol=1e-5, rtol=1e-5)


def test_logits_of_a_bfloat16_model_are_float32_products(make_model, monkeypatch):
    model, ids = make_model().bfloat16(), torch.randint(0, 64, (SLOTS, 8))
    fed: list[torch.Tensor] = []

    def spy(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        fed.append(states.view(SLOTS, -1))
        return head_logits(states, weight, bias)

    for module in (forward, qwen3):
        monkeypatch.setattr(module, "head_logits", spy)
    for found in (ModelForward(model, cache_for(model)), Qwen3Forward(model, cache_for(model))):
        (logits,) = decode(found, ids, 1)
        expected = fed.pop().double() @ model.lm_head.weight.double().T
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits.double(), expected, rtol=0, atol=1e-5)


def test_a_prefill_stores_nothing_for_padding(make_model):
    model = make_model()
    computed, ids = Qwen3Forward(model, cache_for(model)), torch.randint(0, 64, (2, 8))

    with torch.inference_mode():
        computed.prefill(torch.tensor([2, 0]), ids, torch.tensor([3, 8]))

    keys, _ = computed.cache.read(0, rows=SLOTS, length=POSITIONS)
    assert keys.any(dim=1).any(dim=-1).sum(dim=-1).tolist() == [8, 0, 3]


def test_the_model_itself_computes_the_same_after_its_parameters_were_fused(make_model):
    model, ids = make_model(), torch.randint(0, 64, (2, 8))
    with torch.inference_mode():
        before = model(ids).logits
    Qwen3Forward(model, cache_for(model))

    with torch.inference_mode():
        assert torch.equal(model(ids).logits, before)


def test_weights_written_into_the_parameters_are_the_weights_used(make_model):
    model, new, ids = make_model(), make_model(seed=1), torch.randint(0, 64, (SLOTS, 8))
    forward = Qwen3Forward(model, cache_for(model))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), new.parameters(), strict=True):
            parameter.copy_(value)

    expected = decode(Qwen3Forward(new, cache_for(new)), ids, 3)

    for ours, theirs in zip(decode(forward, ids, 3), expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "change",
    [
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_model_that_computes_something_else_takes_the_general_path(make_model, change):
    model = make_model()
    assert fits(model)

    model.config.update(change)

    assert not fits(model)


def test_another_family_takes_the_general_path(make_model):
    assert not fits(make_model("llama"))
