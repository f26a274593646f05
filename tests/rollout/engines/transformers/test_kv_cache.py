import torch
from transformers import GPT2Config, Qwen3Config

from asyncrl.rollout.engines.transformers.kv_cache import KVCache

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
