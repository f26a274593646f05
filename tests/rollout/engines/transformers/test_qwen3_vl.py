"""The fast forward pass of Qwen3-VL against the model's own."""

from pathlib import Path

import pytest
import torch

from asyncrl.rollout.engine import Request
from asyncrl.rollout.engines.transformers.forward import Forward
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.picture_forward import PictureForward
from asyncrl.rollout.engines.transformers.pictures import VisionTower
from asyncrl.rollout.engines.transformers.qwen3_vl import Qwen3VLForward, fits
from tests.conftest import make_vision_model
from tests.rollout.engines.vision_models import load, picture_request

POSITIONS = 48


def make(path: Path, kind: type[PictureForward] | type[Qwen3VLForward]) -> tuple[Forward, VisionTower]:
    model, processor = load(path)
    config = model.config.get_text_config()
    cache = KVCache(config, slots=3, positions=POSITIONS, dtype=model.dtype, device=model.device)
    tower = VisionTower(model, processor)
    return kind(model, cache, tower), tower


@torch.inference_mode()
def decode(forward: Forward, tower: VisionTower, requests: list[Request], num_steps: int) -> list[torch.Tensor]:
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
        cells = torch.arange(len(requests)) * POSITIONS + positions
        out.append(forward.step(tokens, positions, cells, int(positions.max()) + 1, positions + deltas))
        tokens, positions = out[-1].argmax(-1), positions + 1
    return out


def test_both_forwards_give_the_same_logits(tmp_path: Path) -> None:
    make_vision_model(tmp_path)
    plain, fused = make(tmp_path, PictureForward), make(tmp_path, Qwen3VLForward)
    processor = plain[1]._processor
    requests = [picture_request(processor, *sizes) for sizes in ([(24, 16)], [], [(8, 8), (32, 8)])]

    pairs = zip(decode(*fused, requests, 8), decode(*plain, requests, 8), strict=True)
    for step, (ours, theirs) in enumerate(pairs):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5, msg=f"step {step}")


def test_only_a_qwen3_vl_with_known_options_fits(tmp_path: Path) -> None:
    make_vision_model(tmp_path)
    model, _ = load(tmp_path)
    assert fits(model)
    model.config.text_config.hidden_act = "gelu"
    assert not fits(model)


def test_a_qwen2_5_vl_does_not_fit(tmp_path: Path) -> None:
    make_vision_model(tmp_path, "qwen2_5_vl")
    assert not fits(load(tmp_path)[0])


def test_weights_written_into_the_parameters_are_the_weights_used(tmp_path: Path) -> None:
    make_vision_model(tmp_path)
    forward, tower = make(tmp_path, Qwen3VLForward)
    requests = [picture_request(tower._processor, (24, 16))]
    (before,) = decode(forward, tower, requests, 1)
    with torch.no_grad():
        tower._model.language_model.layers[0].self_attn.q_proj.weight.mul_(2)
    (after,) = decode(forward, tower, requests, 1)
    assert not torch.allclose(before, after)


@pytest.mark.parametrize("kind", [PictureForward, Qwen3VLForward])
def test_no_offset_stays_behind_on_the_model(tmp_path: Path, kind: type[PictureForward] | type[Qwen3VLForward]) -> None:
    make_vision_model(tmp_path)
    forward, tower = make(tmp_path, kind)
    decode(forward, tower, [picture_request(tower._processor, (24, 16))], 2)
    assert tower._model.rope_deltas is None
