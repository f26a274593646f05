"""Output and errors of the commands of `asyncrl`."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from asyncrl import __main__ as entry
from asyncrl.cli.main import TASKS, main
from asyncrl.records.run_directory import RunDirectory
from asyncrl.version import VERSION
from tests.cli.invoke import asyncrl


def test_h_is_help_everywhere():
    for command in (("-h",), ("run", "-h"), ("keys", "new", "-h")):
        assert asyncrl(*command).output.startswith("Usage: ")


def test_version():
    assert VERSION in asyncrl("--version").output


def test_help_lists_every_command_once_by_its_task():
    told = [name for names in TASKS.values() for name in names]
    assert sorted(told) == sorted(main.commands)
    lines = asyncrl("--help").output.splitlines()
    assert [line.split()[0] for line in lines if re.match(r"  [a-z]+(-[a-z]+)*  ", line)] == told


def pages(command: click.Command, *words: str) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from pages(below, *words, name)


@pytest.mark.parametrize("words", list(pages(main)), ids=" ".join)
def test_help_fits_a_terminal_of_80_columns(words):
    assert [line for line in asyncrl(*words, "--help").output.splitlines() if len(line) > 80] == []


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
        "sample",
        "export",
        "track",
    }
    operating = {
        "drain",
        "admit",
        "status",
        "ls",
        "top",
        "logs",
        "attach",
        "stop",
        "pause",
        "unpause",
        "set",
        "stacks",
    }
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
    assert (_commands("services")) == {"install", "uninstall"}
    assert (_commands("reward")) == {"try"}
    assert (_commands("loss")) == {"try"}
    assert (_commands("advantage")) == {"try"}
    assert (_commands("toy")) == {"step-sums", "hidden-sums", "drawn-squares", "smollm2", "random"}
    assert [param.opts[0] for param in main.commands["run"].params] == [
        "config_path",
        "--set",
        "--dry-run",
        "--device-memory",
        "--host-memory",
        "--scale",
        "--resume",
        "--detach",
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
    assert "..." not in group.get_help(click.Context(group, terminal_width=width)).rpartition("--help")[2]


def test_defaults_in_words_have_no_second_brackets():
    main_context = click.Context(main, terminal_width=200, **main.context_settings)
    for group in _groups(main):
        for command in group.commands.values():
            assert "[default: (" not in command.get_help(click.Context(command, parent=main_context))


@pytest.mark.parametrize("command", ["report", "eval", "prepare"])
def test_a_folder_as_output_file_is_one_sentence(config, tmp_path, command):
    commands = {
        "report": ["report", RunDirectory.create(tmp_path, "one").path, "-o", tmp_path],
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
from asyncrl.cli.main import TASKS, main
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


@pytest.mark.parametrize("command", ["", "run", "status", "keys add", "import-verl"])
def test_h_is_short_for_help_everywhere(command: str) -> None:
    result = asyncrl(*command.split(), "-h")
    assert result.exit_code == 0
    assert result.output == asyncrl(*command.split(), "--help").output


def test_ctrl_c_is_one_sentence_and_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("asyncrl.cli.launch.load_config", interrupted)
    monkeypatch.setattr("asyncrl.records.run_record.find_runs", interrupted)
    for command in ("run x.toml", "attach", "status"):  # in a command, and while its arguments are read
        result = asyncrl(*command.split())
        assert (result.exit_code, result.stdout, result.stderr) == (130, "", "asyncrl: interrupted\n")


@pytest.mark.parametrize("command", [entry.main, entry.node])
def test_ctrl_c_is_one_sentence_while_a_command_is_being_imported_too(
    command: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "import_module", interrupted)
    with pytest.raises(SystemExit, match="130"):
        command()
    assert capsys.readouterr().err == "asyncrl: interrupted\n"


def test_a_path_that_cannot_be_used_is_one_sentence_in_every_command(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in (("example", "quickstart", "--to"), ("toy", "step-sums")):
        result = asyncrl(*command, tmp_path / "file" / "sub")
        (sentence,) = result.stderr.splitlines()
        assert result.exit_code == 78
        assert f"{tmp_path}/file/sub" in sentence
        assert "Not a directory" in sentence


def test_a_file_name_that_the_locale_cannot_read_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def encoded(*_: object) -> None:
        "/r\udcc3".encode()

    monkeypatch.setattr("asyncrl.cli.launch.load_config", encoded)
    result = asyncrl("run", "x.toml")
    assert result.exit_code == 78
    assert result.stderr.startswith("asyncrl: '/r\\udcc3' is no text in UTF-8, because this shell has file names in ")
