"""The names that a configuration is checked against are those of the code."""

import pytest

from asyncrl.algo.advantages.table import ADVANTAGES
from asyncrl.algo.kl import KL_ESTIMATORS
from asyncrl.algo.losses.table import LOSSES
from asyncrl.config import algorithm as named
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError
from asyncrl.plug_in import REQUIRED


def test_estimators_and_what_they_read_are_those_of_the_code() -> None:
    assert {name: estimator.settings.keys() for name, estimator in ADVANTAGES.items()} == named.ADVANTAGES
    assert set(named.OF_ONE) == {name for name, estimator in ADVANTAGES.items() if not estimator.needs_group}
    assert set(named.WITHOUT_PENALTIES) == {name for name, one in ADVANTAGES.items() if not one.counts_penalties}


def test_losses_and_what_they_read_are_those_of_the_code() -> None:
    found = {name: {**loss.settings, **(loss.select.settings if loss.select else {})} for name, loss in LOSSES.items()}
    assert {name: settings.keys() for name, settings in found.items()} == named.LOSSES
    assert set(named.BY_SEQUENCE) == {name for name, loss in LOSSES.items() if loss.aggregation}


def test_settings_without_a_default_are_those_of_the_code() -> None:
    found = {
        name: setting
        for name, known in {**ADVANTAGES, **LOSSES}.items()
        for setting, default in known.settings.items()
        if default is REQUIRED
    }
    assert found == named.REQUIRED


def test_kl_estimators_are_those_of_the_code() -> None:
    assert set(named.KL) == KL_ESTIMATORS.keys()


def a_run(**algorithm: object) -> None:
    decode({"model": {"path": "m"}, "data": {"train": "t"}, "algorithm": algorithm})


@pytest.mark.parametrize(
    "algorithm",
    [
        {"advantage": "rloo", "loss": "gspo", "clip_low": 1e-3},
        {"advantage": "gdpo", "reward_weights": {"correct": 1.0}},
        {"loss": "dro", "dro_beta": 0.1},
        {"loss": "my.py:loss", "tau_pos": 2.0},
        {"kl_coef": 0.1, "kl": "k3+"},
        {"kl_coef": 0.1, "kl": "k1", "kl_in": "reward", "kl_target": 0.05, "kl_horizon": 500},
        {"advantage": "reinforce_plus_plus", "gamma": 0.99},
    ],
    ids=str,
)
def test_what_goes_together_is_taken(algorithm) -> None:
    a_run(**algorithm)


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ({"advantage": "grpo2"}, "algorithm.advantage is 'grpo2': did you mean 'grpo'?"),
        ({"loss": "gsop"}, "algorithm.loss is 'gsop': did you mean 'gspo'?"),
        ({"kl": "k4", "kl_coef": 0.1}, "algorithm.kl is 'k4': "),
        ({"tau_pos": 2.0}, "algorithm.tau_pos is not read with advantage='grpo' and loss='clipped', only with sapo"),
        ({"gamma": 0.9}, "algorithm.gamma is not read with"),
        ({"loss": "gspo", "dual_clip": 3.0}, "algorithm.dual_clip is not read with"),
        ({"loss": "dro"}, "algorithm.dro_beta must be set with 'dro'"),
        ({"advantage": "gdpo"}, "algorithm.reward_weights must be set with 'gdpo'"),
        ({"loss": "gspo", "aggregation": "token-mean"}, "algorithm.aggregation is 'token-mean', but loss='gspo'"),
        ({"kl_in": "reward"}, "algorithm.kl_in is only read with algorithm.kl_coef above 0"),
        ({"kl_coef": 0.1, "kl_target": 0.1}, "algorithm.kl_target is only read with kl_in='reward'"),
        ({"kl_coef": 0.1, "kl_in": "reward", "kl": "k3+"}, "a reward has none"),
        ({"kl_coef": 0.1, "kl_in": "reward", "kl_target": 0.1, "kl_horizon": 25}, "use more than 25"),
        (
            {"advantage": "gdpo", "reward_weights": {"correct": 1.0}, "kl_coef": 0.1, "kl_in": "reward"},
            "has no effect with advantage='gdpo'",
        ),
    ],
    ids=str,
)
def test_what_would_be_ignored_is_refused(algorithm, sentence) -> None:
    with pytest.raises(ConfigError) as caught:
        a_run(**algorithm)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
