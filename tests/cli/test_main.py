"""Output and errors of the commands of `asyncrl`."""

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog
from click.testing import CliRunner, Result

from asyncrl.cli.main import main
from asyncrl.config.run_file import load_config, to_toml
from asyncrl.observe.run_directory import RunDirectory
from tests.config.model.directories import write_model, write_tokenizer


def asyncrl(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run file with a model that looks whole, and a dataset. What needs torch is not checked."""
    monkeypatch.setattr("asyncrl.cli.launch.run.check_architecture", lambda *_: [])
    write_model(tmp_path / "model")
    rows = [{"prompt": "how many", "answer": "1", "data_source": "toy"}] * 4
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    path = tmp_path / "toy.toml"
    path.write_text(
        f'[run]\nsteps = 3\ndir = "{tmp_path}/runs"\n[model]\npath = "{tmp_path}/model"\n'
        f'[data]\ntrain = "{tmp_path}/train.parquet"\n[schedule]\ngroups_per_step = 2\ngroup_size = 4\n'
        '[reward]\nfunction = "gsm8k"\n'
    )
    return path


def test_h_is_help_everywhere():
    for command in (("-h",), ("run", "-h"), ("keys", "new", "-h")):
        assert asyncrl(*command).output.startswith("Usage: ")


def test_version():
    assert importlib.metadata.version("asyncrl") in asyncrl("--version").output


def _commands(group: str) -> set[str]:
    command = main.commands[group]
    assert isinstance(command, click.Group)
    return set(command.commands)


def test_the_commands_are_these():
    looking = {
        "dashboard",
        "samples",
        "why",
        "report",
        "audit",
        "events",
        "dead-letters",
        "config",
        "doctor",
        "eval",
        "export",
        "track",
    }
    operating = {"drain", "status", "ls", "top", "logs", "stop", "pause", "resume-sampling", "set", "stacks"}
    assert set(main.commands) == {
        "run",
        "resume",
        "plan",
        "toy",
        "episode",
        "data",
        "services",
        "keys",
        "import-verl",
        "example",
        "init",
        "reward",
        "loss",
        "advantage",
        *looking,
        *operating,
    }
    assert (_commands("config")) == {"show", "explain"}
    assert (_commands("episode")) == {"try", "show"}
    assert (_commands("data")) == {"prepare", "check"}
    assert (_commands("keys")) == {"init", "add", "new", "list", "revoke", "rotate"}
    assert (_commands("services")) == {"install"}
    assert (_commands("reward")) == {"try"}
    assert (_commands("loss")) == {"try"}
    assert (_commands("advantage")) == {"try"}
    assert (_commands("toy")) == {"step-sums", "hidden-sums", "drawn-squares", "random"}
    assert [param.opts[0] for param in main.commands["run"].params] == [
        "config_path",
        "--set",
        "--dry-run",
        "--device-memory",
        "--host-memory",
        "--scale",
        "--dashboard",
        "--metrics",
        "--metrics-open",
        "--traces",
    ]


def _groups(command: click.Group) -> Iterator[click.Group]:
    yield command
    for each in command.commands.values():
        if isinstance(each, click.Group):
            yield from _groups(each)


@pytest.mark.parametrize("group", list(_groups(main)), ids=lambda group: group.name)
def test_no_summary_of_a_command_is_cut_in_80_columns(group: click.Group):
    width = 78  # click keeps two columns free
    assert "..." not in group.get_help(click.Context(group, terminal_width=width)).rpartition("Commands:")[2]


def test_defaults_in_words_have_no_second_brackets():
    main_context = click.Context(main, terminal_width=200, **main.context_settings)
    for group in _groups(main):
        for command in group.commands.values():
            assert "[default: (" not in command.get_help(click.Context(command, parent=main_context))


@pytest.mark.parametrize("command", ["run", "resume"])
def test_traces_without_their_package_are_refused_before_anything_starts(monkeypatch, command):
    monkeypatch.setitem(sys.modules, "asyncrl.observe.traces.exporter", None)
    result = asyncrl(command, "nowhere", "--traces")
    assert result.exit_code == 78
    assert "--traces needs opentelemetry: pip install 'asyncrl[traces]'" in result.output


def test_config_show_names_the_origin_of_each_value(config):
    result = asyncrl("config", "show", config, "--set", "seed=5")
    assert result.exit_code == 0
    lines = {line.split()[0]: line.split()[1:] for line in result.output.splitlines()}
    assert lines["run.seed"] == ["5", "--set"]
    assert lines["run.steps"] == ["3", "toy.toml"]
    assert lines["trainer.lr"] == ["1e-06", "default"]
    assert lines["schedule.max_staleness"] == ["unset", "default"]


def test_epochs_are_shown_as_steps(config):
    settings = ("--set", "run.epochs=5")
    shown = asyncrl("config", "show", config, *settings).output.splitlines()
    lines = {line.split()[0]: line.split()[1:] for line in shown}
    assert (lines["run.steps"], lines["run.epochs"]) == (["10", "run.epochs"], ["5.0", "--set"])
    dry = asyncrl("run", config, "--dry-run", *settings).output
    assert "run.epochs = 5 is 10 steps with the rows of data.train" in dry
    assert "10 steps of 2 groups of 4 trajectories" in dry


def test_config_show_notes_settings_that_hardly_anybody_wants(config):
    assert "note:" not in asyncrl("config", "show", config).output
    result = asyncrl("config", "show", config, "--set", "algorithm.loss=reinforce", "--set", "schedule.staleness=2")
    assert result.exit_code == 0
    assert "note: algorithm.loss is 'reinforce' with no importance weights" in result.stderr


def test_config_show_refuses_a_misspelt_key(config):
    result = asyncrl("config", "show", config, "--set", "schedule.stalenes=1")
    assert result.exit_code == 78
    assert result.stderr == "asyncrl: unknown key 'schedule.stalenes': did you mean 'schedule.staleness'?\n"


def test_a_dry_run_prints_what_would_run_and_starts_nothing(config, tmp_path):
    result = asyncrl("run", config, "--dry-run", "--set", "rollout.replicas=3")
    assert result.exit_code == 0, result.output
    assert "steps = 3" in result.output
    assert "would start: 1 broker (with spool), 3 rollouts, 1 reward, 1 trainer" in result.output
    assert (
        "3 steps of 2 groups of 4 trajectories, 24 trajectories in total; at most 4 groups open"
        in result.output.replace("\n", " ")
    )
    assert not (tmp_path / "runs").exists()


def test_a_name_on_the_hub_is_refused_with_the_command_that_downloads_it(config, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = asyncrl("run", config, "--set", "model.path=Qwen/Qwen3-0.6B", "--dry-run")
    assert result.exit_code == 78
    assert "hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B" in result.stderr


def _without(name):
    return lambda folder: (folder / name).unlink()


def _with_a_critic_without_weights(folder):
    (folder / "critic").mkdir()
    (folder / "critic" / "config.json").write_text("{}")


@pytest.mark.parametrize(
    ("spoil", "options", "sentence"),
    [
        (_without("train.parquet"), [], "no such dataset: DIR/train.parquet"),
        (_without("model/tokenizer.json"), [], "model.path=DIR/model has no tokenizer: expected tokenizer.json"),
        (_without("model/model.safetensors"), [], "model.path=DIR/model has no weights: expected model.safetensors"),
        (lambda folder: write_tokenizer(folder / "model", 99), [], "token ids up to 98, but the model knows 0 to 7"),
        (
            _with_a_critic_without_weights,
            ["--set", "critic.path=DIR/critic", "--set", "algorithm.advantage=gae"],
            "critic.path=DIR/critic has no weights",
        ),
        (
            lambda folder: (folder / "mine.py").write_text("def loss(logprobs, advantages):\n    return 0\n"),
            ["--set", "algorithm.loss=DIR/mine.py:loss"],
            "algorithm.loss 'DIR/mine.py:loss' must be def loss(tokens, *, <settings and options>), but 'advantages'",
        ),
    ],
    ids=["no dataset", "no tokenizer", "no weights", "another tokenizer", "no critic", "another signature"],
)
@pytest.mark.parametrize("is_dry", [True, False])
def test_what_a_node_would_refuse_is_refused_before_anything_starts(config, tmp_path, spoil, options, sentence, is_dry):
    spoil(tmp_path)
    named = [option.replace("DIR", str(tmp_path)) for option in options]
    result = asyncrl("run", config, *named, *(["--dry-run"] if is_dry else []))
    assert result.exit_code == 78
    assert sentence in result.stderr.replace(str(tmp_path), "DIR")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_run_without_a_model_is_refused(config, tmp_path, options):
    result = asyncrl("run", config, "--set", "model.path=nowhere", *options)
    assert result.exit_code == 78
    assert result.stderr == (
        "asyncrl: model.path 'nowhere' is not a model directory (no config.json in it): give one, or make a toy "
        "model with `asyncrl toy step-sums DIR` or `asyncrl toy random DIR --text FILE`\n"
    )
    assert not (tmp_path / "runs").exists()


def test_skipped_rows_are_reported_before_anything_starts(config, tmp_path):
    rows = [{"prompt": "how many", "answer": "1"}, {"prompt": "", "answer": "1"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")

    refused = asyncrl("run", config, "--dry-run")
    skipped = asyncrl("run", config, "--dry-run", "--set", "data.on_bad_row=skip")

    assert refused.exit_code == 78
    assert "train.parquet row 1: 'prompt' is empty" in refused.stderr
    assert "data.train:\n  1 row cannot be used\n         1  'prompt' is empty" in skipped.output


def test_chats_for_a_model_without_a_chat_template_are_refused_before_anything_starts(config, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "how many"}], "answer": "1"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")

    assert "the model has no chat template" in asyncrl("run", config, "--dry-run").stderr
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    assert asyncrl("run", config, "--dry-run").exit_code == 0


def test_several_files_of_a_run_are_looked_at_together(config, tmp_path):
    more = tmp_path / "more.parquet"
    files = f"data.train=['{tmp_path}/train.parquet', '{more}']"
    pq.write_table(pa.Table.from_pylist([{"prompt": "?", "answer": "1"}]), more)
    assert asyncrl("run", config, "--dry-run", "--set", files, "--set", "data.ratios=[3, 1]").exit_code == 0

    pq.write_table(pa.Table.from_pylist([{"question": "?", "answer": "1"}]), more)
    refused = asyncrl("run", config, "--dry-run", "--set", files)
    assert "more.parquet has no column 'prompt'" in refused.stderr


def a_run(folder: Path, name: str) -> RunDirectory:
    directory = RunDirectory.create(folder, name)
    directory.config.write_text('[model]\npath = "m"\n[data]\ntrain = "t"\n')
    directory.append_event("run.started", seed=0)
    directory.append_metrics({"step": 0, "time_s": 1.0, "reward": 0.5, "tokens": 10})
    return directory


def test_report_writes_one_page_beside_the_run(tmp_path):
    run = a_run(tmp_path, "one")
    result = asyncrl("report", run.path)
    assert (result.exit_code, result.output) == (0, f"{run.report}\n")
    assert run.report.read_text().startswith("<!")


def test_report_of_several_runs_is_written_to_the_given_file(tmp_path):
    runs = [a_run(tmp_path, name).path for name in ("one", "two")]
    result = asyncrl("report", *runs, "-o", tmp_path / "both.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "both.html").read_text()
    assert "one" in page
    assert "two" in page


def test_a_report_goes_into_a_fifo_and_leaves_it_one(tmp_path):
    run, fifo = a_run(tmp_path, "one"), tmp_path / "fifo"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(fifo.read_text)
        result = asyncrl("report", run.path, "-o", fifo)
        assert result.exit_code == 0, result.output
        assert read.result(timeout=30).startswith("<!")
    assert fifo.is_fifo()


@pytest.mark.parametrize("command", ["report", "eval", "prepare"])
def test_a_folder_as_output_file_is_one_sentence(config, tmp_path, command):
    commands = {
        "report": ["report", a_run(tmp_path, "one").path, "-o", tmp_path],
        "eval": ["eval", tmp_path / "model", "--data", tmp_path / "train.parquet", "--out", tmp_path],
        "prepare": ["data", "prepare", "jsonl", tmp_path / "train.parquet", "--data-source", "toy", "-o", tmp_path],
    }
    result = asyncrl(*commands[command])
    assert result.exit_code == 78
    assert result.stderr == (
        f"asyncrl: cannot write {tmp_path}: it is a folder, not a file; give the path of a file that can be written\n"
    )


WITHOUT_TRAIN = """
import importlib.metadata, sys

hidden, version = ("torch", "transformers", "safetensors", "numpy"), importlib.metadata.version

def lacking(name):
    if name in hidden:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

importlib.metadata.version = lacking
sys.modules.update(dict.fromkeys(hidden))
from asyncrl.cli.main import main
main()
"""


@pytest.mark.parametrize(
    "command", ["run CONFIG", "resume RUN", "eval MODEL --data DATA", "export RUN -o OUT", "toy step-sums OUT",
                "data check DATA --model MODEL"]
)  # fmt: skip
def test_without_the_packages_for_training_a_command_says_what_to_install(config, tmp_path, command):
    places = {"CONFIG": config, "RUN": tmp_path, "MODEL": tmp_path / "model", "DATA": tmp_path / "train.parquet"}
    named = [str(places.get(word, word)) for word in command.replace("OUT", str(tmp_path / "out")).split()]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRAIN, *named], capture_output=True, text=True, check=False)
    assert done.stderr == (
        "asyncrl: torch, transformers, safetensors, numpy are not installed, and trainers and rollouts need them; run: "
        "pip install 'asyncrl[train]'\n"
    )
    assert done.returncode == 78


def test_without_the_packages_for_training_a_dry_run_checks_the_rest_and_names_what_it_did_not(config):
    command = [sys.executable, "-c", WITHOUT_TRAIN, "run", str(config), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "were not checked: torch, transformers, safetensors, numpy not installed here (pip install" in done.stdout
    assert "would start: 1 broker" in done.stdout


def test_a_report_about_no_run_is_refused(tmp_path):
    result = asyncrl("report", tmp_path / "nowhere")
    assert result.exit_code not in (0, 1)
    assert len(result.stderr.splitlines()) == 1


# ── eval and export ─────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def _restore_logging():
    """These commands configure logging to standard error, which is closed after the test."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_eval_refuses_a_directory_without_a_model(config, tmp_path):
    (tmp_path / "nothing").mkdir()
    result = asyncrl("eval", tmp_path / "nothing", "--config", config, "--data", tmp_path / "train.parquet")
    assert result.exit_code == 78
    assert (
        result.stderr
        == f"asyncrl: MODEL '{tmp_path}/nothing' is not a model directory (no config.json in it): give one, or make a "
        "toy model with `asyncrl toy step-sums DIR` or `asyncrl toy random DIR --text FILE`\n"
    )


def test_eval_refuses_rows_without_a_verifier_before_it_loads_anything(config, tmp_path):
    result = asyncrl("eval", tmp_path / "model", "--data", tmp_path / "train.parquet")
    assert result.exit_code == 78
    assert "no reward is for rows with data_source 'toy'" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param([], "there is no intact checkpoint in", id="no checkpoint"),
        pytest.param(["--step", "3"], "there is no checkpoint of step 3", id="not this one"),
        pytest.param(["--step", "best"], "there is no", id="none was measured"),
        pytest.param(
            ["--step", "last"], "--step 'last': expected a number of optimizer steps, or 'best'", id="no step"
        ),
    ],
)
def test_export_refuses_a_missing_checkpoint(tmp_path, options, message):
    run = RunDirectory.create(tmp_path, "toy")
    result = asyncrl("export", run.path, "-o", tmp_path / "out", *options)
    assert result.exit_code == 78
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_export_overwrites_nothing(tmp_path):
    run = RunDirectory.create(tmp_path, "toy")
    result = asyncrl("export", run.path, "-o", tmp_path)
    assert result.exit_code == 78
    assert "exists and is never overwritten" in result.stderr


