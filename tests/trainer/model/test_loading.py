import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from asyncrl.errors import BrokenInvariant, ConfigError
from asyncrl.trainer.model.loading import fuse_norms, held, load, local_slices, make_model, open_weights, pack, rounding
from asyncrl.trainer.ranks.sharding import Computation, chunk, local_rows
from asyncrl.weights.contents.names import View, checkpoint_tensors, checkpoint_views, saved_tensors

CPU = torch.device("cpu")


def loaded(
    path, kind=AutoModelForCausalLM, *, setting="model.path", may_lack=(), dtype=torch.float32, own="", **options
):
    model = make_model(path, kind, setting=setting, **options)
    computation = Computation(model)
    load(path, kind, computation, setting=setting, device=CPU, may_lack=may_lack, dtype=dtype)
    if own:
        model.set_attn_implementation(own)
    pack(computation, f"{setting}={path}", dtype, CPU)
    return model


def test_a_directory_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        loaded(tmp_path)


def test_a_model_with_missing_weights_is_refused(save_model):
    """transformers only warns, and trains random numbers."""
    path = save_model()
    weights = load_file(path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"1 weights are missing.*'model\.norm\.weight'"):
        loaded(path)


def refusal(path):
    with pytest.raises(ConfigError) as refused:
        loaded(path)
    return str(refused.value).replace(str(path), "MODEL")


def test_a_weight_that_is_not_finite_is_named(save_model):
    path = save_model(seed=3)
    weights = load_file(path / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][2, 3] = torch.nan
    weights["model.layers.1.mlp.up_proj.weight"][2, 4] = torch.inf
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    assert refusal(path) == (
        "model.path=MODEL: the weight 'model.layers.1.mlp.up_proj.weight' has 2 values that are NaN or infinite; copy "
        "the directory again, or use an earlier checkpoint"
    )


def test_weights_of_another_shape_are_one_sentence(save_model):
    path = save_model(seed=4)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"intermediate_size": 12}))
    assert refusal(path) == (
        "model.path=MODEL: the weight 'model.layers.0.mlp.down_proj.weight' has shape [16, 24], but by config.json it "
        "must have [16, 12]; use config and weights of one model"
    )


def test_another_vocabulary_and_a_file_cut_off_are_one_sentence_each(save_model):
    path = save_model(seed=5)
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(json.dumps(json.loads(text) | {"vocab_size": 99}))
    assert "config.json says vocab_size=99, but the weight 'model.embed_tokens.weight' has" in refusal(path)

    (path / "config.json").write_text(text)
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-100])
    assert "model.safetensors is damaged: expected" in refusal(path)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model_type": "unheard"}, "has no model of model_type 'unheard'; use a model of a type that it has"),
        ({"model_type": "vit"}, "no model can be made by its config.json: ValueError: "),
        ({"hidden_act": "unheard"}, "no model can be made by its config.json: KeyError: "),
    ],
)
def test_a_config_that_makes_no_model_is_one_sentence(save_model, settings, sentence):
    path = save_model(seed=6)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | settings))
    assert sentence in refusal(path)
    assert "\n" not in refusal(path)


def test_a_head_that_may_be_missing_is_zero_then(model_path):
    head = ("score.weight", "score.bias")
    kind = AutoModelForTokenClassification
    model = loaded(model_path, kind, setting="critic.path", may_lack=head, num_labels=1)
    assert model.score.weight.shape == (1, 16)
    assert not model.score.weight.any()
    assert not model.score.bias.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_that_mixes_a_row_by_more_than_attention_is_refused(tmp_path, dtype):
    """A recurrence runs on from one sequence into the next."""
    config = MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4, initializer_range=0.5)
    MambaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="MambaForCausalLM"):
        loaded(tmp_path, dtype=dtype)


def test_a_deep_model_is_not_refused_because_two_kernels_round_differently(save_model):
    """Here states of norm 40 differ by more than 1: on a GPU packed attention is another kernel than the model's."""
    path = save_model(seed=8, num_hidden_layers=36)
    weights = load_file(path / "model.safetensors")
    weights["model.norm.weight"].fill_(10.0)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    model = loaded(path, dtype=torch.bfloat16, own="eager")
    assert model.config._attn_implementation == "asyncrl_packed"


def test_positions_that_are_learned_start_again_with_each_sequence(tmp_path):
    config = GPT2Config(vocab_size=32, n_positions=64, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    assert loaded(tmp_path).config._attn_implementation == "asyncrl_packed"


def test_dropout_is_off(save_model):
    model = loaded(save_model(attention_dropout=0.5))
    assert not any(module.training for module in model.modules() if isinstance(module, nn.Module))


@torch.no_grad()
def test_what_layers_make_of_a_rounding_is_measured_in_the_dtype_that_is_computed_with(save_model):
    model = AutoModelForCausalLM.from_pretrained(save_model(), dtype=torch.float32)
    parts = list(torch.tensor([[2, 3, 4, 5, 6]]).split([2, 2, 1], 1))

    def states(*tokens: torch.Tensor) -> torch.Tensor:
        return model.model(input_ids=torch.cat(tokens, 1), use_cache=False).last_hidden_state

    usual = rounding(model, states, parts, torch.bfloat16)
    before = states(*parts)
    assert 0 < usual < 0.05
    assert torch.equal(states(*parts), before), "it leaves the model as it was"
    assert rounding(model, states, parts, torch.float32) < usual / 1000


# ── test norms ────────────────────────────────────────────────────────────────────────────────

WIDTHS = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": None,
}


