from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from asyncrl.algo import logprobs
from asyncrl.algo.logprobs import (
    MEASURED_EVERY,
    REMOVED,
    SamplingMask,
    Scores,
    add_product,
    chunk_logits,
    head_logits,
    product,
    ready_kernels,
    score_states,
)
from asyncrl.trainer.activations import LiveBytes
from tests.algo.losses.worked import grad_of


def allowed() -> dict[str, bool]:
    cuda = torch.backends.cuda
    return {
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
    }


def test_on_cuda_no_attention_makes_a_plan_for_each_shape() -> None:
    before = allowed()
    with ready_kernels(torch.device("cuda:0")):
        inside = allowed()
    assert inside == {"flash": True, "efficient": True, "math": True, "cudnn": False}
    assert allowed() == before


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_elsewhere_nothing_is_chosen(kind: str) -> None:
    before = allowed()
    with ready_kernels(torch.device(kind)):
        assert allowed() == before


# ── test logprobs ─────────────────────────────────────────────────────────────────────────────

N, H, V = 23, 8, 50
Inputs = tuple[Any, Any, Any, Any]
"""[N, H] states, [V, H] weight and [V] bias of the head, [N] token ids."""


class Formula:
    """Float64 NumPy, the whole [N, V] at once."""

    def __init__(self, states: np.ndarray, weight: np.ndarray, bias: np.ndarray, ids: np.ndarray, temperature: float):
        scaled = (states @ weight.T + bias) / temperature
        self.p = np.exp(scaled - scaled.max(1, keepdims=True))
        self.p /= self.p.sum(1, keepdims=True)
        self.logprobs = np.log(self.p[np.arange(len(ids)), ids])
        self.entropy = -(self.p * np.log(self.p)).sum(1)
        self.sum_pi_squared = (self.p**2).sum(1)
        self.inputs = states, weight, ids, temperature

    def gradients(self, push: np.ndarray, push_entropy: np.ndarray) -> tuple[np.ndarray, ...]:
        """Gradients of sum(push · logprobs + push_entropy · entropy) with respect to states, weight and bias."""
        states, weight, ids, temperature = self.inputs
        of_logprob = np.eye(len(weight))[ids] - self.p
        of_entropy = -self.p * (np.log(self.p) + self.entropy[:, None])
        logits = (push[:, None] * of_logprob + push_entropy[:, None] * of_entropy) / temperature
        return logits @ weight, logits.T @ states, logits.sum(0)


@pytest.fixture
def inputs() -> Inputs:
    random = np.random.default_rng(4)
    states, weight, bias = (random.normal(scale=1.5, size=shape) for shape in ((N, H), (V, H), (V,)))
    return states, weight, bias, random.integers(0, V, N)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
