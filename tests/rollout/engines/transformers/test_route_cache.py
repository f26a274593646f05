import pytest
import torch

from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.transformers.route_cache import RouteCache

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
