from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncrl.algo.aggregate import Ragged, Totals, resolve_aggregation
from asyncrl.algo.loss_tokens import LossFunction, Tokens
from asyncrl.algo.losses import (
    cispo,
    clip_cov,
    clipped,
    dppo_kl,
    dppo_tv,
    dro,
    gmpo,
    gspo,
    kl_cov,
    reinforce,
    resolve_loss,
    sapo,
)
from asyncrl.config import catalogue
from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.plug_in import REQUIRED
from tests.algo.losses.padded import FORMULAS, Padded, aggregated, random_padded, slope
from tests.algo.losses.worked import grad_of, of_ratios


def test_every_token_has_a_gradient_its_weight_is_what_is_cut() -> None:
    tokens = of_ratios(0.5, 1.0, 5.0, advantages=[1.0, 2.0, -1.0])
    result = cispo(tokens, clip_low=0.25, clip_high=0.5)
    result.losses.sum().backward()

    # weights .5 → .75, 1, 5 → 1.5; the old policy's probability is .1
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([-0.75, -2.0, 1.5])
    assert result.losses.tolist() == pytest.approx([-0.75 * log(0.05), -2.0 * log(0.1), 1.5 * log(0.5)])
    assert result.metrics["clip_fraction"].tolist() == [True, False, True]


def test_there_is_no_lower_bound_by_default() -> None:
    tokens = of_ratios(0.01, advantages=[1.0])
    cispo(tokens).losses.sum().backward()
    assert grad_of(tokens.logprobs).item() == pytest.approx(-0.01)


# ── test clipped ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "grad"),
    [
        pytest.param(1.0, 2.0, -2.0, -2.0, id="on policy: plain policy gradient"),
        pytest.param(1.2, 2.0, -2.4, -2.4, id="good token up 20%: still pushed"),
        pytest.param(1.5, 2.0, -2.56, 0.0, id="good token already up 28%: no push"),
        pytest.param(0.5, 2.0, -1.0, -1.0, id="good token that went down: full push up"),
        pytest.param(0.5, -2.0, 1.6, 0.0, id="bad token already down 20%: no push"),
        pytest.param(1.5, -2.0, 3.0, 3.0, id="bad token that went up: full push down"),
        pytest.param(4.0, -2.0, 6.0, 0.0, id="bad token up fourfold: the dual clip holds"),
        pytest.param(4.0, 0.0, 0.0, 0.0, id="no advantage: nothing"),
    ],
)
def test_clip_binds_only_when_the_step_was_already_taken(
    ratio: float, advantage: float, loss: float, grad: float
) -> None:
    tokens = of_ratios(ratio, advantages=[advantage])
    losses = clipped(tokens, clip_low=0.2, clip_high=0.28, dual_clip=3.0).losses
    losses.sum().backward()

    assert losses.item() == pytest.approx(loss)
    assert grad_of(tokens.logprobs).item() == pytest.approx(grad)


def test_the_dual_clip_can_be_switched_off() -> None:
    result = clipped(of_ratios(4.0, advantages=[-2.0]), dual_clip=0.0)
    assert result.losses.item() == pytest.approx(8.0)
    assert not result.metrics["dual_clip_fraction"].any()


def test_metrics_say_which_bound_held() -> None:
    tokens = of_ratios(1.5, 1.5, 0.5, 0.5, 4.0, advantages=[1.0, -1.0, 1.0, -1.0, -1.0])
    metrics = clipped(tokens).metrics
    assert metrics["clip_fraction"].tolist() == [True, False, False, True, False]
    assert metrics["dual_clip_fraction"].tolist() == [False, False, False, False, True]


# ── test covariance ───────────────────────────────────────────────────────────────────────────


def test_clip_cov_leaves_selected_tokens_out_and_clips_the_others() -> None:
    tokens = of_ratios(1.0, 1.0, 2.0, 2.0, advantages=[1.0, 1.0, 1.0, -1.0], selected=[True, False, False, False])
    result = clip_cov(tokens, clip_low=0.2, clip_high=0.5)
    result.losses.sum().backward()

    assert result.losses.tolist() == pytest.approx([0.0, -1.0, -1.5, 2.0])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([0.0, -1.0, 0.0, 2.0])
    assert result.metrics["selected_fraction"].tolist() == [True, False, False, False]
    assert result.metrics["clip_fraction"].tolist() == [False, False, True, False]


def test_clip_cov_without_a_selection_is_refused() -> None:
    with pytest.raises(AsyncrlError, match="this loss reads is_selected"):
        clip_cov(of_ratios(1.0, advantages=[1.0]))


def test_kl_cov_penalizes_the_distance_of_selected_tokens_and_clips_nothing() -> None:
    tokens = of_ratios(2.0, 0.5, 2.0, advantages=[1.0, 1.0, 1.0], selected=[True, True, False])
    result = kl_cov(tokens, cov_kl_coef=3.0)
    result.losses.sum().backward()

    assert result.losses.tolist() == pytest.approx([3 * log(2) - 2, 3 * log(2) - 0.5, -2.0])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([3 - 2, -3 - 0.5, -2.0])
    assert result.metrics["selected_fraction"].tolist() == [True, True, False]


