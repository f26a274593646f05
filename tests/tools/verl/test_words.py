"""Every word of a launch line has one account: options, flags, runners, files that were not read, and variables."""

from collections import Counter

import pytest

from asyncrl.tools.verl.launch import find_launch
from asyncrl.tools.verl.trainers import CONFIGS
from asyncrl.tools.verl.translate import Translation, translate
from asyncrl.tools.verl.words import VARIABLES, parse_line
from tests.tools.verl.launches import NEEDED, fates

MAIN = ("python3", "-m", "verl.trainer.main_ppo")
GROUP = "actor_rollout_ref.rollout.n=4"


def translated(*command: str, script: str = "", **variables: str) -> Translation:
    return translate(find_launch([list(command)], environments=[variables], script=script))


LINES = [
    (*MAIN, *NEEDED, GROUP),
    ("ray", "job", "submit", "--no-wait", "--runtime-env", "env.yaml", "--working-dir", ".", "--", *MAIN, *NEEDED),
    ("env", "NCCL_DEBUG=INFO", *MAIN, "--config-path=config", "--config-name", "ppo_megatron_trainer", *NEEDED, GROUP),
    ("torchrun", "--nproc_per_node=8", "-m", "verl.trainer.main_ppo", *NEEDED, "~data.seed", "data.nonsense=1"),
    ("nohup", "python3", "-u", "verl/trainer/main_ppo.py", *NEEDED, GROUP, "left", "--over", "data.shuffle=False"),
    (*MAIN, *NEEDED, GROUP, "data.shuffle=False", "data.shuffle=True", "+trainer.x={a:1,b:2}", "model_engine=megatron"),
]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_the_words_of_the_accounts_are_those_of_the_line(line: tuple[str, ...]) -> None:
    accounts = [account for account in translated(*line).accounts if not account.option.endswith(")")]
    words = Counter(word for account in accounts for word in account.option.split())
    assert words == Counter(line)
    assert all(account.detail for account in accounts)


def test_a_command_that_runs_no_module_is_no_line() -> None:
    assert parse_line(["pip", "install", "-r", "requirements.txt"]) is None


# ── configurations ────────────────────────────────────────────────────────────────────────────


def test_a_configuration_of_verl_sets_what_the_line_does_not() -> None:
    found = fates(translated(*MAIN, *NEEDED, GROUP, "--config-name=gsm8k_multiturn_grpo", "data.train_batch_size=8"))
    assert found["--config-name=gsm8k_multiturn_grpo"].fate == "mapped"
    assert found["data.max_prompt_length=1024 (gsm8k_multiturn_grpo)"].detail == "data.max_prompt_tokens = 1024"
    assert found["actor_rollout_ref.rollout.name=sglang (gsm8k_multiturn_grpo)"].fate == "substituted"
    assert not [text for text in found if text.startswith("data.train_batch_size=256")]


def test_a_configuration_that_was_not_read_is_named() -> None:
    found = fates(translated(*MAIN, *NEEDED, "--config-path", "mine", "--config-name", "mine.yaml"))
    assert found["--config-name mine.yaml"].fate == "unknown"
    assert "the configuration 'mine' was not read" in found["--config-name mine.yaml"].detail
    assert found["--config-path mine"].fate == "unknown"


def test_the_options_of_verls_configurations_are_in_the_tables() -> None:
    for name in CONFIGS:
        accounts = translated(*MAIN, *NEEDED, GROUP, f"--config-name={name}").accounts
        assert not [account for account in accounts if account.fate == "unknown"], name


# ── environment ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "fate"),
    [
        ("HCCL_CONNECT_TIMEOUT", "mapped"),
        ("VLLM_ATTENTION_BACKEND", "mapped"),
        ("NCCL_IB_DISABLE", "mapped"),
        ("VLLM_USE_V1", "not needed"),
        ("RAY_DEDUP_LOGS", "not needed"),
        ("SGLANG_ENABLE_X", "not needed"),
        ("MINE", "unknown"),
    ],
)
def test_a_variable_has_an_account(name: str, fate: str) -> None:
    translation = translated(*MAIN, *NEEDED, GROUP, **{name: "7"})
    assert fates(translation)[f"{name}=7"].fate == fate
    head = translation.toml.partition("\n\n")[0]
    assert (f"start asyncrl with these variables: {name}=7" in head) == (fate == "mapped")


def test_a_variable_of_the_script_itself_is_in_its_options_already() -> None:
    found = fates(translated(*MAIN, *NEEDED, GROUP, script="export MINE=7\nx=${MINE}\n", MINE="7"))
    assert found["MINE=7"].detail.startswith("the script itself reads it")


def test_the_value_of_a_key_is_not_printed() -> None:
    translation = translated(*MAIN, *NEEDED, GROUP, WANDB_API_KEY="secret")
    assert fates(translation)["WANDB_API_KEY=..."].fate == "mapped"
    assert "secret" not in translation.toml


def test_variables_of_a_runtime_environment_are_accounted_for() -> None:
    words = ("ray", "job", "submit", '--runtime-env-json={"env_vars": {"NCCL_DEBUG": "INFO"}}', "--", *MAIN, *NEEDED)
    assert fates(translated(*words))["NCCL_DEBUG=INFO"].fate == "mapped"


def test_a_runtime_environment_that_was_not_read_is_named_but_for_verls_own() -> None:
    words = ("ray", "job", "submit", "--runtime-env=env.yaml", "--", *MAIN, *NEEDED)
    assert fates(translated(*words))["--runtime-env=env.yaml"].fate == "unknown"
    own = tuple(word.replace("env.yaml", "/verl/verl/trainer/runtime_env.yaml") for word in words)
    assert fates(translated(*own))["--runtime-env=/verl/verl/trainer/runtime_env.yaml"].fate == "not needed"


def test_every_pattern_of_variables_has_a_reason() -> None:
    assert all(why and fate in ("mapped", "not needed") for _, fate, why in VARIABLES)
