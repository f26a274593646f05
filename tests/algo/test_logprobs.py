import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.algo.logprobs import logprobs_of_hidden, logprobs_of_logits

N, H, V = 23, 8, 50


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_values_and_gradients_match_softmax_in_float64(temperature) -> None:
    random = np.random.default_rng(4)
    values, ids = random.normal(scale=3.0, size=(N, V)), random.integers(0, V, N)
    scaled = values / temperature
    probs = np.exp(scaled - scaled.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    grads = (np.eye(V)[ids] - probs) / temperature

    logits = torch.tensor(values, dtype=torch.float32, requires_grad=True)
    logprobs = logprobs_of_logits(logits, torch.tensor(ids), temperature=temperature)
    logprobs.sum().backward()

    np.testing.assert_allclose(logprobs.detach(), np.log(probs[np.arange(N), ids]), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(logits.grad, grads, atol=1e-6)


def test_two_even_tokens_have_a_log_prob_of_minus_log_two() -> None:
    logprobs = logprobs_of_logits(torch.tensor([[5.0, 5.0]]), torch.tensor([1]), temperature=0.5)
    assert logprobs.item() == pytest.approx(-0.693147, abs=1e-6)


@pytest.mark.parametrize("rows", [1, 4, N - 1, N])
def test_chunks_of_the_vocabulary_change_neither_value_nor_gradient(rows) -> None:
    def run(chunk: int) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        head, hidden = nn.Linear(H, V, bias=False), torch.randn(N, H, requires_grad=True)
        ids = torch.randint(V, (N,))
        logprobs = logprobs_of_hidden(hidden, head, ids, temperature=0.8, vocab_size=V, chunk=chunk)
        logprobs.square().sum().backward()
        return logprobs.detach(), hidden.grad, head.weight.grad

    for whole, chunked in zip(run(N * V), run(rows * V), strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-6)


def test_a_chunk_smaller_than_a_row_is_one_row() -> None:
    head, hidden = nn.Linear(H, V), torch.randn(3, H)
    ids = torch.tensor([1, 2, 3])
    assert logprobs_of_hidden(hidden, head, ids, temperature=1.0, vocab_size=V, chunk=1).shape == (3,)


def test_no_tokens_give_no_log_probs() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert logprobs_of_hidden(torch.zeros(0, H), nn.Linear(H, V), empty, temperature=1.0, vocab_size=V).shape == (0,)
