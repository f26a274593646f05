import pytest
import torch
from transformers import MistralConfig, Qwen3Config

from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.transformers.forward import ModelForward, causal_bias, check_attention
from asyncrl.rollout.engines.transformers.kv_cache import KVCache

INF = torch.inf


def test_the_bias_hides_what_comes_after_the_query():
    bias = causal_bias(torch.tensor([0, 2]), torch.arange(4), torch.float32)

    assert bias.tolist() == [[0, -INF, -INF, -INF], [0, 0, 0, -INF]]


def test_a_step_after_a_prefill_gives_the_logits_of_the_whole_sequence(make_model):
    model, ids = make_model("llama"), torch.randint(0, 64, (1, 6))
    forward = ModelForward(model, KVCache(model.config, slots=2, positions=8, dtype=model.dtype, device=model.device))

    with torch.inference_mode():
        forward.prefill(torch.tensor([0]), ids[:, :5], torch.tensor([5]))
        last = forward.step(ids[:, 5], torch.tensor([5]), torch.tensor([5]), 6)
        expected = model(ids).logits[:, -1]

    torch.testing.assert_close(last, expected, atol=1e-5, rtol=1e-5)


def test_a_model_whose_keys_have_another_width_than_the_cache_is_refused(make_model):
    model, other = make_model("llama"), Qwen3Config(num_hidden_layers=2, hidden_size=16, num_attention_heads=2)
    cache = KVCache(other, slots=2, positions=8, dtype=model.dtype, device=model.device)
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM does not keep its keys .*rollout\.engine = \"vllm\""):
        ModelForward(model, cache)


def test_a_window_shorter_than_a_slot_is_refused():
    config = MistralConfig(sliding_window=64, max_position_embeddings=512)

    check_attention(config, 64)
    with pytest.raises(ConfigError, match="attends to 64 tokens, but a slot holds 65"):
        check_attention(config, 65)


def test_a_window_that_is_switched_off_does_not_count():
    check_attention(Qwen3Config(sliding_window=64, use_sliding_window=False, max_position_embeddings=512), 100)


def test_layers_without_attention_are_refused():
    config = Qwen3Config(num_hidden_layers=2)
    config.layer_types = ["full_attention", "linear_attention"]

    with pytest.raises(ConfigError, match="'linear_attention'"):
        check_attention(config, 64)


def test_a_slot_longer_than_the_models_positions_is_refused():
    with pytest.raises(ConfigError, match="knows 256 positions"):
        check_attention(Qwen3Config(max_position_embeddings=256), 257)
