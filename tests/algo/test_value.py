import numpy as np
import pytest
import torch

from asyncrl.algo.value import explained_variance, value_loss
from tests.algo.losses.padded import random_padded, slope
from tests.algo.losses.worked import grad_of


@pytest.mark.parametrize(
    ("value", "loss", "grad", "is_clipped"),
    [
        # the old prediction is 0 and the return 1
        pytest.param(0.0, 0.5, -1.0, False, id="as before: half the squared error"),
        pytest.param(0.3, 0.245, -0.7, False, id="moved by less than the clip"),
        pytest.param(0.8, 0.125, 0.0, True, id="moved further towards the return: no push"),
        pytest.param(-0.8, 1.62, -1.8, False, id="moved away: full push back"),
        pytest.param(3.0, 2.0, 2.0, False, id="moved beyond the return: full push back"),
    ],
)
def test_a_prediction_that_has_moved_enough_is_not_pushed_on(
    value: float, loss: float, grad: float, is_clipped: bool
) -> None:
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    losses, clipped = value_loss(values, torch.zeros(1), torch.ones(1), value_clip=0.5)
    losses.sum().backward()

    assert losses.item() == pytest.approx(loss)
    assert grad_of(values).item() == pytest.approx(grad)
    assert clipped.item() == is_clipped


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prediction_within_the_clip_is_never_counted_as_clipped(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    values, old = (0.1 * torch.randn(2, 4096, generator=generator)).clamp(-0.2, 0.2).to(dtype)
    returns = torch.randn(4096, generator=generator).to(dtype)

    _, is_clipped = value_loss(values, old, returns, value_clip=0.5)
    assert not is_clipped.any(), "not even those that rounding moves"


@pytest.mark.parametrize("seed", range(4))
def test_values_and_gradients_match_the_masked_formula_in_float64(seed: int) -> None:
    batch = random_padded(seed)
    values, old, returns = batch.logprobs, batch.old_logprobs, 2 * batch.advantages

    def formula(new):
        bounded = np.clip(new, old - 0.5, old + 0.5)
        return 0.5 * np.maximum((new - returns) ** 2, (bounded - returns) ** 2) * batch.mask

    predicted = batch.flat(values, requires_grad=True)
    losses, _ = value_loss(predicted, batch.flat(old), batch.flat(returns))
    losses.sum().backward()

    np.testing.assert_allclose(losses.detach().numpy(), formula(values)[batch.mask], rtol=1e-6, atol=1e-6)
    gradient = slope(formula, values)[batch.mask]
    np.testing.assert_allclose(grad_of(predicted).numpy(), gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ([1.0, 3.0, 2.0], 1.0),
        ([7.0, 9.0, 8.0], 1.0),
        ([2.0, 2.0, 2.0], 0.0),
        ([3.0, 1.0, 2.0], -3.0),
        ([1.0, 2.0, 2.0], 2 / 3),
    ],
    ids=["all of it", "all but a constant", "nothing", "worse than nothing", "most of it"],
)
def test_explained_variance_is_the_share_of_it_that_was_foreseen(values: list[float], share: float) -> None:
    returns = np.array([1.0, 3.0, 2.0])
    assert explained_variance(np.array(values), returns) == pytest.approx(share)


def test_returns_that_do_not_differ_have_nothing_to_explain() -> None:
    assert explained_variance(np.array([1.0, 2.0]), np.array([3.0, 3.0])) == 0.0
    assert explained_variance(np.zeros(0), np.zeros(0)) == 0.0
    assert explained_variance(np.array([1.0, 2.0]), np.array([0.1 + 0.2, 0.3])) == 0.0, "but for rounding"
