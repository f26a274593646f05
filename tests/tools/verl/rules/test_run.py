"""Model, optimizer, rewards, checkpoints, trackers and names; verl's units of schedule and length become steps."""

from pathlib import Path

import pytest

from tests.tools.verl.launches import fate, settings, translated

M, OPTIM = "actor_rollout_ref.model", "actor_rollout_ref.actor.optim"
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"


def test_overrides_of_the_models_config_are_kept_in_both_of_verls_forms() -> None:
    for where in ("override_config", "override_config.model_config"):
        found = settings("fully_async", f"+{M}.{where}.max_position_embeddings=32768")
        assert found["model.overrides.max_position_embeddings"] == 32768


def test_a_dropout_of_0_is_left_out_because_few_models_know_its_name() -> None:
    option = f"+{M}.override_config.embd_pdrop=0."
    assert "model.overrides.embd_pdrop" not in settings("fully_async", option)
    assert fate("fully_async", option) == ("not needed", "there is no dropout")


def test_a_path_below_home_is_absolute() -> None:
    assert settings("fully_async", f"{M}.path=~/models/base")["model.path"] == str(Path.home() / "models/base")


def test_chat_template_arguments_are_kept() -> None:
    found = settings("fully_async", "+data.apply_chat_template_kwargs.enable_thinking=False")
    assert found["data.chat_template_kwargs.enable_thinking"] is False


def test_an_adapter_has_verls_rank_and_scale() -> None:
    found = settings("fully_async", f"{M}.lora_rank=32", f"{M}.lora_alpha=64", f"{M}.target_modules=all-linear")
    assert (found["trainer.lora.rank"], found["trainer.lora.alpha"]) == (32, 64.0)
    assert "trainer.lora.targets" not in found


def test_a_run_starts_from_verls_adapter_if_its_rank_is_given_too() -> None:
    path = f"{M}.lora_adapter_path=adapters/mine"
    assert settings("fully_async", f"{M}.lora_rank=32", path)["trainer.lora.path"] == "adapters/mine"
    assert "trainer.lora.path" not in settings("fully_async", f"{M}.lora_rank=32", f"{M}.lora_adapter_path=null")
    assert fate("fully_async", path)[0] == "not supported"
    assert fate("fully_async", f"{M}.lora_adapter_path=null")[0] == "not needed"


def test_warm_up_and_cosine_are_kept() -> None:
    found = settings(
        "synchronous", f"{OPTIM}.lr_warmup_steps_ratio=0.1", "trainer.total_training_steps=50",
        f"{OPTIM}.lr_scheduler_type=cosine", f"{OPTIM}.min_lr_ratio=0.2", f"{OPTIM}.betas=[0.9,0.95]",
    )  # fmt: skip
    assert (found["trainer.warmup_steps"], found["trainer.lr_schedule"], found["trainer.min_lr_ratio"]) == (
        5,
        "cosine",
        0.2,
    )
    assert found["trainer.beta2"] == 0.95


def test_a_share_of_an_unknown_length_is_said() -> None:
    assert fate("synchronous", f"{OPTIM}.lr_warmup_steps_ratio=0.1")[0] == "substituted"


def test_rewards_are_by_data_source_unless_dapo_adds_its_penalty() -> None:
    assert settings("fully_async")["reward.function"] == "auto"
    found = settings(
        "fully_async", "data.max_response_length=200", "reward.reward_manager.name=dapo",
        f"+{OVERLONG}.enable=True", f"+{OVERLONG}.len=50", f"+{OVERLONG}.penalty_factor=0.5",
    )  # fmt: skip
    assert "reward.function" not in found
    assert [part["function"] for part in found["reward.parts"]] == ["auto", "overlong"]
    assert found["reward.parts"][1]["options"] == {"max_tokens": 200, "buffer": 50, "factor": 0.5}


def test_a_penalty_that_verl_does_not_apply_is_left_out_and_said() -> None:
    assert fate("fully_async", f"+{OVERLONG}.len=50")[0] == "not needed"


