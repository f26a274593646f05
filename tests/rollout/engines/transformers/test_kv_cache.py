import pytest
import torch
from transformers import GPT2Config, Qwen3Config

from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.transformers.kv_cache import KVCache, RouteCache, longest_kept


def test_the_slot_with_the_longest_beginning_is_found() -> None:
    kept = {3: (1, 2), 5: (1, 2, 3), 6: (1, 2, 4, 4)}
    assert longest_kept(kept, (1, 2, 3, 4, 5)) == (5, 3)
    assert longest_kept(kept, (1, 2, 9)) == (3, 2)
    assert longest_kept({}, (1, 2, 9)) == (-1, 0)


def test_the_last_token_of_a_prefix_is_always_fed() -> None:
    assert longest_kept({3: (1, 2)}, (1, 2)) == (-1, 0)


# ── test kv cache ─────────────────────────────────────────────────────────────────────────────

CONFIG = Qwen3Config(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=3, hidden_size=12)


def make_cache() -> KVCache:
    return KVCache(CONFIG, slots=3, positions=4, dtype=torch.float32, device=torch.device("cpu"))


def test_only_written_cells_are_read_back():
    cache, written = make_cache(), torch.randn(2, 12)

    cache.write(0, torch.tensor([0 * 4 + 2, 1 * 4 + 3]), written)

    keys, values = cache.read(0, rows=2, length=4)
    assert torch.equal(keys[0, :, 2].flatten(), written[0, :6])
    assert torch.equal(values[1, :, 3].flatten(), written[1, 6:])
    assert keys.count_nonzero() == values.count_nonzero() == 2 * 6
    assert not cache.read(1, rows=3, length=4)[0].any()


def test_a_copy_takes_the_first_positions_of_every_layer():
    cache = make_cache()
    for layer in range(2):
        cache.write(layer, torch.arange(4), torch.randn(4, 12))

    cache.copy(0, 2, length=3)

    for layer in range(2):
        keys, _ = cache.read(layer, rows=3, length=4)
        assert torch.equal(keys[2, :, :3], keys[0, :, :3])
        assert not keys[2, :, 3].any()


def test_slots_are_gathered_in_the_order_asked_for():
    cache = make_cache()
    cache.storage.copy_(torch.randn(cache.storage.shape))

    keys, values = cache.gather(1, torch.tensor([2, 0]), length=3)

    assert torch.equal(keys[0], cache.storage[1, 2, :3, 0].transpose(0, 1))
    assert torch.equal(values[1], cache.storage[1, 0, :3, 1].transpose(0, 1))


def test_sizes_a_config_leaves_out_follow_from_the_others():
    config = GPT2Config(n_layer=1, n_head=4, n_embd=12)

    cache = KVCache(config, slots=1, positions=1, dtype=torch.float32, device=torch.device("cpu"))

    assert (cache.kv_heads, cache.head_dim) == (4, 3)


# ── test route cache ──────────────────────────────────────────────────────────────────────────

POSITIONS = 8


def test_what_the_routers_choose_is_stored_in_the_cells_of_the_tokens(make_model) -> None:
    model = make_model("qwen3_moe")
    cache = RouteCache(model, slots=2, positions=POSITIONS)
    cache.cells = torch.tensor([8, 9, 10])  # slot 1
    with torch.inference_mode():
        model(torch.tensor([[3, 5, 7]]))
        chosen = model.model.layers[1].mlp.gate(torch.zeros(1, 32))[2]

    stored = cache.read(1, 0, 3)
    assert stored.shape == (3, 2, chosen.shape[1])
    assert stored.dtype == "uint8"
    assert (stored[..., 0] != stored[..., 1]).all(), "a token takes distinct experts"
    assert not cache.read(0, 0, POSITIONS).any()


def test_a_slot_is_copied_and_what_was_read_stays(make_model) -> None:
    cache = RouteCache(make_model("qwen3_moe"), slots=2, positions=POSITIONS)
    cache.storage[:5] = 3
    cache.copy(0, 1, 4)
    read = cache.read(1, 1, 6)
    cache.storage[:] = 1
    assert read[:, 0, 0].tolist() == [3, 3, 3, 0, 0]


def test_a_dense_model_has_no_experts_to_record(make_model) -> None:
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM has no mixture of experts; set it to false"):
        RouteCache(make_model("qwen3"), slots=2, positions=POSITIONS)


def test_the_planned_bytes_are_enough(make_model) -> None:
    model = make_model("qwen3_moe")
    cache = RouteCache(model, slots=2, positions=POSITIONS)
    assert cache.storage.nbytes <= RouteCache.num_bytes(model.config, 2, POSITIONS) <= 2 * cache.storage.nbytes
