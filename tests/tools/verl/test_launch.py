"""The training command is found among the commands of a script, and its trainer by its module."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.tools.verl.launch import find_launch, of_options

MAIN = ["python3", "-m", "verl.trainer.main_ppo", "data.shuffle=False"]


@pytest.mark.parametrize(
    ("command", "mode"),
    [
        (MAIN, "synchronous"),
        (["python", "-m", "verl.experimental.fully_async_policy.fully_async_main", "a.b=1"], "fully_async"),
        (["python", "-m", "verl.experimental.one_step_off_policy.main_ppo", "a.b=1"], "one_step_off"),
        (["python3", "verl/trainer/main_ppo.py", "a.b=1"], "synchronous"),
        (["ray", "job", "submit", "--no-wait", "--", *MAIN], "synchronous"),
        (["torchrun", "--nproc_per_node", "8", "-m", "verl.trainer.main_ppo", "a.b=1"], "synchronous"),
    ],
)
def test_the_module_tells_the_trainer(command: list[str], mode: str) -> None:
    assert find_launch([["pip", "install", "x"], command]).mode == mode


def test_flags_are_no_options_and_tell_megatron() -> None:
    found = find_launch([["python", "-m", "verl.trainer.main_ppo", "--config-name=ppo_megatron_trainer", "a.b=1"]])
    assert found.is_megatron
    assert [key for key, override in found.overrides.items() if not override.source] == ["a.b"]


def test_an_option_without_a_section_is_one_too() -> None:
    found = find_launch([[*MAIN, "model_engine=megatron"]])
    assert found.overrides["model_engine"].value == "megatron"


def test_more_options_count_more_than_those_of_the_script_and_its_configuration_less() -> None:
    command = [*MAIN, "--config-name=search_multiturn_grpo", "data.train_batch_size=8"]
    found = find_launch([command], ["data.shuffle=True"]).overrides
    assert (found["data.shuffle"].value, found["data.train_batch_size"].value) == (True, 8)
    assert found["data.max_prompt_length"].value == 1024


def test_options_after_a_missing_backslash_are_taken_and_said() -> None:
    found = find_launch([MAIN, ["trainer.nnodes=2", "trainer.device=npu"]])
    assert found.overrides["trainer.nnodes"].value == 2
    assert found.notes[0].startswith("2 options, from 'trainer.nnodes=2' on, are a command of their own")


def test_of_several_trainings_the_first_is_taken_and_the_others_are_said() -> None:
    found = find_launch([MAIN, [*MAIN, "a.b=1"]])
    assert "a.b" not in found.overrides
    assert found.notes == ("the script starts 2 trainings; the first one is translated",)


def test_a_script_without_a_trainer_is_refused_with_what_it_runs() -> None:
    with pytest.raises(ConfigError, match=r"starts no trainer of verl.*it runs curl, pip"):
        find_launch([["pip", "install", "verl"], ["curl", "x"]])


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        (["async_training.staleness_threshold=0.5"], "fully_async"),
        (["rollout.nnodes=1"], "one_step_off"),
        (["data.train_batch_size=8"], "synchronous"),
    ],
)
def test_the_sections_of_bare_options_tell_the_trainer(options: list[str], mode: str) -> None:
    assert of_options(options).mode == mode