def test_a_custom_reward_is_taken_as_it_is() -> None:
    assert settings("fully_async", "custom_reward_function.path=a.py")["reward.function"] == "a.py:compute_score"
    custom = "reward.custom_reward_function"
    options = (f"{custom}.path=pkg://my.rewards", f"{custom}.name=score", f"+{custom}.reward_kwargs.strict=True")
    found = settings("fully_async", *options)
    assert (found["reward.function"], found["reward.options"]) == ("my.rewards:score", {"strict": True})


@pytest.mark.parametrize(
    ("manager", "wanted"), [("prime", "not needed"), ("gdpo", "not needed"), ("remote", "substituted")]
)
def test_reward_managers_that_differ_in_their_processes_alone_are_the_same_here(manager: str, wanted: str) -> None:
    options = (f"reward.reward_manager.name={manager}", "custom_reward_function.path=rewards.py")
    assert fate("synchronous", *options)[0] == wanted
    assert settings("synchronous", *options)["reward.function"] == "rewards.py:compute_score"


def test_a_reward_manager_of_ones_own_must_be_written_anew() -> None:
    assert fate("fully_async", "reward.reward_manager.name=mine")[0] == "not supported"


def test_a_launch_that_resumes_by_itself_is_told_how() -> None:
    fate_of_auto, why = fate("synchronous", "trainer.resume_mode=auto")
    assert fate_of_auto == "not needed"
    assert "asyncrl run FILE --resume" in why
    assert fate("synchronous", "trainer.resume_mode=resume_path")[0] == "not supported"


def test_save_freq_counts_versions_in_fully_async() -> None:
    assert settings("fully_async", "trainer.save_freq=5")["checkpoint.every_steps"] == 20
    assert settings("one_step_off", "trainer.save_freq=5")["checkpoint.every_steps"] == 5
    assert fate("one_step_off", "trainer.save_freq=-1")[0] == "not needed"


@pytest.mark.parametrize("logger", ["['console','wandb']", "'[console,wandb]'", '["wandb"]'])
def test_trackers_have_verls_project(logger: str) -> None:
    found = settings("fully_async", f"trainer.logger={logger}", "trainer.project_name=gsm8k")
    assert found["trackers.use"] == ["wandb"]
    assert found["trackers.options.wandb.project"] == "gsm8k"
    told = fate("fully_async", "trainer.project_name=gsm8k", f"trainer.logger={logger}")
    assert told[0] == "mapped"
    assert told[1].startswith('trackers.options.wandb.project = "gsm8k" (')


def test_a_tracker_that_is_not_here_is_said() -> None:
    assert fate("fully_async", "trainer.logger=[console,swanlab]")[0] == "substituted"


def test_the_folder_of_the_run_is_the_parent_of_verls() -> None:
    options = ("trainer.experiment_name=exp", "trainer.default_local_dir=/ckpts/project/exp")
    found = settings("fully_async", *options)
    assert (found["run.name"], found["run.dir"]) == ("exp", "/ckpts/project")


@pytest.mark.parametrize(("path", "is_told"), [("Qwen/Qwen3-8B", True), ("models/Qwen3-8B", False)])
def test_a_name_on_the_hub_is_told_how_to_become_a_directory(path: str, is_told: bool) -> None:
    toml = translated("synchronous", f"actor_rollout_ref.model.path={path}").toml
    assert ("hf download" in toml) == is_told


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


@pytest.mark.parametrize("path", ["reward_model.model.path", "reward.reward_model.model_path"])
def test_a_reward_model_is_asked_at_a_server_of_ones_own_for_its_raw_score(path: str) -> None:
    options = (f"{path}=models/judge", "reward_model.enable=True")
    found = settings("synchronous", *options)
    assert found["reward.function"] == "reward_model"
    assert found["reward.options"] == {
        "url": "http://127.0.0.1:8000/classify", "model": "models/judge", "activation": False,
    }  # fmt: skip
    translation = translated("synchronous", *options)
    assert translation.verdict == "runs with substitutions"
    assert "vllm serve models/judge" in fate("synchronous", options[1], options[0])[1]
