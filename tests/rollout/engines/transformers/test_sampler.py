import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.rollout.engines.transformers import sampler

QUARTERS = torch.tensor([[0.25, 0.5, 0.125, 0.125]]).log()
ONE = torch.ones(1)


def uniform(value: float) -> torch.Tensor:
    return torch.tensor([value])


def splitmix64(state: int) -> int:
    """The mixing function over Python's integers."""
    wrap = 2**64 - 1
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & wrap
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & wrap
    return state ^ (state >> 31)


@given(st.integers(min_value=-(2**63), max_value=2**64 - 1))
def test_uniforms_are_those_of_unsigned_arithmetic(seed):
    golden, wrap = 0x9E3779B97F4A7C15, 2**64 - 1
    stream = splitmix64((seed + golden) & wrap)
    expected = [(splitmix64((stream + n * golden) & wrap) >> 40) / 2**24 for n in range(1, 5)]

    assert sampler.uniforms([seed], 4).tolist() == [expected]


def test_a_longer_completion_draws_the_same_and_then_more():
    assert torch.equal(sampler.uniforms([7], 100)[:, :10], sampler.uniforms([7], 10))


def test_uniforms_of_neighbouring_seeds_are_spread_evenly():
    """20,000 draws: the mean of uniforms has a standard deviation of .002, each tenth holds 2,000 +- 43."""
    draws = sampler.uniforms(range(1000), 20).flatten()

    assert float(draws.mean()) == pytest.approx(0.5, abs=0.01)
    assert torch.histc(draws, 10, 0, 1).sub(2000).abs().max() < 215
    assert draws.min() >= 0
    assert draws.max() < 1


@pytest.mark.parametrize(
    ("value", "token"),
    [(0.0, 0), (0.24, 0), (0.25, 1), (0.74, 1), (0.75, 2), (0.88, 3), (1 - 2**-24, 3)],
)
def test_the_token_is_the_first_whose_cumulative_probability_exceeds_the_draw(value, token):
    tokens, logprobs = sampler.draw_plain(QUARTERS, uniform(value))

    assert tokens.item() == token
    assert logprobs.item() == pytest.approx(QUARTERS[0, token].item())


def test_a_token_without_probability_is_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]])

    assert [sampler.draw_plain(logits, uniform(u))[0].item() for u in (0.0, 0.5, 1 - 2**-24)] == [1, 1, 1]


def test_temperature_one_draws_what_the_plain_path_draws():
    logits, draws = torch.randn(100, 50, generator=torch.Generator().manual_seed(0)), sampler.uniforms([3], 100)[0]

    general, plain = sampler.draw(logits, torch.ones(100), draws), sampler.draw_plain(logits, draws)

    assert torch.equal(general[0], plain[0])
    assert torch.equal(general[1], plain[1])


def test_temperature_sharpens_the_distribution_that_is_reported():
    """At 0.5 probabilities are squared: 1/16, 1/4, 1/64, 1/64 of 22/64."""
    _, logprobs = sampler.draw(QUARTERS, ONE * 0.5, uniform(0.5))

    assert logprobs.exp().item() == pytest.approx(16 / 22)


def test_greedy_takes_the_likeliest_and_reports_the_unscaled_logprob():
    for tokens, logprobs in (
        sampler.draw(QUARTERS, ONE * 0, uniform(0.99)),
        sampler.draw_filtered(QUARTERS, ONE * 0, uniform(0.99), ONE * 0.1, torch.tensor([1]))[:2],
    ):
        assert tokens.item() == 1
        assert logprobs.exp().item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [
        pytest.param(1.0, 0, {1: 4 / 8, 0: 2 / 8, 2: 1 / 8, 3: 1 / 8}, id="no filter"),
        pytest.param(1.0, 1, {1: 1.0}, id="top-k 1"),
        pytest.param(1.0, 3, {1: 4 / 7, 0: 2 / 7, 2: 1 / 7}, id="top-k 3; of equals the lower id stays"),
        pytest.param(0.4, 0, {1: 1.0}, id="top-p: the likeliest alone holds enough"),
        pytest.param(0.6, 0, {1: 2 / 3, 0: 1 / 3}, id="top-p: the token that crosses it stays"),
        pytest.param(0.7, 2, {1: 2 / 3, 0: 1 / 3}, id="top-p counts what top-k left: .67 is not yet .7"),
        pytest.param(0.6, 2, {1: 1.0}, id="top-p counts what top-k left: .67 is more than .6"),
        pytest.param(1.0, 99, {1: 4 / 8, 0: 2 / 8, 2: 1 / 8, 3: 1 / 8}, id="top-k larger than the vocabulary"),
    ],
)
def test_filters_keep_and_renormalise(top_p, top_k, kept):
    draws = torch.arange(0, 1, 1 / 64)
    count = len(draws)

    tokens, logprobs, ranking = sampler.draw_filtered(
        QUARTERS.expand(count, -1), ONE.expand(count), draws, ONE.expand(count) * top_p, torch.full((count,), top_k)
    )

    drawn = dict(zip(tokens.tolist(), logprobs.exp().tolist(), strict=True))
    assert drawn == pytest.approx(kept)
    assert ranking.masks(torch.tensor([0, 7])) == ([len(kept)] * 2, sorted(kept) * 2)


def test_broken_logits_still_give_a_token_of_the_vocabulary():
    """Their log-probability is what tells: it is not finite either."""
    tokens, logprobs = sampler.draw_plain(torch.full((1, 4), torch.nan), uniform(0.5))

    assert 0 <= tokens.item() < 4
    assert logprobs.isnan().all()