def test_on_policy_the_distance_has_no_direction() -> None:
    tokens = of_ratios(1.0, advantages=[0.0], selected=[True])
    kl_cov(tokens).losses.sum().backward()
    assert grad_of(tokens.logprobs).item() == 0.0


# ── test dppo ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("old_probability", "ratio", "advantage", "grad"),
    [
        pytest.param(1e-5, 15.0, 1.0, -15.0, id="rare token fifteenfold: hardly any probability moved"),
        pytest.param(1e-5, 100.0, 1.0, -20.0, id="a hundredfold: kept, the weight is cut"),
        pytest.param(0.5, 1.4, 1.0, 0.0, id="likely good token up by 0.2: enough"),
        pytest.param(0.5, 0.6, 1.0, -0.6, id="good token that went down: pushed up"),
        pytest.param(0.9, 0.8, -1.0, 0.0, id="likely bad token down by 0.18: enough"),
        pytest.param(0.5, 1.8, -1.0, 1.8, id="bad token that went up: pushed down"),
    ],
)
def test_tokens_are_left_out_by_the_probability_they_moved(
    old_probability: float, ratio: float, advantage: float, grad: float
) -> None:
    tokens = of_ratios(ratio, advantages=[advantage], old_probability=old_probability)
    losses = dppo_tv(tokens).losses
    losses.sum().backward()

    assert grad_of(tokens.logprobs).item() == pytest.approx(grad)
    assert losses.item() == pytest.approx(grad * (log(old_probability * ratio)))


@pytest.mark.parametrize(
    ("ratio", "advantage", "is_left_out"),
    [
        # of 0.5 → 0.65: .5 log(.5/.65) + .5 log(.5/.35) = 0.0472 nats; of 0.5 → 0.7: 0.0872
        pytest.param(1.3, 1.0, False, id="0.047 nats up"),
        pytest.param(1.4, 1.0, True, id="0.087 nats up"),
        pytest.param(1.4, -1.0, False, id="bad token: whatever it moved up"),
        pytest.param(0.7, -1.0, False, id="0.047 nats down"),
        pytest.param(0.6, -1.0, True, id="0.087 nats down"),
        pytest.param(0.6, 1.0, False, id="good token: whatever it moved down"),
    ],
)
def test_tokens_are_left_out_by_the_divergence_of_two_outcomes(
    ratio: float, advantage: float, is_left_out: bool
) -> None:
    tokens = of_ratios(ratio, advantages=[advantage], old_probability=0.5)
    result = dppo_kl(tokens, clip_low=0.05, clip_high=0.05)
    assert result.metrics["clip_fraction"].item() == is_left_out
    assert (result.losses.item() == 0) == is_left_out


@pytest.mark.parametrize("loss", [dppo_tv, dppo_kl])
def test_metrics_tell_left_out_from_cut(loss: LossFunction) -> None:
    tokens = of_ratios(30.0, 1.0, 900.0, advantages=[1.0, 1.0, 1.0], old_probability=1e-3)
    assert loss(tokens).metrics["clip_fraction"].tolist() == [False, False, True]
    assert loss(tokens).metrics["ratio_cap_fraction"].tolist() == [True, False, False]
    assert not loss(tokens, ratio_cap=40.0).metrics["ratio_cap_fraction"].any()


# ── test dro ──────────────────────────────────────────────────────────────────────────────────


def test_a_quadratic_holds_the_token_to_the_old_policy() -> None:
    tokens = of_ratios(exp(0.5), advantages=[2.0])
    losses = dro(tokens, dro_beta=3.0).losses
    losses.sum().backward()

    # -(2 (log .1 + .5) - 3/2 · .25), and -(2 - 3 · .5)
    assert losses.item() == pytest.approx(-2 * (log(0.1) + 0.5) + 0.375)
    assert grad_of(tokens.logprobs).item() == pytest.approx(-0.5)


def test_it_rests_where_the_log_ratio_is_the_advantage_over_beta() -> None:
    tokens = of_ratios(exp(0.5), advantages=[2.0])
    dro(tokens, dro_beta=4.0).losses.sum().backward()
    assert grad_of(tokens.logprobs).item() == pytest.approx(0.0, abs=1e-12)


# ── test gmpo ─────────────────────────────────────────────────────────────────────────────────


def test_a_trajectory_has_one_loss_made_of_the_geometric_mean_of_its_ratios() -> None:
    tokens = of_ratios(1.2, 0.9, 1.1, advantages=[2.0, 2.0, -1.0], lengths=[2, 1])
    losses = gmpo(tokens).losses
    losses.sum().backward()

    # two tokens with loss -2 sqrt(1.08) each; either ratio moves both of them by half
    assert losses.tolist() == pytest.approx([-2 * sqrt(1.08), -2 * sqrt(1.08), 1.1])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([-2 * sqrt(1.08), -2 * sqrt(1.08), 1.1])


