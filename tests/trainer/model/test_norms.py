import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from asyncrl.trainer.model.norms import fuse_norms

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
