"""Values derived from the sections of a plan."""

from asyncrl.config.checks.check import check
from tests.tools.plan.plans import a_plan, spread_out


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
