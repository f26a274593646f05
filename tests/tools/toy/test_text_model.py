"""The small Qwen3: its number of parameters, dense and as a mixture of experts."""

import pytest
import torch
from msgspec.structs import replace

from asyncrl.tools.toy.models import tokenizer_from_words
from asyncrl.tools.toy.step_sums import WORDS
from asyncrl.tools.toy.text_model import TextModelSizes, random_model

TOKENIZER = tokenizer_from_words(WORDS)
DENSE = TextModelSizes(layers=3, hidden_size=64, intermediate_size=192, heads=4, kv_heads=2, head_dim=16)


@pytest.mark.parametrize(("experts", "parameters"), [(0, 150_560), (4, 261_920)])
def test_the_models_have_as_many_parameters_as_the_module_says(experts: int, parameters: int) -> None:
    assert random_model(replace(DENSE, experts=experts), TOKENIZER, seed=0).num_parameters() == parameters


def test_the_same_seed_makes_the_same_experts_and_another_does_not() -> None:
    sizes = replace(DENSE, experts=4)
    one, same, other = (random_model(sizes, TOKENIZER, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(weight, same[name]) for name, weight in one.items())
    assert not all(torch.equal(weight, other[name]) for name, weight in one.items())
