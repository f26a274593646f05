"""Models are refused by config and shapes alone, as a dry run does it."""

import json
from pathlib import Path

import pytest
from transformers import (
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MambaConfig,
    Qwen2Config,
    Qwen3MoeConfig,
)

from asyncrl.config.model.weights import check_weights
from asyncrl.errors import ConfigError
from asyncrl.trainer.model.architecture import check_architecture, check_critic, check_lengths, check_sequence_parallel
from tests.conftest import make_vision_model

SMALL = {
    "vocab_size": 8,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}

UNKNOWN: dict[str, tuple[int, ...]] = {"a name of another format": (1 << 24,)}


def refusal(path: Path, shapes: dict[str, tuple[int, ...]]) -> str:
    with pytest.raises(ConfigError) as refused:
        check_architecture(path, shapes, "model.path")
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(str(path), "MODEL")


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3MoeConfig])
def test_models_with_attention_and_a_linear_head_are_accepted(kind, tmp_path):
    kind(**SMALL).save_pretrained(tmp_path)
    assert check_architecture(tmp_path, UNKNOWN, "model.path").hidden_size == 16


def test_a_saved_model_has_the_shapes_of_its_config(save_model):
    path = save_model()
    check_architecture(path, check_weights(path, "model.path"), "model.path")


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_models_that_read_pictures_are_accepted_by_their_text(family, tmp_path):
    make_vision_model(tmp_path, family)
    found = check_architecture(tmp_path, check_weights(tmp_path, "model.path"), "model.path")
    assert (found.vocab_size, found.hidden_size) == (32, 32)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (Gemma2Config(**SMALL, final_logit_softcapping=30.0), "Gemma2ForCausalLM computes its logits with more than a"),
        (MambaConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1), "MambaForCausalLM mixes the tokens of a row"),
        (BloomConfig(vocab_size=8, hidden_size=16, n_layer=1, n_head=2), "BloomForCausalLM of transformers"),
    ],
    ids=["capped", "recurrent", "own attention"],
)
def test_what_the_trainer_cannot_compute_is_refused_without_weights(config, sentence, tmp_path):
    config.save_pretrained(tmp_path)
    assert f"model.path=MODEL: {sentence}" in refusal(tmp_path, UNKNOWN)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"model_type": "unheard"}, "has no model of model_type 'unheard'; use a model of a type that it has"),
        ({}, "has no model of model_type None; use a model of a type that it has"),
        ({"model_type": "vit"}, "model.path=MODEL: 'vit' is not a causal language model (model_type in config.json)"),
        ({"model_type": "qwen3", "hidden_act": "unheard"}, "no model can be made by its config.json: KeyError: "),
        ({"model_type": "qwen3", "hidden_size": "wide"}, "its config.json is not one of model_type 'qwen3': "),
        ({"model_type": "unheard", "auto_map": {"AutoConfig": "mine.Mine"}}, "has no model of model_type 'unheard'"),
    ],
    ids=["unknown", "none", "vision", "wrong value", "wrong type", "code of its own"],
)
def test_a_type_that_is_no_language_model_is_named(said, sentence, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert sentence in refusal(tmp_path, UNKNOWN)


def test_weights_that_do_not_fit_the_config_are_named(save_model):
    path = save_model()
    shapes = check_weights(path, "model.path")
    assert "has shape [3, 3], but by config.json it must have [16]" in refusal(
        path, shapes | {"model.norm.weight": (3, 3)}
    )
    del shapes["model.norm.weight"]
    assert "1 weights are missing from its safetensors and would start random, first 'model.norm.weight'" in refusal(
        path, shapes
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"num_attention_heads": 2},
            "trainer.sequence_parallel is 4, which does not divide the 2 attention heads of MODEL; use a divisor of "
            "both the heads and trainer.ranks",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "trainer.sequence_parallel is 4, but the rotary embeddings of MODEL ('dynamic') depend on the last "
            "position of a row, of which a rank has only a part; set it to 1",
        ),
    ],
    ids=["heads", "rotary"],
)
def test_a_model_whose_rows_cannot_be_shared_is_refused(settings, sentence):
    config = LlamaConfig(**SMALL | {"num_attention_heads": 4} | settings)
    check_sequence_parallel(config, 1, "MODEL")
    with pytest.raises(ConfigError) as refused:
        check_sequence_parallel(config, 4, "MODEL")
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, 64),
        (
            {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 32,
            },
            32,
        ),
    ],
    ids=["dynamic", "longrope"],
)
def test_rotary_embeddings_that_depend_on_a_long_neighbour_are_refused_for_long_sequences_alone(rope, limit):
    config = LlamaConfig(**SMALL | {"max_position_embeddings": 64, "rope_parameters": rope})
    check_lengths(config, limit, "MODEL")
    with pytest.raises(ConfigError, match=rf"beside one of more than {limit} tokens, .* up to {limit + 1}"):
        check_lengths(config, limit + 1, "MODEL")
    check_lengths(LlamaConfig(**SMALL), 10**6, "MODEL")


def test_a_type_without_a_value_model_is_refused():
    check_critic(LlamaConfig(**SMALL), "MODEL")
    with pytest.raises(ConfigError, match=r"no value model .* of the type 'gemma3_text'; set critic\.path"):
        check_critic(Gemma3TextConfig(**SMALL), "MODEL")


def test_key_heads_need_not_be_divided_and_layers_may_slide():
    check_sequence_parallel(LlamaConfig(**SMALL | {"num_attention_heads": 4}), 4, "MODEL")
    check_sequence_parallel(Gemma3TextConfig(**SMALL | {"num_attention_heads": 4}), 4, "MODEL")