def test_a_token_is_cut_only_where_the_step_was_already_taken() -> None:
    tokens = of_ratios(2.0, 0.5, 2.0, 0.5, advantages=[1.0, 1.0, -1.0, -1.0], lengths=[2, 2])
    result = gmpo(tokens, clip_low=0.1, clip_high=0.3)
    result.losses.sum().backward()

    # means of log-ratios (0.3 - log 2)/2 and (log 2 - 0.1)/2
    good, bad = exp((0.3 - log(2)) / 2), exp((log(2) - 0.1) / 2)
    assert result.losses.tolist() == pytest.approx([-good, -good, bad, bad])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([0.0, -good, bad, 0.0])
    assert result.metrics["clip_fraction"].tolist() == [True, False, False, True]


# ── test gspo ─────────────────────────────────────────────────────────────────────────────────


def test_all_tokens_of_a_trajectory_share_its_ratio_and_its_gradient() -> None:
    tokens = of_ratios(2.0, 1.0, 1.0, 4.0, advantages=[1.0, 1.0, 3.0, -1.0], lengths=[2, 2])
    losses = gspo(tokens, clip_low=0.5, clip_high=0.5).losses
    losses.sum().backward()

    # trajectory ratios sqrt(2 · 1) = 1.414 and sqrt(1 · 4) = 2: the second is above 1.5, which binds for A = 3 only
    assert losses.tolist() == pytest.approx([-sqrt(2), -sqrt(2), -4.5, 2.0])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([-sqrt(2), -sqrt(2), 0.0, 2.0])


def test_metrics_say_which_trajectories_were_clipped() -> None:
    tokens = of_ratios(1.01, 1.0, 1.01, 1.0, advantages=[1.0, 1.0, -1.0, -1.0], lengths=[2, 2])
    assert gspo(tokens).metrics["clip_fraction"].tolist() == [True, True, False, False]


def test_the_ratio_of_a_trajectory_is_cut_at_e_10() -> None:
    tokens = of_ratios(3e6, 3e6, advantages=[-1.0, -1.0], lengths=[2])
    losses = gspo(tokens).losses
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([22026.4658, 22026.4658])
    assert grad_of(tokens.logprobs).tolist() == [0.0, 0.0]


def test_bounds_of_one_in_ten_thousand_are_resolved_in_float32() -> None:
    """The gradient's zero term must not be added to log-probs of size 10: their rounding is as wide as the bounds."""
    old = torch.full((1000,), -10.0)
    tokens = Tokens(
        logprobs=(old + 1e-3 * torch.rand(1000)).requires_grad_(),
        old_logprobs=old,
        advantages=torch.ones(1000),
        sequences=Ragged([1000]),
    )
    mean = (tokens.logprobs.detach().double() - old.double()).mean().item()
    losses = gspo(tokens, clip_low=0.1, clip_high=0.1).losses.detach()
    assert [log(-loss) for loss in (losses.min().item(), losses.max().item())] == pytest.approx([mean] * 2, abs=2e-7)


# ── test reinforce ────────────────────────────────────────────────────────────────────────────


def test_the_gradient_is_minus_the_advantage_whatever_the_ratio() -> None:
    tokens = of_ratios(1.0, 5.0, advantages=[2.0, -3.0])
    losses = reinforce(tokens).losses
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([-2 * log(0.1), 3 * log(0.5)])
    assert grad_of(tokens.logprobs).tolist() == [-2.0, 3.0]


# ── test resolve ──────────────────────────────────────────────────────────────────────────────

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
    loss = resolve_loss("asyncrl.algo.losses:sapo")
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
    path.write_text(f"from asyncrl.algo.loss_tokens import PolicyLoss\ndef bad(tokens):\n    return {body}\n")
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


# ── test sapo ─────────────────────────────────────────────────────────────────────────────────


def test_on_policy_it_is_the_plain_policy_gradient() -> None:
    tokens = of_ratios(1.0, 1.0, advantages=[2.0, -3.0])
    losses = sapo(tokens, tau_pos=1.0, tau_neg=2.0).losses
    losses.sum().backward()

    # 4/τ · sigmoid(0) = 2/τ, and its slope is 1 whatever τ
    assert losses.tolist() == pytest.approx([-4.0, 3.0])
    assert grad_of(tokens.logprobs).tolist() == pytest.approx([-2.0, 3.0])


def test_the_gate_falls_on_both_sides_and_sooner_for_bad_tokens() -> None:
    tokens = of_ratios(3.0, 3.0, 0.2, advantages=[1.0, -1.0, 1.0])
    sapo(tokens, tau_pos=1.0, tau_neg=2.0).losses.sum().backward()

    def weight(ratio: float, tau: float) -> float:
        gate = 1 / (1 + exp(-tau * (ratio - 1)))
        return 4 * gate * (1 - gate) * ratio

    good, bad, fallen = grad_of(tokens.logprobs).tolist()
    assert good == pytest.approx(-weight(3.0, 1.0))
    assert bad == pytest.approx(weight(3.0, 2.0))
    assert fallen == pytest.approx(-weight(0.2, 1.0))
    assert bad < -good < 3.0
