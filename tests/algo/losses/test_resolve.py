from pathlib import Path

import numpy as np
import pytest
import torch

from asyncrl.algo.aggregate import Totals, resolve_aggregation
from asyncrl.algo.losses.resolve import resolve_loss
from asyncrl.algo.losses.sapo import sapo
from asyncrl.algo.losses.tokens import Tokens
from asyncrl.algo.ragged import Ragged
from asyncrl.config import catalogue
from asyncrl.errors import ConfigError
from asyncrl.plug_in import REQUIRED
from tests.algo.losses.padded import FORMULAS, Padded, aggregated, random_padded, slope
from tests.algo.losses.worked import grad_of

LOSSES = {name: resolve_loss(name) for name in catalogue.LOSSES}
PUBLISHED = {
    "clipped": {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"clip_low": 10.0, "clip_high": 0.2},
    "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
    "gmpo": {"clip_low": 0.4, "clip_high": 0.4},
    "clip_cov": {"clip_low": 1.0, "clip_high": 1.0, "cov_ratio": 2e-4, "cov_low": 1.0, "cov_high": 5.0},
    "kl_cov": {"cov_ratio": 2e-4, "cov_kl_coef": 1.0},
    "dppo_tv": {"clip_low": 0.15, "clip_high": 0.15, "ratio_cap": 20.0},
    "dppo_kl": {"clip_low": 0.05, "clip_high": 0.05, "ratio_cap": 20.0},
    "dro": {"dro_beta": REQUIRED},
    "reinforce": {},
}
OTHERS = {
    "clip_low": 0.13,
    "clip_high": 0.31,
    "dual_clip": 0.0,
    "ratio_cap": 1.5,
    "tau_pos": 0.7,
    "tau_neg": 1.9,
    "cov_kl_coef": 0.3,
    "dro_beta": 0.4,
}
"""Settings that are nobody's defaults."""


def settings(name: str, kind: str) -> dict[str, float]:
    defaults = LOSSES[name].settings
    return {
        key: OTHERS[key] if kind == "others" or default is REQUIRED else default for key, default in defaults.items()
    }


