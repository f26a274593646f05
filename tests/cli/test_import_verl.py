"""`asyncrl import-verl` refuses what it cannot read, and exits with 1 if the run cannot work."""

import tomllib
from pathlib import Path

import pytest
from click.testing import Result

from asyncrl.config.run_file import load_config
from tests.cli.invoke import asyncrl

NEEDED = (
    "actor_rollout_ref.model.path=models/base",
    "data.train_files=train.jsonl",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
)
"""Options of verl that a run cannot do without."""


def test_an_output_that_cannot_be_written_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = asyncrl("import-verl", *NEEDED, "-o", str(tmp_path / "file" / "run.toml"))
    assert result.exit_code == 78
    assert result.stderr.startswith("asyncrl: cannot write ")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("trainer.val_only=True", *NEEDED), "cannot: "),
        (("algorithm.adv_estimator=grpo",), "missing: model.path is missing"),
        ((*NEEDED, "actor_rollout_ref.rollout.n=1"), "note: the run file does not pass the check"),
    ],
)
def test_a_run_that_cannot_work_is_still_printed_and_exits_with_1(options: tuple[str, ...], sentence: str) -> None:
    result = asyncrl("import-verl", *options)
    assert result.exit_code == 1
    assert tomllib.loads(result.stdout)
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere.sh",), "the script nowhere.sh cannot be read: there is no such file"),
        (("a.b=1", "nonsense"), "'nonsense' is no option: expected KEY=VALUE"),
        ((__file__, "--env", "1=2"), "--env '1=2': expected NAME=VALUE"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = asyncrl("import-verl", *arguments)
    assert result.exit_code == 78
    assert result.stderr.startswith("asyncrl: ")
    assert sentence in result.stderr


# ── test translation ──────────────────────────────────────────────────────────────────────────
# A launch script becomes a run file, and every option is accounted for.

SCRIPT = """
set -x
OPTIONS=(actor_rollout_ref.rollout.n=4 data.train_batch_size=${BATCH:-8} algorithm.adv_estimator=grpo)
python3 -m verl.experimental.one_step_off_policy.main_ppo "${OPTIONS[@]}" \\
    actor_rollout_ref.model.path=models/base data.train_files=train.jsonl "$@"
"""


def in_jail(*arguments: str) -> Result:
    result = asyncrl("import-verl", *arguments)
    if "cannot expand a launch script safely" in result.stderr:
        pytest.skip(result.stderr)
    return result


def test_options_become_a_run_file_on_stdout_and_accounts_on_stderr() -> None:
    result = asyncrl("import-verl", *NEEDED, "data.return_raw_chat=True", "+data.nonsense=1")
    assert result.exit_code == 0
    assert tomllib.loads(result.stdout)["schedule"]["groups_per_step"] == 8
    for option in (*NEEDED, "data.return_raw_chat=True", "+data.nonsense=1"):
        assert f"  {option}  " in result.stderr
    assert result.stderr.splitlines()[-1] == "not known: 5 mapped, 2 not needed, 1 unknown"
    assert "not known: the type of the model models/base" in result.stderr


def test_a_script_that_is_stopped_is_refused_with_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"while :; do :; done\n{SCRIPT}")
    monkeypatch.setattr("asyncrl.tools.verl.expand.WALL_S", 1.0)
    result = in_jail(str(script))
    assert result.exit_code == 78
    assert "did not end within 1 s and was stopped; take out what it does before the training" in result.stderr
    assert "starts no trainer" not in result.stderr


def test_the_verdict_on_a_published_model_is_that_of_a_dry_run_of_the_file(tmp_path: Path) -> None:
    out = str(tmp_path / "run.toml")
    for model, code in (("Qwen/Qwen3-8B", 0), ("zai-org/GLM-4.1V-9B-Thinking", 1)):
        options = [f"actor_rollout_ref.model.path={model}", "data.train_files=geo3k/train.parquet", *NEEDED[2:]]
        options += ["data.image_key=''"] * (code == 0)
        result = asyncrl("import-verl", *options, "-o", out)
        assert (result.exit_code, result.stderr.splitlines()[-2 + code].partition(":")[0]) == (
            code, ["runs", "cannot"][code],
        )  # fmt: skip


