import pytest
import torch

from asyncrl.errors import ConfigError, EngineError
from asyncrl.rollout.engines import parameters
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import checkpoint_tensors


def test_specs_have_name_shape_and_dtype(make_model):
    first = parameters.specs(make_model().bfloat16())[0]

    assert first == TensorSpec(name="model.embed_tokens.weight", shape=(64, 32), dtype="bfloat16")


def test_loading_changes_values_and_keeps_the_parameters(make_model):
    model, new = make_model(), make_model(seed=1)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]

    parameters.load(model, dict(new.named_parameters()))

    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), new.parameters(), strict=True))
    assert torch.equal(model.lm_head.weight, new.model.embed_tokens.weight)


def test_missing_and_unknown_names_are_refused(make_model):
    model = make_model()
    weights = dict(model.named_parameters())
    norm = weights.pop("model.norm.weight")

    with pytest.raises(EngineError, match=r"the weights lack 'model\.norm\.weight'; send"):
        parameters.load(model, weights)
    with pytest.raises(EngineError, match="weights have 'a' and 1 more, unknown to the model"):
        parameters.load(model, weights | {"model.norm.weight": norm, "a": norm, "b": norm})


def test_one_wrong_shape_leaves_every_parameter_as_it_was(make_model):
    model, before = make_model(), make_model()
    weights = dict(make_model(seed=1).named_parameters()) | {"model.norm.weight": torch.ones(1)}

    with pytest.raises(EngineError, match=r"has shape \(1,\), but the model's has \(32,\)"):
        parameters.load(model, weights)

    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_single_experts_are_copied_into_their_fused_tensor(make_model):
    model, new = make_model("qwen3_moe"), make_model("qwen3_moe", seed=1)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    weights = {name: tensor.clone() for name, tensor in checkpoint_tensors(new)}
    assert "model.layers.0.mlp.experts.2.up_proj.weight" in weights

    parameters.load(model, weights)

    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), new.parameters(), strict=True))


def test_one_expert_missing_leaves_every_parameter_as_it_was(make_model):
    model, before = make_model("qwen3_moe"), make_model("qwen3_moe")
    weights = dict(checkpoint_tensors(make_model("qwen3_moe", seed=1)))
    del weights["model.layers.1.mlp.experts.0.down_proj.weight"]

    with pytest.raises(EngineError, match=r"weights lack 'model\.layers\.1\.mlp\.experts\.0\.down_proj\.weight'; send"):
        parameters.load(model, weights)

    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_a_model_whose_checkpoints_are_in_another_order_is_refused(make_model, monkeypatch):
    def reordered(_model, tensors):
        return {name: tensor.flip(0) for name, tensor in tensors.items()}

    parameters.check_loadable(make_model())
    monkeypatch.setattr("asyncrl.weights.contents.names.revert_weight_conversion", reordered)
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM stores weights in another order"):
        parameters.check_loadable(make_model())
