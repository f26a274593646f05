from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from asyncrl.algo.logprobs import head_logits
from asyncrl.engine import Request
from asyncrl.rollout.engines.transformers import forward, qwen3
from asyncrl.rollout.engines.transformers.engine import PictureForward
from asyncrl.rollout.engines.transformers.forward import Forward, ModelForward
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.pictures import VisionTower
from asyncrl.rollout.engines.transformers.qwen3 import Qwen3Forward, Qwen3VLForward, fits, fits_vl
from tests.conftest import make_vision_model
from tests.rollout.engines.vision_models import load, picture_request

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


# ── test qwen3 vl ─────────────────────────────────────────────────────────────────────────────
# The fast forward pass of Qwen3-VL against the model's own.

POSITIONS_QWEN3_VL = 48


def make(path: Path, kind: type[PictureForward] | type[Qwen3VLForward]) -> tuple[Forward, VisionTower]:
    model, processor = load(path)
    config = model.config.get_text_config()
    cache = KVCache(config, slots=3, positions=POSITIONS_QWEN3_VL, dtype=model.dtype, device=model.device)
    tower = VisionTower(model, processor)
    return kind(model, cache, tower), tower


@torch.inference_mode()
def qwen3_vl_decode(
    forward: Forward, tower: VisionTower, requests: list[Request], num_steps: int
) -> list[torch.Tensor]:
    """Logits of greedy steps after a prefill of rows of unequal length, whose padding has tokens of pictures."""
    placed = [tower.place(request) for request in requests]
    lengths = torch.tensor([len(request.prompt_ids) for request in requests])
    ids = torch.full((len(requests), int(lengths.max())), tower._processor.image_token_id)
    for row, request in zip(ids, requests, strict=True):
        row[: len(request.prompt_ids)] = torch.tensor(request.prompt_ids)
    forward.prefill(torch.arange(len(requests)), ids[:, :-1], lengths - 1, placed)
    deltas = torch.tensor([each.delta if each else 0 for each in placed])
    tokens, positions, out = ids[torch.arange(len(requests)), lengths - 1], lengths - 1, []
    for _ in range(num_steps):
        cells = torch.arange(len(requests)) * POSITIONS_QWEN3_VL + positions
        out.append(forward.step(tokens, positions, cells, int(positions.max()) + 1, positions + deltas))
        tokens, positions = out[-1].argmax(-1), positions + 1
    return out


def test_both_forwards_give_the_same_logits_of_qwen3_vl(tmp_path: Path) -> None:
    make_vision_model(tmp_path)
    plain, fused = make(tmp_path, PictureForward), make(tmp_path, Qwen3VLForward)
    processor = plain[1]._processor
    requests = [picture_request(processor, *sizes) for sizes in ([(24, 16)], [], [(8, 8), (32, 8)])]

    pairs = zip(qwen3_vl_decode(*fused, requests, 8), qwen3_vl_decode(*plain, requests, 8), strict=True)
    for step, (ours, theirs) in enumerate(pairs):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5, msg=f"step {step}")


def test_only_a_qwen3_vl_with_known_options_fits(tmp_path: Path) -> None:
    make_vision_model(tmp_path)
    model, _ = load(tmp_path)
    assert fits_vl(model)
    model.config.text_config.hidden_act = "gelu"
    assert not fits_vl(model)


def test_a_qwen2_5_vl_does_not_fit(tmp_path: Path) -> None:
    make_vision_model(tmp_path, "qwen2_5_vl")
    assert not fits_vl(load(tmp_path)[0])


def test_weights_written_into_the_parameters_are_the_weights_used_of_qwen3_vl(tmp_path: Path) -> None:
    make_vision_model(tmp_path)
    forward, tower = make(tmp_path, Qwen3VLForward)
    requests = [picture_request(tower._processor, (24, 16))]
    (before,) = qwen3_vl_decode(forward, tower, requests, 1)
    with torch.no_grad():
        tower._model.language_model.layers[0].self_attn.q_proj.weight.mul_(2)
    (after,) = qwen3_vl_decode(forward, tower, requests, 1)
    assert not torch.allclose(before, after)


@pytest.mark.parametrize("kind", [PictureForward, Qwen3VLForward])
def test_no_offset_stays_behind_on_the_model(tmp_path: Path, kind: type[PictureForward] | type[Qwen3VLForward]) -> None:
    make_vision_model(tmp_path)
    forward, tower = make(tmp_path, kind)
    qwen3_vl_decode(forward, tower, [picture_request(tower._processor, (24, 16))], 2)
    assert tower._model.rope_deltas is None
