"""Lengths and speeds derived from a plan."""

import math
from pathlib import Path

import pytest

from asyncrl.config.checks.check import check
from asyncrl.errors import ConfigError
from asyncrl.tools.plan.lengths import Lognormal
from asyncrl.tools.plan.plan_file import changed, inputs, load
from asyncrl.tools.plan.simulated.rollout import generate_s
from tests.tools.plan.plans import a_plan, spread_out


def test_mean_median_and_p99_describe_one_lognormal():
    by_median = inputs(a_plan({"lengths": {"median": 100.0, "sigma": 0.5, "max_tokens": 10**6}})).lengths
    by_p99 = inputs(a_plan({"lengths": {"median": 100.0, "p99": 320.0, "max_tokens": 10**6}})).lengths
    by_mean = inputs(a_plan({"lengths": {"mean": 200.0, "sigma": 0.5, "max_tokens": 10**6}})).lengths
    assert isinstance(by_median, Lognormal)
    assert isinstance(by_p99, Lognormal)
    assert by_median.mu == by_p99.mu == pytest.approx(math.log(100))
    assert by_p99.sigma == pytest.approx(0.5, rel=1e-3)
    assert by_mean.mean == pytest.approx(200)


def test_lengths_are_fitted_to_what_the_baseline_took():
    # Constant lengths: 40 s of 0.1 s steps are 400 tokens.
    plan = a_plan({"lengths": {"synchronous_generate_s": 40.0}})
    assert inputs(plan).lengths.mean == pytest.approx(400, rel=2e-3)


def test_a_fit_of_uneven_lengths_comes_within_a_thousandth():
    plan = spread_out({"lengths": {"synchronous_generate_s": 60.0, "sigma": 0.8, "max_tokens": 10**4}})
    ready = inputs(plan)
    assert generate_s(plan, ready.lengths, ready.step_s) == pytest.approx(60, rel=2e-3)


def test_a_fit_that_is_out_of_reach_says_how_near_it_comes():
    plan = a_plan({"lengths": {"synchronous_generate_s": 1000.0, "max_tokens": 100}})
    with pytest.raises(ConfigError, match=r"is 1000 s, but .* takes 10 s at the nearest median, 100 tokens on average"):
        inputs(plan)


def test_training_seconds_of_groups_are_seconds_of_their_tokens():
    # Two groups of two completions of 100 tokens after prompts of 50 took 6 s.
    speeds = [{"devices": 1, "groups": 2, "seconds": 6.0}]
    training = inputs(a_plan({"trainer.speeds": speeds, "rollout.prompt_tokens": 50})).training
    assert training.seconds(600, 1) == pytest.approx(6)
    assert training.seconds(600, 2) == pytest.approx(3)


# ── test plan file ────────────────────────────────────────────────────────────────────────────
# Valid plan files, and one sentence for each invalid one.

CONF = Path(__file__).parents[3] / "conf" / "plan"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.toml")), ids=lambda path: path.name)
def test_every_plan_that_is_shipped_is_accepted(path):
    assert load(path).assumptions


def test_set_overrides_the_file_and_knows_the_shorthands():
    path = CONF / "verl-128.toml"
    plan = load(path, ["staleness=0.25", "rollout.devices=48", "schedule.order=fifo"])
    assert (plan.schedule.staleness, plan.rollout.devices, plan.schedule.order) == (0.25, 48, "fifo")
    assert (plan.replicas, plan.trainer_devices, plan.groups_per_publish) == (12, 80, 512)


def test_a_run_file_is_no_plan():
    with pytest.raises(ConfigError, match=r"quickstart\.toml is a run file, not a plan: add --memory"):
        load(CONF.parent / "quickstart.toml")


