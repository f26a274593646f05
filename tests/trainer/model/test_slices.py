"""Each element of each checkpoint tensor is held by exactly one rank, at the place where its parameter has it."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from asyncrl.errors import BrokenInvariant
from asyncrl.trainer.model.slices import held, local_slices
from asyncrl.trainer.ranks.sharding import chunk, local_rows
from asyncrl.weights.contents.names import View, checkpoint_tensors, checkpoint_views, saved_tensors

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
    assert torch.equal(view.of(whole), whole.t())


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