def make(kind: str) -> AutoModelForCausalLM:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**WIDTHS))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    return model.eval()


def computed(model) -> tuple[torch.Tensor, list[torch.Tensor]]:
    logits = model(torch.arange(2, 20)[None]).logits
    return logits, list(torch.autograd.grad(logits.square().mean(), list(model.parameters())))


@pytest.mark.parametrize(
    ("kind", "norms"),
    [("qwen3", 9), ("qwen2", 5), ("llama", 5), ("olmo2", 9), ("phi3", 5), ("gemma3_text", 0), ("phi", 0)],
)
def test_norms_in_one_operation_give_the_values_and_gradients_of_a_model(kind: str, norms: int) -> None:
    model = make(kind)
    logits, gradients = computed(model)
    assert fuse_norms(model) == norms, "a norm of another formula is left as it is"
    ours, own_gradients = computed(model)
    torch.testing.assert_close(ours, logits, rtol=1e-5, atol=1e-5)
    for own, expected in zip(own_gradients, gradients, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)


# ── test slices ───────────────────────────────────────────────────────────────────────────────
# Each element of each checkpoint tensor is held by exactly one rank, at the place where its parameter has it.

SIZES = {
    "vocab_size": 33,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
MODELS = {
    "dense": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "experts": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SIZES, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12)
    ),
}


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", MODELS)
def test_the_slices_of_all_ranks_are_the_checkpoint(kind, num_ranks):
    model = MODELS[kind]()
    views = checkpoint_views(model, saved_tensors(model))
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert views is not None
    found = {name: torch.zeros_like(tensor, dtype=torch.int64) for name, tensor in checkpoint_tensors(model)}
    for rank in range(num_ranks):
        for view in views:
            shape = shapes[view.parameter]
            if (index := held(view, shape, chunk(range(shape[0]), num_ranks, rank))) is not None:
                found[view.name][index] += 1

    assert all((times == 1).all() for times in found.values())


@pytest.mark.parametrize("kind", MODELS)
def test_slices_are_the_memory_of_the_parameters(kind):
    model = MODELS[kind]()
    expected = {name: tensor.clone() for name, tensor in checkpoint_tensors(model)}
    for _, parameter in model.named_parameters():
        parameter.detach().zero_()
    views = checkpoint_views(model, saved_tensors(model))
    for name, index, tensor in local_slices(saved_tensors(model), views or []):
        tensor.copy_(expected[name][index])

    assert all(torch.equal(tensor, expected[name]) for name, tensor in checkpoint_tensors(model))


def test_a_transposed_view_is_cut_along_its_other_dimension():
    whole = torch.arange(24.0).reshape(6, 4)
    view = View("turned", "w", (4, 6), (1, 4), 0)
    assert held(view, (6, 4), range(2, 5)) == (slice(0, 4), slice(2, 5))
    assert torch.equal(view.select(whole), whole.t())


def test_rows_are_cut_as_torch_cuts_them():
    for size, num_chunks in ((7, 3), (4, 3), (2, 3), (9, 3)):
        chunks = [len(part) for part in torch.chunk(torch.zeros(size), num_chunks)]
        assert [len(chunk(range(size), num_chunks, rank)) for rank in range(num_chunks)][: len(chunks)] == chunks


def test_a_tensor_that_is_not_sharded_has_all_rows():
    weight = torch.zeros(3, 2)
    assert local_rows(weight) == (weight, range(3))


def test_a_view_across_rows_in_two_dimensions_is_refused():
    with pytest.raises(BrokenInvariant, match="both goes through the rows of w along dimensions"):
        held(View("both", "w", (2, 3), (12, 4), 0), (6, 4), range(3))


# ── test weight files ─────────────────────────────────────────────────────────────────────────


def test_only_the_slices_that_are_asked_for_are_read(tmp_path):
    weights = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)}
    save_file(weights, tmp_path / "model.safetensors")
    with open_weights(tmp_path) as files:
        assert torch.equal(files["a"][1:3, :2], weights["a"][1:3, :2])
        assert files["b"][:2].dtype == torch.bfloat16
        assert "a" in files
        assert "c" not in files


def test_a_directory_may_have_several_files(tmp_path):
    for number, name in enumerate("ab"):
        save_file({name: torch.full((2,), float(number))}, tmp_path / f"{name}.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with open_weights(tmp_path) as files:
        assert files["b"][:2].tolist() == [1.0, 1.0]