def test_samples_are_looked_for_beside_the_plan(tmp_path):
    text = (CONF / "verl-128.toml").read_text().split("[lengths]")[0]
    path = tmp_path / "toy.toml"
    path.write_text(
        f'{text}[lengths]\nsamples = "run/samples"\n[rollout]\ndevices = 1\ndecode = [[1, 1]]\n'
        "prefill_tokens_per_s = 1\n[trainer]\nspeeds = [{ devices = 1, tokens_per_s = 1 }]\n"
    )
    assert load(path).lengths.samples == str(tmp_path / "run" / "samples")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout.slot": 4}, "unknown key 'rollout.slot': did you mean 'rollout.slots'?"),
        ({"trainer.speeds": [{"device": 1}]}, "unknown key 'trainer.speeds.device': did you mean"),
        ({"lengths": 3}, "lengths is a section, got 3"),
        ({"rollout": 3}, "rollout is a section, got 3"),
        ({"rollout.slots.x": 3}, "rollout.slots.x = 3: 'slots' is a value, not a section"),
        ({"rollout.slots": 0}, "rollout.slots: expected a whole number >= 1"),
        ({"rollout.decode": [[1, 0]]}, "rollout.decode[0][1]: expected a number > 0"),
        ({"rollout.decode": []}, "rollout.decode is empty: give at least one measured point"),
        ({"trainer.speeds": []}, "trainer.speeds is empty: give at least one measured point"),
        ({"publish.seconds": float("inf")}, "publish.seconds is inf: expected a finite number"),
        ({"schedule.filter": "zero_variance"}, "schedule.filter is 'zero_variance', but a plan has no rewards"),
        ({"schedule.group_size": 1}, "schedule.group_size is 1, but algorithm.advantage='grpo' compares"),
        ({"rollout.devices": 2}, "rollout.devices is 2 of 2 devices: at least one has to be left to train"),
        ({"rollout.devices_per_replica": 2}, "rollout.devices is 1, no multiple of rollout.devices_per_replica = 2"),
        (
            {"devices": 8, "rollout.devices": 4, "rollout.devices_per_replica": 4, "search.multiple_of": 2},
            "search.multiple_of is 2, no multiple of rollout.devices_per_replica = 4",
        ),
        ({"lengths.mean": 3.0}, "lengths: expected exactly one of samples, mean, median, synchronous_generate_s, got"),
        ({"lengths": {}}, "lengths: expected exactly one of samples, mean, median, synchronous_generate_s, got none"),
        ({"lengths": {"mean": 9.0, "p99": 10.0}}, "lengths: beside mean expected sigma, got p99"),
        ({"lengths": {"samples": "a", "sigma": 1.0}}, "lengths: beside samples expected no spread, got sigma"),
        ({"lengths.p99": 10.0}, "lengths.p99 is 10, below lengths.median = 100"),
        (
            {"lengths": {"samples": "a", "prompt_share": 0.5}},
            "lengths.prompt_share is not read with lengths.samples, whose groups show it; remove it",
        ),
        (
            {"trainer.speeds": [{"devices": 1, "groups": 4}]},
            "trainer.speeds of 1 devices: expected either tokens_per_s, or both groups and seconds",
        ),
        (
            {"measured": [{"name": "x", "groups": 1, "seconds": 1.0, "set": {"schedule.stale": 1}}]},
            "unknown key 'schedule.stale': did you mean 'schedule.staleness'?",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_contradictory_plan_is_refused_in_one_sentence(changes, message):
    with pytest.raises(ConfigError) as caught:
        a_plan(changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_one_that_is_not_toml_are_named(tmp_path):
    with pytest.raises(ConfigError, match="no such plan"):
        load(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("=")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match=r"expected section\.key=value"):
        load(CONF / "verl-128.toml", ["staleness"])


def test_a_missing_key_is_named(tmp_path):
    (tmp_path / "short.toml").write_text("devices = 2\n[lengths]\nmean = 1.0\n[trainer]\nspeeds = []\n")
    with pytest.raises(ConfigError, match=r"missing section \[rollout\] with 'devices' and "):
        load(tmp_path / "short.toml")
    with pytest.raises(ConfigError, match=r"missing key 'rollout\.devices': it has no default"):
        load(tmp_path / "short.toml", ["rollout.slots=3"])


def test_changes_leave_the_plan_as_it_was():
    plan = a_plan()
    assert changed(plan, {"staleness": 1.0}).schedule.staleness == 1.0
    assert plan.schedule.staleness == 0.0


def test_devices_that_do_not_sample_train() -> None:
    plan = spread_out({"rollout.devices": 6, "rollout.devices_per_replica": 2})
    assert (plan.replicas, plan.trainer_devices) == (3, 2)


def test_a_publish_takes_the_groups_of_all_its_steps() -> None:
    assert spread_out().groups_per_publish == 8 * 2


def test_the_run_of_a_plan_is_a_valid_config_with_its_schedule() -> None:
    plan = a_plan({"seed": 7, "lengths.max_tokens": 300})
    config = plan.run_config(steps=5)
    check(config)
    assert (config.run.steps, config.run.seed, config.schedule) == (5, 7, plan.schedule)
    assert config.sampling.max_tokens == 300
    assert config.trainer.max_tokens_per_micro_batch == config.data.max_prompt_tokens + 300
