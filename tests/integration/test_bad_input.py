"""User errors give one sentence and a distinct exit code, before anything starts."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from asyncrl.broker.ledger.records import Dropped, FailedAttempt, LeftOut
from asyncrl.cli.main import main as asyncrl
from asyncrl.cli.node import main as asyncrl_node

Toy = Callable[..., Result]
CONFIG = """
[model]
path = "{toy}/model"
[data]
train = "{toy}/train.parquet"
[reward]
function = "gsm8k"
[run]
dir = "runs"
"""


def command(module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def run_file(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small run file in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.toml").write_text(CONFIG.format(toy=toy))
    return "toy.toml"


@pytest.fixture
def run(run_file: str) -> Toy:
    """`asyncrl run` of the file with overrides, in this process."""

    def run(*overrides: str) -> Result:
        options = [part for override in overrides for part in ("--set", override)]
        return CliRunner().invoke(asyncrl, ["run", run_file, *options])

    return run


def assert_one_sentence(done: Result, *parts: str) -> None:
    """One line on standard error with all ``parts``, and the exit code of a configuration error."""
    assert_one_sentence_of(done.stderr, done.exit_code, *parts)


def assert_one_sentence_of(errors: str, code: int | None, *parts: str) -> None:
    assert code == 78, errors
    (line,) = errors.splitlines()
    assert line.startswith("asyncrl: ")
    for part in parts:
        assert part in line, line


# ── `asyncrl run`, before anything starts ───────────────────────────────────────────────────


def test_an_unknown_key_is_named_with_a_suggestion(run_file, tmp_path):
    done = command("asyncrl", "run", run_file, "--set", "schedule.stalenes=2", cwd=tmp_path)
    assert_one_sentence_of(done.stderr, done.returncode, "unknown key 'schedule.stalenes'", "'schedule.staleness'")
    assert not (tmp_path / "runs").exists(), "nothing was started"


def test_contradictory_values_are_refused(run):
    assert_one_sentence(run("schedule.group_size=1"), "schedule.group_size is 1", "use at least 2")


def test_a_missing_model_is_refused(run):
    assert_one_sentence(run("model.path=nowhere"), "model.path 'nowhere'", "asyncrl toy step-sums DIR")


def test_a_missing_configuration_file_is_refused():
    assert_one_sentence(CliRunner().invoke(asyncrl, ["run", "nowhere.toml"]), "no such config file: nowhere.toml")


def test_a_missing_dataset_is_refused(run, tmp_path):
    assert_one_sentence(run("data.train=nowhere.parquet"), "nowhere.parquet")


def test_a_missing_column_is_named(run, tmp_path):
    pq.write_table(pa.table({"question": ["how many"], "answer": ["1"]}), tmp_path / "other.parquet")
    assert_one_sentence(run("data.train=other.parquet"), "other.parquet", "'prompt'", "question")


def test_an_empty_dataset_is_refused(run, tmp_path):
    columns = {"prompt": pa.array([], pa.string()), "answer": pa.array([], pa.string())}
    pq.write_table(pa.table(columns), tmp_path / "empty.parquet")
    assert_one_sentence(run("data.train=empty.parquet"), "empty.parquet")


# ── a port that is in use ───────────────────────────────────────────────────────────────────


def test_a_busy_port_ends_the_run_and_is_reported(run_file, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        bind = f"broker.bind=tcp://127.0.0.1:{port}"
        done = command("asyncrl", "run", run_file, "--set", bind, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"asyncrl: broker-0 exited with 69: cannot bind tcp://127.0.0.1:{port}: the port is in use; "
        f"stop what holds it, or bind port 0\n"
    )


# ── `asyncrl-node` ──────────────────────────────────────────────────────────────────────────


def test_an_unreachable_broker_is_reported(tmp_path):
    arguments = ["--role", "reward", "--broker", "tcp://127.0.0.1:1", "--wait", "1"]
    done = command("asyncrl.cli.node", *arguments, cwd=tmp_path)
    assert done.returncode == 69
    said = done.stderr.splitlines()[-1]
    assert said.startswith(
        "asyncrl: no broker was found within 1 s: no broker of this user has left credentials for tcp:"
    )
    assert said.endswith("is it running?")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--role", "reward"], "a reward needs the broker's address, --broker tcp://HOST:PORT"),
        (["--role", "broker"], "--config FILE is missing"),
        (["--role", "trainer", "--broker", "tcp://127.0.0.1:1", "--set", "seed=1"], "are for the broker only"),
        (["--role", "reward", "--broker", "somewhere"], "'somewhere'"),
    ],
)
def test_options_that_do_not_fit_the_role_are_refused(arguments, part):
    assert_one_sentence(CliRunner().invoke(asyncrl_node, arguments), part)


def test_an_unknown_role_is_refused_with_the_known_ones():
    done = CliRunner().invoke(asyncrl_node, ["--role", "cook"])
    assert done.exit_code == 2
    assert "'cook' is not one of 'broker', 'rollout', 'reward', 'trainer'" in done.stderr


# ── while it runs ───────────────────────────────────────────────────────────────────────────


def reward_function(folder: Path, body: str) -> str:
    path = folder / f"reward_{os.urandom(4).hex()}.py"
    path.write_text(f"import time\n\n\ndef judge(sample):\n    {body}\n")
    return f"reward.function={path}:judge"


@pytest.mark.slow("whole runs of real processes")
@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("raise ValueError('no such unit')", "no such unit"),
        pytest.param("time.sleep(60)", "0.2 s", marks=pytest.mark.long("waits for each timeout")),
        pytest.param("return float('nan')", "nan", marks=pytest.mark.long("another wrong value")),
        pytest.param("return 'good'", "'good'", marks=pytest.mark.long("another wrong value")),
    ],
    ids=["raises", "hangs", "nan", "no number"],
)
def test_a_reward_function_that_always_fails_ends_the_run(start_run, tmp_path, body, part):
    overrides = ["reward.timeout_s=0.2", "schedule.max_attempts=1", "evaluation.at_start=false"]
    run = start_run(reward_function(tmp_path, body), *overrides).end()
    assert run.code == 1
    (line,) = run.errors.splitlines()
    assert part in line
    assert run.summary.status == "failed"
    assert part in run.summary.cause
    assert run.summary.trained_tokens == 0, "no trajectory has a reward"


@pytest.mark.slow("whole runs of real processes")
def test_a_missing_reward_function_ends_the_run_as_a_configuration_error(start_run):
    run = start_run("reward.function=nowhere.py:judge").end()
    assert_one_sentence_of(run.errors, run.code, "reward.function", "nowhere.py")
    assert not run.directory.path.exists(), "nothing was started"


@pytest.mark.slow("whole runs of real processes")
def test_a_reward_function_that_sometimes_fails_costs_those_trajectories_alone(start_run, tmp_path):
    """Trajectories that always fail are left out with the reason, and their groups go on without them."""
    body = "assert sample.num_tokens % 16, 'unlucky'\n    return 1.0"
    run = start_run(reward_function(tmp_path, body), steps=4).end()
    assert run.code == 0, run.errors
    left_out = [record for record in run.records() if isinstance(record, LeftOut)]
    assert left_out
    assert all("unlucky" in record.reason for record in left_out)
    assert run.summary.steps == 4
    assert run.audit().problems == []


def write_prompts(path, num_long):
    """Write 32 rows, some of them with 70 tokens, and return their setting."""
    prompts = ["a " * 70] * num_long + ["a + 1 b How many now?"] * (32 - num_long)
    rows = [{"prompt": prompt, "answer": "1", "data_source": "toy"} for prompt in prompts]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return f"data.train={path}"


@pytest.mark.slow("whole runs of real processes")
@pytest.mark.parametrize("num_long", [8, pytest.param(32, marks=pytest.mark.long("one more run"))])
def test_prompts_that_are_too_long_are_refused_before_anything_starts(start_run, tmp_path, num_long):
    run = start_run(write_prompts(tmp_path / "train.parquet", num_long)).end()
    assert run.code == 78
    assert f"{num_long} of 32 prompts have more tokens than data.max_prompt_tokens = 64, up to 70" in run.errors


@pytest.mark.long("one more whole run")
def test_prompts_that_are_too_long_are_left_out_where_the_run_says_so(start_run, tmp_path):
    train = write_prompts(tmp_path / "train.parquet", 8)
    run = start_run(train, "data.filter_overlong_prompts=true", steps=4).end()
    assert run.code == 0, run.errors
    records = run.records()
    assert all("70 tokens" in record.reason for record in records if isinstance(record, FailedAttempt))
    assert {record.reason for record in records if isinstance(record, Dropped)} == {"overlong_prompt"}
