"""The PEFT library computes with an exported adapter as the trained policy does; a policy starts as its adapters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError
from asyncrl.trainer.checkpoints.checkpoint import read_manifest
from asyncrl.trainer.checkpoints.export import export_adapter
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.model.policy import Policy
from tests.conftest import make_vision_model
from tests.trainer.checkpoints.writing import write

peft = pytest.importorskip("peft")
IDS = torch.tensor([[5, 9, 17, 2, 3, 11, 4]])
TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
"""Rounding of a product with W + B A and of the sum of two products, in logits of about 10."""
LORA: dict[str, Any] = {"rank": 2, "alpha": 3.0}


@torch.no_grad()
def logits(model: Any) -> Tensor:
    found: Tensor = model.eval()(input_ids=IDS).logits
    return found


def exported(learner: Learner, tokenizer: Any, folder: Path) -> tuple[Path, Path]:
    """Directories of the adapter, and of the checkpoint, whose weights have it merged."""
    snapshot = learner.snapshot()
    step = write(folder, step=1, policy_version=1, frontier={}, snapshot=snapshot, tokenizer=tokenizer)
    export_adapter(step, read_manifest(step), folder / "out", lora=Lora(**LORA), base="base", card="")
    return folder / "out", step


def test_the_library_computes_what_the_trained_policy_does(model_path, config, make_trajectories, tokenizer, tmp_path):
    learner = Learner(config(trainer={"lora": LORA, "lr": 0.05}), model_path)
    learner.train(make_trajectories())
    out, checkpoint = exported(learner, tokenizer, tmp_path)

    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_path), out)
    expected = logits(AutoModelForCausalLM.from_pretrained(checkpoint))
    torch.testing.assert_close(logits(model), expected, **TOLERANCE)
    torch.testing.assert_close(logits(model.merge_and_unload()), expected, **TOLERANCE)
    assert not torch.allclose(expected, logits(AutoModelForCausalLM.from_pretrained(model_path)), atol=0.1)


def test_no_layer_of_a_vision_tower_is_adapted_beside_those_of_the_language_model(config, tokenizer, tmp_path):
    """The tower has a ``gate_proj`` of its own."""
    make_vision_model(tmp_path / "model", "qwen2_5_vl")
    learner = Learner(config(trainer={"lora": LORA}), tmp_path / "model")
    with torch.no_grad():
        for weight in learner.policy.parameters().values():
            weight.normal_(std=0.1)
    out, checkpoint = exported(learner, tokenizer, tmp_path)

    kind = AutoModelForImageTextToText
    model = peft.PeftModel.from_pretrained(kind.from_pretrained(tmp_path / "model"), out)
    adapted = {name.partition(".lora_A")[0] for name, _ in model.named_modules() if name.endswith(".lora_A")}
    assert len(adapted) == len(learner.policy.parameters()) // 2
    assert not any("visual" in name for name in adapted)
    torch.testing.assert_close(logits(model), logits(kind.from_pretrained(checkpoint)), **TOLERANCE)


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], "all-linear"])
def test_a_policy_starts_as_an_adapter_of_the_library(model_path, tmp_path, targets):
    torch.manual_seed(0)
    settings = peft.LoraConfig(
        r=2, lora_alpha=3, lora_dropout=0.1, target_modules=targets, task_type="CAUSAL_LM", init_lora_weights=False
    )
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model_path), settings)
    model.save_pretrained(tmp_path)

    names = targets if isinstance(targets, list) else []
    policy = Policy(model_path, lora=Lora(rank=2, alpha=3.0, targets=names, path=str(tmp_path)))
    merged = AutoModelForCausalLM.from_pretrained(model_path)
    merged.load_state_dict(dict(policy.named_weights()), strict=False)  # Tied weights come once.
    torch.testing.assert_close(logits(merged), logits(model), **TOLERANCE)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"use_rslora": True}, "use_rslora is True"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern is"),
        ({"modules_to_save": ["norm"]}, "modules_to_save is"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_adapters_of_the_library_are_one_sentence(model_path, tmp_path, settings, sentence):
    config = peft.LoraConfig(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj"], **settings)
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model_path), config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        Policy(model_path, lora=Lora(rank=2, alpha=3.0, targets=["q_proj", "v_proj"], path=str(tmp_path)))