@pytest.mark.parametrize("rows", [1, 4, N - 1, N], ids=lambda rows: f"{rows} rows at a time")
def test_values_and_gradients_are_the_formulas_however_many_rows_are_alive(
    inputs: Inputs, rows: int, temperature: float
) -> None:
    formula = Formula(*inputs, temperature)
    tensors = [torch.tensor(array, requires_grad=array.dtype == np.float64) for array in inputs]
    scores = score_states(
        *tensors,
        temperature=temperature,
        dtype=torch.float64,
        entropy=True,
        sum_pi_squared=True,
        chunk=rows * V,
    )
    push, push_entropy = np.random.default_rng(5).normal(size=(2, N))
    assert scores.entropy is not None
    (scores.logprobs @ torch.tensor(push) + scores.entropy @ torch.tensor(push_entropy)).backward()

    for name in Scores._fields:
        np.testing.assert_allclose(getattr(scores, name).detach(), getattr(formula, name), rtol=1e-10, atol=1e-12)
    for tensor, expected in zip(tensors, formula.gradients(push, push_entropy), strict=False):
        np.testing.assert_allclose(grad_of(tensor), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rows", [4, N], ids=lambda rows: f"{rows} rows at a time")
def test_banned_tokens_have_no_probability_and_the_others_have_all_of_it(inputs: Inputs, rows: int) -> None:
    """As if the head had no rows for them; their own gradient is zero."""
    states, weight, bias, ids = inputs
    banned = np.setdiff1d(np.arange(0, V, 3), ids)
    kept = np.setdiff1d(np.arange(V), banned)
    push, push_entropy = torch.tensor(np.random.default_rng(5).normal(size=(2, N)))

    def scored(weight: np.ndarray, bias: np.ndarray, ids: np.ndarray, **options: Any) -> tuple[Scores, list[Any]]:
        tensors = [
            torch.tensor(array, requires_grad=array.dtype == np.float64) for array in (states, weight, bias, ids)
        ]
        exact: dict[str, Any] = {"temperature": 0.7, "dtype": torch.float64, "entropy": True, "sum_pi_squared": True}
        score: Any = score_states
        scores: Scores = score(*tensors, **exact, **options)
        assert scores.entropy is not None
        (scores.logprobs @ push + scores.entropy @ push_entropy).backward()
        return scores, [grad_of(tensor) for tensor in tensors[:3]]

    got, grads = scored(weight, bias, ids, banned=torch.tensor(banned), chunk=rows * V)
    expected, (of_states, of_weight, of_bias) = scored(weight[kept], bias[kept], np.asarray(np.searchsorted(kept, ids)))
    for name in Scores._fields:
        np.testing.assert_allclose(getattr(got, name).detach(), getattr(expected, name).detach(), rtol=1e-10)
    np.testing.assert_allclose(grads[0], of_states, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(grads[1][kept], of_weight, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(grads[2][kept], of_bias, rtol=1e-9, atol=1e-11)
    assert not grads[1][banned].any()
    assert not grads[2][banned].any()


@pytest.mark.parametrize("wanted", [{}, {"entropy": True}, {"sum_pi_squared": True}], ids=str)
def test_what_is_not_asked_for_is_not_there_and_changes_nothing(inputs: Inputs, wanted: dict[str, Any]) -> None:
    states, weight, bias, ids = (torch.tensor(array) for array in inputs)
    scores = score_states(states, weight, bias, ids, temperature=1.0, dtype=torch.float64, **wanted)

    assert {name for name in Scores._fields[1:] if getattr(scores, name) is not None} == set(wanted)
    np.testing.assert_allclose(scores.logprobs, Formula(*inputs, 1.0).logprobs, rtol=1e-10)


@pytest.mark.parametrize("chunk", [None, 4 * V])
def test_an_entropy_in_no_loss_takes_its_numbers_alone_and_the_same_gradient(inputs: Inputs, chunk: int | None) -> None:
    peaks, gradients = [], []
    for entropy in (0, MEASURED_EVERY):
        states, weight, bias = (torch.tensor(array, requires_grad=True) for array in inputs[:3])
        ids = torch.tensor(inputs[3])
        with LiveBytes(states, weight, bias, ids) as live:
            scores = score_states(states, weight, bias, ids, temperature=1.0, entropy=entropy, chunk=chunk)
            scores.logprobs.sum().backward()
        peaks.append(live.peak)
        gradients.append([grad_of(one) for one in (states, weight, bias)])

    assert peaks[1] - peaks[0] <= 2 * N * 8, "beside the logits in memory there is room for no others"
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize(("every", "rows"), [(2, N), (8, N), (8, 5), (50, N)])
def test_tokens_in_a_row_get_the_entropy_of_the_first_of_them(inputs: Inputs, every: int, rows: int) -> None:
    parts = (torch.tensor(array) for array in inputs)
    scores = score_states(*parts, temperature=1.0, dtype=torch.float64, entropy=every, chunk=rows * V)
    assert scores.entropy is not None
    firsts = [place - place % rows % every for place in range(N)]
    np.testing.assert_allclose(scores.entropy, Formula(*inputs, 1.0).entropy[firsts], rtol=1e-10)


def test_an_entropy_alone_has_its_gradient(inputs: Inputs) -> None:
    states, weight, bias, ids = (torch.tensor(array, requires_grad=array.dtype.kind == "f") for array in inputs)
    scores = score_states(states, weight, bias, ids, temperature=1.0, dtype=torch.float64, entropy=True)
    assert scores.entropy is not None
    scores.entropy.sum().backward()

    expected = Formula(*inputs, 1.0).gradients(np.zeros(N), np.ones(N))
    for tensor, gradient in zip((states, weight, bias), expected, strict=False):
        np.testing.assert_allclose(grad_of(tensor), gradient, rtol=1e-9, atol=1e-11)


def test_two_even_tokens_have_log_prob_minus_log_two_and_entropy_log_two() -> None:
    head = torch.tensor([[1.0], [1.0]])
    scores = score_states(
        torch.ones(1, 1), head, None, torch.tensor([1]), temperature=0.5, entropy=True, sum_pi_squared=True
    )
    assert [float(part) for part in scores if part is not None] == pytest.approx([-0.693147, 0.693147, 0.5], abs=1e-6)


def test_a_frozen_head_gets_no_gradient_and_costs_none(inputs: Inputs) -> None:
    states, weight, bias, ids = (torch.tensor(array) for array in inputs)
    states.requires_grad_()
    score_states(states, weight, bias, ids, temperature=1.0, dtype=torch.float64).logprobs.sum().backward()
    assert weight.grad is None
    np.testing.assert_allclose(grad_of(states), Formula(*inputs, 1.0).gradients(np.ones(N), np.zeros(N))[0], rtol=1e-9)


def test_log_probs_of_a_bfloat16_head_are_those_of_float32_products(inputs: Inputs) -> None:
    rounded = [torch.tensor(array).bfloat16() for array in inputs[:3]]
    tensors = states, weight, bias = [tensor.float().requires_grad_() for tensor in rounded]
    ids = torch.tensor(inputs[3])
    scores = score_states(states, weight, bias, ids, temperature=0.7, dtype=torch.bfloat16, chunk=4 * V, entropy=True)
    scores.logprobs.sum().backward()
    exact = [tensor.double().numpy() for tensor in rounded]
    formula = Formula(exact[0], exact[1], exact[2], inputs[3], 0.7)

    assert scores.logprobs.dtype == torch.float32
    np.testing.assert_allclose(scores.logprobs.detach(), formula.logprobs, rtol=0, atol=1e-5)
    assert scores.entropy is not None
    np.testing.assert_allclose(scores.entropy.detach(), formula.entropy, rtol=0, atol=1e-5)
    for tensor, expected in zip(tensors, formula.gradients(np.ones(N), np.zeros(N)), strict=True):
        assert grad_of(tensor).dtype == torch.float32
        np.testing.assert_allclose(grad_of(tensor), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("rows", [1, 5, N], ids=lambda rows: f"{rows} rows at a time")
def test_over_a_sampling_mask_it_is_the_formula_over_the_ids_that_are_left(inputs: Inputs, rows: int) -> None:
    """The formula has a bias of minus infinity for the others; one token has no mask."""
    states, weight, bias, ids = inputs
    random = np.random.default_rng(6)
    masks = [sorted({int(token), *random.integers(0, V, 9).tolist()}) for token in ids]
    masks[3] = []
    mask = SamplingMask(
        torch.tensor([len(one) for one in masks]),
        torch.tensor([token for one in masks for token in one]),
        [0, *np.cumsum([len(one) for one in masks]).tolist()],
    )
    tensors = [torch.tensor(array, requires_grad=array.dtype == np.float64) for array in inputs]
    scores = score_states(
        *tensors, temperature=0.7, dtype=torch.float64, entropy=True, sum_pi_squared=True, mask=mask, chunk=rows * V
    )
    push, push_entropy = random.normal(size=(2, N))
    assert scores.entropy is not None
    (scores.logprobs @ torch.tensor(push) + scores.entropy @ torch.tensor(push_entropy)).backward()

    gradients = [np.zeros_like(array) for array in inputs[:3]]
    for n, mask_ids in enumerate(masks):
        left = mask_ids or list(range(V))
        formula = Formula(states[n : n + 1], weight[left], bias[left], np.array([left.index(ids[n])]), 0.7)
        for name in Scores._fields:
            np.testing.assert_allclose(getattr(scores, name)[n].item(), getattr(formula, name)[0], rtol=1e-9)
        of_states, of_weight, of_bias = formula.gradients(push[n : n + 1], push_entropy[n : n + 1])
        gradients[0][n] = of_states[0]
        gradients[1][left] += of_weight
        gradients[2][left] += of_bias
    for tensor, expected in zip(tensors, gradients, strict=False):
        np.testing.assert_allclose(grad_of(tensor), expected, rtol=1e-8, atol=1e-11)


def test_no_tokens_give_no_scores_and_gradients_of_zero(inputs: Inputs) -> None:
    tensors = states, weight, bias = [torch.tensor(array, requires_grad=True) for array in inputs[:3]]
    none = torch.zeros(0, dtype=torch.int64)
    scores = score_states(states[:0], weight, bias, none, temperature=1.0, dtype=torch.float64, entropy=True)
    assert scores.entropy is not None
    (scores.logprobs.sum() + scores.entropy.sum()).backward()

    assert scores.logprobs.shape == scores.entropy.shape == (0,)
    assert all(not grad_of(tensor).any() for tensor in tensors)


def test_logits_of_all_tokens_exist_at_no_time(inputs: Inputs) -> None:
    """Forward and backward: no tensor that torch hands out has more numbers than a chunk."""
    tensors = [torch.tensor(array, requires_grad=array.dtype == np.float64) for array in inputs]
    with _Largest() as largest:
        score_states(
            *tensors, temperature=1.0, dtype=torch.float64, entropy=True, chunk=12 * V
        ).logprobs.sum().backward()
    assert largest.numbers == 12 * V < N * V


class _Largest(TorchFunctionMode):
    """Remembers the largest tensor that any function gave back."""

    numbers = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


def test_chunks_of_any_size_give_the_same_values_to_the_rounding_of_float32(inputs: Inputs) -> None:
    """Those of a GPU are eight times those of a CPU."""
    assert chunk_logits("cuda") == 8 * chunk_logits("cpu")
    found = []
    for chunk in (3 * V, 8 * 3 * V, None):
        tensors = [torch.tensor(array).float().requires_grad_() for array in inputs[:3]]
        states, weight, bias = tensors
        scores = score_states(states, weight, bias, torch.tensor(inputs[3]), temperature=1.0, chunk=chunk)
        scores.logprobs.sum().backward()
        found.append([scores.logprobs.detach(), *map(grad_of, tensors)])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-5)


# ── test products ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("chunk", [1, 7 * 16, 1 << 25], ids=lambda chunk: f"{chunk} elements at a time")
def test_products_of_bfloat16_are_those_of_float32(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(logprobs, "CHUNK", chunk)
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
    monkeypatch.setattr(logprobs, "CHUNK", chunk)
    left, right = torch.randn(5, 16).to(dtype), torch.randn(16, 50).to(dtype)
    total = torch.randn(5, 50, dtype=torch.promote_types(dtype, torch.float32))
    expected = total.double() + left.double() @ right.double()
    add_product(total, left, right)
    torch.testing.assert_close(total.double(), expected, rtol=1e-6, atol=1e-5)


# ── test sampling mask ────────────────────────────────────────────────────────────────────────

MASK = SamplingMask(torch.tensor([2, 0, 1]), torch.tensor([0, 3, 2]), [0, 2, 2, 3])
"""Of three tokens; the second has none."""


def logits() -> torch.Tensor:
    return torch.arange(12, dtype=torch.float64).view(3, 4)


def test_logits_outside_the_mask_are_removed_and_a_token_without_a_mask_keeps_all() -> None:
    x = REMOVED
    assert MASK.apply(logits(), slice(0, 3)).tolist() == [[0, x, x, 3], [4, 5, 6, 7], [x, x, 10, x]]


def test_some_rows_have_the_masks_of_these_rows() -> None:
    x = REMOVED
    assert MASK.apply(logits()[:2], slice(1, 5)).tolist() == [[0, 1, 2, 3], [x, x, 6, x]], "the last slice may be short"
    assert MASK.apply(logits()[:1], slice(1, 2)).tolist() == [[0, 1, 2, 3]]


def test_a_removed_id_has_no_probability_and_no_part_in_the_entropy() -> None:
    log_p = MASK.apply(logits(), slice(0, 3)).log_softmax(-1)
    p = log_p.exp()
    assert p[0].count_nonzero() == 2
    assert p[2].tolist() == [0, 0, 1, 0]
    assert float((p * log_p)[2].sum()) == 0