def test_a_script_becomes_a_valid_run_file(tmp_path: Path) -> None:
    script, out = tmp_path / "run.sh", tmp_path / "run.toml"
    script.write_text(SCRIPT)
    result = in_jail(str(script), "data.seed=3", "--env", "BATCH=16", "--rows", "160", "-o", str(out))
    assert (result.exit_code, result.stdout) == (0, f"{out}\n")
    config = load_config(out)
    assert (config.schedule.groups_per_step, config.run.seed, config.run.steps) == (16, 3, 30 * 10)


def test_rows_are_counted_if_the_data_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text('{"prompt": "1", "answer": "1"}\n' * 24)
    assert tomllib.loads(asyncrl("import-verl", *NEEDED, "trainer.total_epochs=2").stdout)["run"] == {"steps": 6}
    limited = asyncrl("import-verl", *NEEDED, "trainer.total_epochs=2", "data.train_max_samples=16")
    assert tomllib.loads(limited.stdout)["run"] == {"steps": 4}


def test_a_script_for_npus_gets_npus(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"export HCCL_CONNECT_TIMEOUT=1500\n{SCRIPT}")
    result = in_jail(str(script))
    assert tomllib.loads(result.stdout)["trainer"]["device"] == "npu"
    assert "note: the script is for Ascend NPUs" in result.stderr


@pytest.mark.parametrize("line", ["data.prompt_key=input", "data.return_multi_modal_inputs=False", "# for npu too"])
def test_a_word_with_the_letters_of_npu_makes_no_script_for_npus(tmp_path: Path, line: str) -> None:
    script = tmp_path / "run_input.sh"
    script.write_text(f"{SCRIPT.strip()[:-4]}{line}\n")
    result = in_jail(str(script))
    assert tomllib.loads(result.stdout)["trainer"]["device"] == "cuda"


def test_a_comment_between_continued_lines_loses_no_option(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    needed = " \\\n".join(NEEDED)
    text = f"python3 -m verl.trainer.main_ppo \\\n{needed} \\\n# ours\ndata.shuffle=False \\\ndata.seed=3\n"
    script.write_text(f"set -e\n{text}")
    result = in_jail(str(script))
    assert result.exit_code == 0
    assert tomllib.loads(result.stdout)["data"]["shuffle"] is False
    assert tomllib.loads(result.stdout)["run"]["seed"] == 3
    assert "2 options, from 'data.shuffle=False' on, are a command of their own" in result.stderr


def test_every_word_of_a_script_is_accounted_for_with_its_variables(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    line = f"ray job submit --no-wait -- python3 -m verl.trainer.main_ppo --config-name=ppo_trainer {' '.join(NEEDED)}"
    script.write_text(f"export HCCL_BUFFSIZE=200\nVLLM_USE_V1=1 {line} ~data.seed left\n")
    accounts = in_jail(str(script)).stderr
    for text in ("HCCL_BUFFSIZE=200", "VLLM_USE_V1=1", "ray job submit --no-wait --", "--config-name=ppo_trainer",
                 "python3 -m verl.trainer.main_ppo", "~data.seed", "left", *NEEDED):  # fmt: skip
        assert f"  {text}  " in accounts, text


def test_a_variable_that_is_empty_or_not_set_is_named(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"python3 -m verl.trainer.main_ppo {' '.join(NEEDED)} trainer.nnodes=$WORKERS\n")
    result = in_jail(str(script))
    assert result.exit_code == 1
    assert "its value is empty: give the script's variable, --env WORKERS=VALUE" in result.stderr
    assert in_jail(str(script), "--env", "WORKERS=2").exit_code == 0
    script.write_text("set -u\npython3 -m verl.trainer.main_ppo trainer.nnodes=$WORKERS\n")
    assert "WORKERS: unbound variable; give it, --env WORKERS=VALUE" in in_jail(str(script)).stderr


def test_a_script_without_a_trainer_is_refused_with_what_its_shell_says(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("set -eu\npip install verl\npython3 -m verl.trainer.main_ppo a.b=$NOWHERE\n")
    result = in_jail(str(script))
    assert result.exit_code == 78
    assert "it runs pip; " in result.stderr
    assert "; the script's shell says: line 3: NOWHERE: unbound variable" in result.stderr
