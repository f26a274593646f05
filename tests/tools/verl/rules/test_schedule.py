"""verl's units of schedule and length become groups, steps and versions."""

import pytest

from tests.tools.verl.launches import fate, settings

MINI, FETCHED = "actor_rollout_ref.actor.ppo_mini_batch_size", "async_training.require_batches"
SYNC, TOTAL = "async_training.trigger_parameter_sync_step", "rollout.total_rollout_steps"


def schedule(found: dict[str, object]) -> dict[str, object]:
    return {key.removeprefix("schedule."): value for key, value in found.items() if key.startswith("schedule.")}


def test_fully_async_fetches_mini_batches_and_trains_an_update_for_each() -> None:
    found = settings(
        "fully_async",
        f"{MINI}=32",
        f"{FETCHED}=4",
        f"{SYNC}=2",
        f"{TOTAL}=51200",
        "async_training.staleness_threshold=0.5",
    )
    assert schedule(found) == {
        "group_size": 4,
        "groups_per_step": 128,
        "steps_per_publish": 2,
        "staleness": 0.5,
        "order": "completion",
    }
    assert found["trainer.mini_batches"] == 4
    assert found["run.steps"] == 2 * (51200 // (128 * 2))


def test_fully_async_has_verls_defaults() -> None:
    found = settings("fully_async")
    assert (found["schedule.groups_per_step"], found["schedule.steps_per_publish"]) == (256, 4)
    assert found["schedule.staleness"] == 0.1


def test_fully_async_ends_with_its_epochs_if_that_is_sooner() -> None:
    options = (f"{MINI}=10", f"{SYNC}=2", f"{TOTAL}=1000", "trainer.total_epochs=3")
    assert settings("fully_async", *options, num_rows=100)["run.steps"] == 2 * (300 // 20)
    assert settings("fully_async", *options, num_rows=10_000)["run.steps"] == 2 * (1000 // 20)


def test_without_partial_rollout_completions_are_finished_first() -> None:
    found = settings("fully_async", "async_training.partial_rollout=False")
    assert found["schedule.partial_rollout"] is False


def test_one_step_off_is_one_batch_ahead_and_sends_weights_between_batches() -> None:
    found = settings(
        "one_step_off", "data.train_batch_size=512", f"{MINI}=100", "trainer.total_epochs=2", num_rows=1100
    )
    assert schedule(found) == {
        "group_size": 4,
        "groups_per_step": 512,
        "steps_per_publish": 1,
        "staleness": 1.0,
        "partial_rollout": False,
    }
    assert found["trainer.mini_batches"] == 6
    assert found["run.steps"] == 2 * (1100 // 512)


def test_without_rows_the_broker_counts_epochs() -> None:
    found = settings("one_step_off", "trainer.total_epochs=15")
    assert found["run.epochs"] == 15
    assert "run.steps" not in found


def test_total_training_steps_decide_over_epochs() -> None:
    options = ("trainer.total_training_steps=100", "trainer.total_epochs=15")
    assert settings("synchronous", *options, num_rows=5000)["run.steps"] == 100
    assert fate("synchronous", *reversed(options))[0] == "not needed"


def test_main_ppo_is_synchronous() -> None:
    found = settings("synchronous")
    assert (found["schedule.staleness"], found["schedule.groups_per_step"], found["trainer.mini_batches"]) == (
        0,
        1024,
        4,
    )


def test_separate_async_of_v1_has_a_step_for_each_mini_batch() -> None:
    found = settings(
        "synchronous",
        "trainer.v1.trainer_mode=separate_async",
        f"{MINI}=64",
        "trainer.v1.sampler.max_off_policy_threshold=5",
    )
    assert found["schedule.groups_per_step"] == 64
    assert found["schedule.steps_per_publish"] == 4
    assert found["schedule.max_staleness"] == 4
    assert found["schedule.on_straggler"] == "reissue"
    assert "trainer.mini_batches" not in found


def test_a_filter_counts_batches_in_verl_and_groups_here() -> None:
    options = [f"algorithm.filter_groups.{text}" for text in ("enable=True", "metric=acc", "max_num_gen_batches=10")]
    found = settings("synchronous", "data.train_batch_size=8", *options)
    assert found["schedule.filter"] == "zero_variance"
    assert found["schedule.filter_metric"] == "correct"
    assert found["schedule.filter_patience"] == 80


@pytest.mark.parametrize("mode", ["fully_async", "one_step_off"])
def test_a_filter_that_verl_does_not_read_is_left_out_and_said(mode: str) -> None:
    option = "+algorithm.filter_groups.enable=True"
    assert "schedule.filter" not in settings(mode, option)  # type: ignore[arg-type]
    assert fate(mode, option)[0] == "not needed"  # type: ignore[arg-type]
