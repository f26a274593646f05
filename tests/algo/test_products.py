import pytest
import torch

from asyncrl.algo import products
from asyncrl.algo.products import add_product, head_logits, product


@pytest.mark.parametrize("chunk", [1, 7 * 16, 1 << 25], ids=lambda chunk: f"{chunk} elements at a time")
def test_products_of_bfloat16_are_those_of_float32(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(products, "CHUNK", chunk)
    left, right = torch.randn(5, 16).bfloat16(), torch.randn(16, 50).bfloat16()
    found = product(left, right)

    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), left.double() @ right.double(), rtol=1e-6, atol=1e-5)
    assert not torch.allclose(found, (left @ right).float(), rtol=1e-4), "rounded to bfloat16, they would differ"


def test_wider_dtypes_keep_theirs() -> None:
    for dtype in (torch.float32, torch.float64):
        states, weight, bias = (torch.ones(shape, dtype=dtype) for shape in ((2, 3, 4), (5, 4), (5,)))
        assert torch.equal(head_logits(states, weight, bias), torch.full((2, 3, 5), 5.0, dtype=dtype))
        assert product(states[0], weight.T).dtype == dtype


@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 3)], ids=str)
def test_logits_have_the_shape_of_the_states_and_the_bias_in_them(shape: tuple[int, ...]) -> None:
    states, weight, bias = torch.randn(*shape, 2, 4).bfloat16(), torch.randn(5, 4).bfloat16(), torch.randn(5).bfloat16()
    found = head_logits(states, weight, bias)
    torch.testing.assert_close(found, states.float() @ weight.float().T + bias.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("chunk", [1, 7 * 16, 1 << 25], ids=lambda chunk: f"{chunk} elements at a time")
def test_a_product_is_added_to_a_total_as_if_it_were_computed_first(
    monkeypatch: pytest.MonkeyPatch, chunk: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(products, "CHUNK", chunk)
    left, right = torch.randn(5, 16).to(dtype), torch.randn(16, 50).to(dtype)
    total = torch.randn(5, 50, dtype=torch.promote_types(dtype, torch.float32))
    expected = total.double() + left.double() @ right.double()
    add_product(total, left, right)
    torch.testing.assert_close(total.double(), expected, rtol=1e-6, atol=1e-5)