@pytest.mark.parametrize("kind", ["defaults", "others"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_match_the_masked_formula_in_float64(name: str, seed: int, kind: str) -> None:
    loss, batch, chosen = LOSSES[name], random_padded(seed), settings(name, kind)
    aggregation = loss.entry.aggregation or "token-mean"

    def parts(logprobs):
        losses = FORMULAS[name](logprobs, batch.logprobs, batch, **chosen)
        return aggregated(aggregation, np.where(batch.mask, losses, 0), batch.mask)

    tokens = batch.tokens()
    losses = loss.function(tokens, **chosen).losses
    totals = Totals(int(batch.mask.sum()), len(batch.mask))
    weights = np.repeat(
        [resolve_aggregation(aggregation)(int(length), totals) for length in batch.lengths], batch.lengths
    )
    step = torch.dot(losses, torch.tensor(weights))
    step.backward()

    expected = FORMULAS[name](batch.logprobs, batch.logprobs, batch, **chosen)[batch.mask]
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(step.item(), parts(batch.logprobs).sum(), rtol=1e-6, atol=1e-6)
    gradient = slope(parts, batch.logprobs)[batch.mask]
    np.testing.assert_allclose(grad_of(tokens.logprobs).numpy(), gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_do_not_depend_on_what_they_are_packed_with(name: str) -> None:
    batch = random_padded(7)
    loss, chosen = LOSSES[name].function, settings(name, "defaults")
    rows = [slice(0, 5), slice(5, 6), slice(6, None)]
    parts = [
        Padded(
            batch.logprobs[row], batch.old_logprobs[row], batch.advantages[row], batch.mask[row], batch.selected[row]
        )
        for row in rows
    ]
    apart = torch.cat([loss(part.tokens(), **chosen).losses for part in parts])
    torch.testing.assert_close(apart, loss(batch.tokens(), **chosen).losses, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_ratios_of_e_200_leave_float32_finite(name: str) -> None:
    logprobs = torch.tensor([0.0, -200.0, 0.0, -200.0, 0.0], requires_grad=True)
    tokens = Tokens(
        logprobs=logprobs,
        old_logprobs=torch.tensor([-200.0, 0.0, -200.0, 0.0, -200.0]),
        advantages=torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0]),
        sequences=Ragged([1, 1, 1, 1, 1]),
        is_selected=torch.tensor([True, False, False, True, False]),
    )
    losses = LOSSES[name].function(tokens, **settings(name, "defaults")).losses
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(grad_of(logprobs)).all()


@pytest.mark.parametrize("name", LOSSES)
def test_metrics_are_numbers_of_each_token_without_a_gradient(name: str) -> None:
    tokens = random_padded(5).tokens()
    for values in LOSSES[name].function(tokens, **settings(name, "defaults")).metrics.values():
        assert values.shape == tokens.logprobs.shape
        assert not values.requires_grad


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_without_tokens_has_no_losses(name: str) -> None:
    empty = torch.zeros(0, requires_grad=True)
    tokens = Tokens(
        logprobs=empty,
        old_logprobs=empty.detach(),
        advantages=empty.detach(),
        sequences=Ragged([0, 0]),
        is_selected=empty.detach().bool(),
    )
    losses = LOSSES[name].function(tokens, **settings(name, "defaults")).losses
    losses.sum().backward()
    assert losses.shape == (0,)


@pytest.mark.parametrize("name", PUBLISHED)
def test_defaults_are_the_published_ones(name: str) -> None:
    loss = LOSSES[name]
    selection = dict(loss.select.settings) if loss.select else {}
    assert selection | dict(loss.settings) == PUBLISHED[name]


def test_selection_and_loss_agree_where_they_read_the_same() -> None:
    loss = LOSSES["clip_cov"]
    assert loss.select is not None
    assert {name: loss.select.settings[name] for name in loss.settings} == loss.settings


def test_losses_of_whole_trajectories_weigh_them_alike() -> None:
    assert {name for name in PUBLISHED if LOSSES[name].entry.aggregation} == {"gspo", "sapo", "gmpo"}
    assert {LOSSES[name].entry.aggregation for name in PUBLISHED} == {"", "seq-mean-token-mean"}
    assert {name for name in PUBLISHED if LOSSES[name].entry.is_of_sequences} == {"gmpo"}


def test_other_names_of_a_loss_are_the_same_loss() -> None:
    assert resolve_loss("vanilla") == resolve_loss("clipped")
    assert resolve_loss("geo_mean") == resolve_loss("gmpo")


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.loss is 'gsop': did you mean 'gspo'\?"):
        resolve_loss("gsop")


def test_a_function_in_a_module_is_a_loss_with_its_own_settings() -> None:
    loss = resolve_loss("asyncrl.algo.losses.sapo:sapo")
    batch = random_padded(1)
    assert loss.settings == {"tau_pos": 1.0, "tau_neg": 1.05}
    torch.testing.assert_close(
        loss.function(batch.tokens(), tau_pos=2.0).losses, sapo(batch.tokens(), tau_pos=2.0).losses
    )


def test_a_function_in_a_file_may_return_plain_losses(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def scaled(tokens, *, clip_high=3.0):\n    return -clip_high * tokens.advantages * tokens.logprobs\n"
    )
    loss = resolve_loss(f"{path}:scaled")
    tokens = random_padded(1).tokens()
    result = loss.function(tokens, clip_high=2.0)
    assert loss.settings == {"clip_high": 3.0}
    assert result.metrics == {}
    torch.testing.assert_close(result.losses, -2.0 * tokens.advantages * tokens.logprobs)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        pytest.param("tokens.logprobs.sum()", r"losses is of shape \(\), expected a tensor of", id="a sum"),
        pytest.param("tokens.logprobs[:, None]", r"losses is of shape \(\d+, 1\), expected a tensor of", id="a column"),
        pytest.param("0.5", "losses is a float, expected a tensor of", id="a number"),
        pytest.param("tokens.advantages", "losses have no gradient", id="no gradient"),
        pytest.param(
            "PolicyLoss(tokens.logprobs, {'mine': tokens.logprobs.mean()})",
            r"mine is of shape \(\), expected",
            id="a metric that is a mean",
        ),
    ],
)
def test_what_a_function_returns_is_looked_at(tmp_path: Path, body: str, complaint: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"from asyncrl.algo.losses.tokens import PolicyLoss\ndef bad(tokens):\n    return {body}\n")
    loss = resolve_loss(f"{path}:bad")
    with pytest.raises(ConfigError, match=complaint):
        loss.function(random_padded(1).tokens())


def test_options_of_a_function_are_its_arguments_that_are_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def mine(tokens, *, clip_high=0.2, power=1.0):\n    return power * tokens.logprobs\n")
    tokens = random_padded(1).tokens()
    loss = resolve_loss(f"{path}:mine", {"power": 3.0})
    assert loss.settings == {"clip_high": 0.2}
    torch.testing.assert_close(loss.function(tokens).losses, 3.0 * tokens.logprobs)
    with pytest.raises(ConfigError, match=r"loss_options.pwer is not a keyword argument of .* mean 'power'\?"):
        resolve_loss(f"{path}:mine", {"pwer": 3.0})
