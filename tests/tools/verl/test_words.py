"""Every word of a launch line has one account: options, flags, runners, files that were not read, and variables."""

from collections import Counter
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.tools.verl.launch import find_launch
from asyncrl.tools.verl.trainers import CONFIGS
from asyncrl.tools.verl.translate import Translation, translate
from asyncrl.tools.verl.words import VARIABLES, parse_line
from tests.tools.verl.launches import NEEDED, fates, raw

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


# ── files ─────────────────────────────────────────────────────────────────────────────────────
# A file that the line names is read if it is here, and named as unread if not, whatever its name is.

VERLS = "verl/trainer/runtime_env.yaml"


def translated_in(folder: Path, *command: str) -> Translation:
    return translate(find_launch([list(command)], folders=[folder]))


@pytest.mark.parametrize("flags", [("--runtime-env={}",), ("--runtime-env", "{}"), ("--env-file", "{}")])
@pytest.mark.parametrize("name", [VERLS, "mine.yml", "mine.json", "mine.env"])
def test_variables_of_a_file_are_accounted_for_if_it_is_here(tmp_path: Path, flags: tuple[str, ...], name: str) -> None:
    line = ("ray", "job", "submit", *(flag.format(name) for flag in flags), "--", *MAIN, *NEEDED, GROUP)
    text = " ".join(line[3 : 3 + len(flags)])
    unread = fates(translated_in(tmp_path, *line))
    assert (unread[text].fate, "was not read" in unread[text].detail) == ("unknown", True)
    assert "NCCL_DEBUG=INFO" not in unread
    forms = {
        ".json": '{"env_vars": {"NCCL_DEBUG": "INFO", "MINE": 1}}',
        ".env": "# ours\nexport NCCL_DEBUG='INFO'\nMINE=1\n",
    }
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(
        forms.get(Path(name).suffix, 'working_dir: ./\nenv_vars:\n  NCCL_DEBUG: "INFO"\n  MINE: "1"\n')
    )
    found = fates(translated_in(tmp_path, *line))
    assert found["NCCL_DEBUG=INFO"].fate == "mapped"
    assert found["MINE=1"].fate == "unknown"
    assert (found[text].fate, "was read" in found[text].detail) == ("not needed", True)


def test_a_file_that_is_no_environment_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text("env_vars: [")
    with pytest.raises(ConfigError, match=r"env\.yaml is no YAML"):
        translated_in(tmp_path, "ray", "--runtime-env=env.yaml", *MAIN, *NEEDED)


CONFIG = """
hydra: {searchpath: [file://verl/trainer/config]}
defaults: [ppo_megatron_trainer, ours, _self_]
data: {train_batch_size: 64}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 32, optim: {lr: 1e-6}}
  rollout: {max_num_seqs: "${data.train_batch_size}", seed: null}
"""


@pytest.mark.parametrize("name", ["mine", "ppo_trainer", "gsm8k_multiturn_grpo"])
def test_a_configuration_is_read_if_it_is_here_with_those_that_it_is_based_on(tmp_path: Path, name: str) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / f"conf/{name}.yaml").write_text(CONFIG)
    line = (*MAIN, "--config-path=conf", f"--config-name={name}", *NEEDED, GROUP)
    half = fates(translated_in(tmp_path, *line))[f"--config-name={name}"]
    assert (half.fate, "ours, on which it is based, is not here" in half.detail) == ("unknown", True)
    (tmp_path / "conf/ours.yaml").write_text("data: {max_prompt_length: 300, train_batch_size: 8}")
    translation = translated_in(tmp_path, *line)
    found, settings = fates(translation), raw(translation)
    assert found[f"--config-name={name}"].fate == "mapped"
    assert found["model_engine=megatron (ppo_megatron_trainer)"].fate == "substituted"
    assert settings["schedule"]["groups_per_step"] == 64
    assert settings["data"]["max_prompt_tokens"] == 300
    assert settings["trainer"]["lr"] == 1e-6
    assert not [text for text in found if "max_num_seqs" in text or "seed" in text or "multi_turn" in text]


def test_a_configuration_of_verls_name_in_a_folder_that_is_not_here_is_named_as_unread() -> None:
    found = fates(translated(*MAIN, *NEEDED, GROUP, "--config-path=conf", "--config-name=ppo_megatron_trainer"))
    assert found["--config-name=ppo_megatron_trainer"].fate == "unknown"
    assert "was not read: taken for verl's own of this name" in found["--config-name=ppo_megatron_trainer"].detail
    assert found["model_engine=megatron (ppo_megatron_trainer)"].fate == "substituted"


def test_every_pattern_of_variables_has_a_reason() -> None:
    assert all(why and fate in ("mapped", "not needed") for _, fate, why in VARIABLES)
