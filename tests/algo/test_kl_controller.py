import pytest

from asyncrl.algo.kl_controller import KlController
from asyncrl.errors import ConfigError


@pytest.mark.parametrize(
    ("kl", "coef"),
    [
        pytest.param(0.05, 0.1, id="on target: as it is"),
        pytest.param(0.055, 0.105, id="a tenth above, half a horizon: up by a twentieth"),
        pytest.param(0.045, 0.095, id="a tenth below: down by a twentieth"),
        pytest.param(5.0, 0.11, id="far above: a fifth of half a horizon"),
        pytest.param(0.0, 0.09, id="far below: the same down"),
        pytest.param(-1.0, 0.09, id="an estimate may be negative"),
    ],
)
def test_the_coefficient_moves_towards_its_target(kl: float, coef: float) -> None:
    controller = KlController(coef=0.1, target=0.05, horizon=1000)
    controller.update(kl, num_trajectories=500)
    assert controller.coef == pytest.approx(coef)


def test_without_a_target_it_is_fixed() -> None:
    controller = KlController(coef=0.1)
    controller.update(7.0, num_trajectories=10**9)
    assert controller.coef == 0.1


def test_a_kl_that_is_no_number_leaves_it_as_it_is() -> None:
    controller = KlController(coef=0.1, target=0.05, horizon=1000)
    controller.update(float("nan"), num_trajectories=100)
    assert controller.coef == 0.1


def test_it_goes_on_from_the_coefficient_that_was_kept() -> None:
    whole = KlController(coef=0.1, target=0.05, horizon=1000)
    whole.update(0.1, num_trajectories=100)
    resumed = KlController(coef=whole.coef, target=0.05, horizon=1000)
    whole.update(0.01, num_trajectories=100)
    resumed.update(0.01, num_trajectories=100)
    assert resumed == whole


def test_it_holds_a_policy_whose_kl_falls_with_the_coefficient_at_the_target() -> None:
    controller = KlController(coef=1.0, target=0.05, horizon=1000)
    for _ in range(500):
        controller.update(0.01 / controller.coef, num_trajectories=200)
    assert controller.coef == pytest.approx(0.2, rel=1e-3)


def test_a_horizon_that_one_step_uses_up_is_refused() -> None:
    controller = KlController(coef=0.1, target=0.05, horizon=100)
    with pytest.raises(ConfigError, match=r"kl_horizon is 100, but a step has 500 trajectories.*more than 100"):
        controller.update(0.05, num_trajectories=500)