def test_export_refuses_a_missing_run(tmp_path):
    assert asyncrl("export", tmp_path / "none", "-o", tmp_path / "out").exit_code == 78


def test_an_unknown_tracker_is_refused_before_anything_starts(config):
    refused = asyncrl("run", config, "--dry-run", "--set", "trackers.use=['wanbd']")
    assert refused.exit_code == 78
    assert "did you mean 'wandb'?" in refused.stderr


# ── resume ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("steps", [1, 3])
def test_a_run_can_be_extended_but_not_shortened(config, tmp_path, steps):
    directory = RunDirectory.create(tmp_path, "run")
    directory.write_config(to_toml(load_config(config)))
    before = directory.config.read_text()

    result = asyncrl("resume", directory.path, "--steps", str(steps))

    assert result.exit_code == 78
    assert f"--steps {steps}: expected more than the run's 3 steps" in result.stderr
    assert directory.config.read_text() == before


def test_a_missing_run_cannot_be_extended(tmp_path):
    result = asyncrl("resume", tmp_path, "--steps", "9")
    assert result.exit_code == 78
    assert "no run to resume" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["", "run", "status", "keys add", "import-verl"])
def test_h_is_short_for_help_everywhere(command: str) -> None:
    result = asyncrl(*command.split(), "-h")
    assert result.exit_code == 0
    assert result.output == asyncrl(*command.split(), "--help").output
