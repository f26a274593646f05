"""
Pages say what works: their commands exist and run, offline, in a folder that has what they speak of; settings that they
name are settings, and their Python imports what there is.
"""

import ast
import asyncio
import importlib
import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from asyncrl.cli.main import main
from asyncrl.cli.node import main as node
from asyncrl.config.config import Config
from asyncrl.config.toml import refuse_unknown
from asyncrl.tools.cluster.judgement import ClusterMachines
from tests.examples.conftest import load_example

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
PROGRAMS = {"asyncrl": main, "asyncrl-node": node}


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


def lines(page: Path) -> list[str]:
    """Commands of the shell blocks of a page, in order, without comments."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    parts = (part for line in text.splitlines() for part in re.split(r"&&|;", line.partition(" #")[0]))
    return [part.strip() for part in parts if part.strip() and not part.startswith("#")]


def words(text: str) -> list[str] | None:
    """Words of a command of ours, from the program on; None of any other."""
    try:
        found = shlex.split(text)
    except ValueError:
        return None
    while found and (found[0] in ("sudo", "-u", "asyncrl-user") or "=" in found[0].split("/")[0]):
        found = found[1:]
    if found[:2] == ["asyncrl", "asyncrl"]:  # sudo -u asyncrl asyncrl ...
        found = found[1:]
    if not found or (program := found[0].rpartition("/")[2]) not in PROGRAMS or "|" in found:
        return None
    return [program, *found[1:]]


def spoken_of(page: Path) -> Iterator[list[str]]:
    """Commands of ours in the blocks and in the sentences of a page."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for command in (*lines(page), *SPAN.findall(text)):
        if (found := words(command)) and len(found) > 1:
            yield found


def command_of(found: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the first words name, and the rest of them."""
    command, rest = PROGRAMS[found[0]], found[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        below = command.commands.get(rest[0])
        assert below, f"{' '.join(found)}: there is no command {rest[0]}"
        command, rest = below, rest[1:]
    return command, rest


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_commands_and_options_that_there_are(page: Path) -> None:
    for found in spoken_of(page):
        command, rest = command_of(found)
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        named = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert named <= known, " ".join(found)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=lambda page: page.name)
def test_the_settings_of_a_page_are_settings(page: Path) -> None:
    for text in blocks(page, "toml"):
        settings = tomllib.loads(text)
        if "machine" in settings:
            msgspec.convert(settings, ClusterMachines)
        else:
            refuse_unknown(settings, Config)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_imports_what_there_is(page: Path) -> None:
    for text in blocks(page, "python"):
        for found in ast.walk(ast.parse(text)):
            if isinstance(found, ast.ImportFrom) and (found.module or "").startswith("asyncrl"):
                module = importlib.import_module(found.module or "")
                assert all(hasattr(module, name.name) for name in found.names), ast.unparse(found)


def test_the_rooms_of_the_readme_stand_in_the_order_of_their_imports() -> None:
    """A room imports only from rooms below it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    floors = {name.removeprefix("asyncrl."): i for i, layer in enumerate(layers) for name in layer.split(" | ")}
    (tree,) = (block for block in blocks(ROOT / "README.md", "") if block.startswith("asyncrl/ "))
    rooms = re.findall(r"^  (\w+)(?:/|\.py) ", tree, re.MULTILINE)
    assert len(rooms) > 15
    assert [floors[room] for room in rooms] == sorted(floors[room] for room in rooms)


def test_the_output_of_a_command_that_a_page_shows_is_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(blocks(ROOT / "docs/algorithms.md", "python")[0])
    page = (ROOT / "docs/own-run.md").read_text(encoding="utf-8")
    command, shown = next(
        (commands, text)
        for commands, text in re.findall(r"```sh\n([^`]*)```\n+```\n([^`]*)```", page)
        if "loss" in commands
    )
    done = CliRunner().invoke(main, shlex.split(command, comments=True)[1:])
    assert done.output == shown


def test_the_first_environment_reads_what_the_row_beside_it_has() -> None:
    page = ROOT / "docs/environments.md"
    (row,) = (json.loads(found) for found in re.findall(r"echo '(\{.*\})' >", page.read_text(encoding="utf-8")))
    names: dict[str, Any] = {}
    exec(blocks(page, "python")[0], names)
    task = SimpleNamespace(extra={name: value for name, value in row.items() if name not in ("prompt", "answer")})
    asyncio.run(names["Boxes"]().reset(task))


VALUED = ("-c", "-r", "-d", "--dest", "--wheel-dir", "--index-url", "--extra-index-url", "-i")
"""Options of pip with a value, which pip looks up nowhere."""
REQUIREMENT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(\[[a-z0-9,-]+\])?([=<>]=[0-9.]+)?")


def packages(text: str) -> list[str]:
    """Packages and folders of every pip command in a text."""
    found = []
    for command in re.findall(r"\bpip (?:install|wheel|download)\b([^`#;&|\n]*)", text):
        given = shlex.split(command)
        values = {after for option, after in pairwise(given) if option in VALUED}
        found += [word for word in given if not word.startswith("-") and word not in values]
    return found


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=lambda page: page.name)
def test_whatever_pip_is_told_to_install_is_a_package_of_its_own_name_or_a_path_that_begins_as_one(page: Path) -> None:
    """A folder's bare name is looked up on PyPI, and a stranger's package of that name is fetched and its code run."""
    for given in packages(page.read_text(encoding="utf-8")):
        assert given.startswith((".", "/")) or REQUIREMENT.fullmatch(given), f"{given}: begin a path with ./"


def test_a_path_that_looks_like_a_name_is_noticed() -> None:
    text = (
        "pip wheel --wheel-dir dist asyncrl/checkout\n`pip install -c a/b.txt ./mine 'x[y]'` pip install CHECKOUT # a/b"
    )
    assert packages(text) == ["asyncrl/checkout", "./mine", "x[y]", "CHECKOUT"]
    assert [bool(REQUIREMENT.fullmatch(given)) for given in packages(text)] == [False, False, True, False]


# ── run ───────────────────────────────────────────────────────────────────────────────────────
# The commands of a page one after the other, in a folder that has the run, the run files, the data and the functions
# that pages speak of. A run that a page starts is checked here as `--dry-run`; other tests start it.

NOT_HERE = (
    ("asyncrl-node", "a process of a run: tests/integration"),
    ("asyncrl toy", "makes models for minutes: bin/quickstart, tests/tools/toy"),
    ("asyncrl top", "until it is left: tests/cli"),
    ("asyncrl dashboard", "until it is left: tests/tools/dashboard"),
    ("asyncrl episode try", "asks a person: tests/cli/test_episodes.py"),
    ("asyncrl drain", "a run of several machines: tests/cluster"),
    ("asyncrl services install --systemd", "writes into /etc/systemd: tests/tools/services"),
    ("asyncrl data prepare reasoning-gym", "its library: tests/data"),
    ("asyncrl data prepare harbor", "task folders: tests/data"),
    ("asyncrl export RUN --adapter", "a run with adapters: tests/trainer/checkpoints"),
    ("asyncrl plan conf/plan", "simulates a cluster for half a minute: tests/tools/plan"),
    ("asyncrl run conf/smollm2.toml", "its model: tests/integration/test_smollm2.py"),
    ("asyncrl run conf/drawn-squares.toml", "its model: tests/examples"),
    ("asyncrl run conf/hidden-sums.toml", "its model: tests/examples"),
    ("asyncrl run conf/quickstart-vllm.toml", "its model: tests/rollout"),
    ("asyncrl run conf/recipes/gsm8k-qwen2.5-3b-one-step-off.toml", "eight devices: tests/conf"),
    ("asyncrl run conf/recipes/gsm8k-qwen3-8b-grpo.toml --dry-run", "eight devices: tests/conf"),
    ("asyncrl run conf/recipes/gsm8k-qwen3-8b-grpo.toml --set model.path", "eight devices: tests/conf"),
    ("asyncrl doctor conf/recipes", "eight devices: tests/tools/test_doctor.py"),
    ("asyncrl run conf/quickstart.toml --set trainer.device=cuda", "a GPU: bench/gpu.py"),
)
"""Beginnings of commands that are not run here, and who runs them."""
NAMES = {
    "RUN": "runs/my",
    "DIR": "models/base",
    "/models/Qwen3-8B": "models/base",
    "/etc/asyncrl": "etc",
    "HEX": "ab" * 32,
}
"""What stands in the folder for the names that pages use."""
RUNS = (
    "my", "my-2", "run", "quickstart", "ahead", "split", "a", "b",
    "geo3k-qwen3-vl-8b-npu", "geo3k-qwen3-vl-8b-sync-npu",
)  # fmt: skip
SETTINGS = [
    "run.steps=3",
    "schedule.groups_per_step=2",
    "schedule.group_size=2",
    "sampling.max_tokens=16",
    "trainer.warmup_steps=0",
    "evaluation.every_versions=2",
    "checkpoint.every_steps=1",
]


def to_run() -> list[tuple[str, list[list[str]]]]:
    found = [(page.name, [command for line in lines(page) if (command := words(line))]) for page in PAGES]
    here = [(page, [one for one in commands if not elsewhere(one)]) for page, commands in found]
    return [(page, commands) for page, commands in here if commands]


def elsewhere(command: list[str]) -> bool:
    return " ".join(command).startswith(tuple(beginning for beginning, _ in NOT_HERE)) or "..." in command


@pytest.fixture(scope="module")
def folder(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages speak of."""
    path = tmp_path_factory.mktemp("pages")
    for part in ("conf", "examples"):
        shutil.copytree(ROOT / part, path / part)
    shutil.copytree(toy / "model", path / "models/base")
    (path / "cache").mkdir()
    shutil.copytree(toy, path / "cache/step-sums")
    shutil.copytree(toy / "model", path / "cache/step-sums-moe/model")
    for name in ("train.parquet", "other.parquet"):
        shutil.copy(toy / "train.parquet", path / name)
    (path / "train.jsonl").write_text('{"question": "How many are 2 and 2?", "answer": "2 + 2 = 4 #### 4"}\n' * 1100)
    (path / "score.py").write_text("def score(sample):\n    return float(sample.answer in sample.completion)\n")
    (path / "my.py").write_text(blocks(ROOT / "docs/algorithms.md", "python")[0])
    (path / "my.toml").write_text((toy / "toy.toml").read_text(encoding="utf-8"))
    made = asyncio.run(load_example("loop").main(toy / "toy.toml", *SETTINGS, f"run.dir={path}/runs"))
    for name in RUNS:
        shutil.copytree(made, path / "runs" / name)
    return path


@pytest.fixture
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that a page begins in, with a short path, for sockets. What needs torch is not checked."""
    with TemporaryDirectory() as home:
        copy = Path(shutil.copytree(folder, Path(home, "pages"), symlinks=True))
        monkeypatch.chdir(copy)
        monkeypatch.setenv("HOME", home)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("asyncrl.runtime.launch.check_architecture", lambda *_: [])
        yield copy


def given(page: str) -> list[str]:
    """Commands that a page takes as done: on a page before it, or on another machine."""
    if page == "recipes.md":
        return ["data prepare gsm8k train.jsonl -o data/gsm8k/train.parquet"]
    at = "~/.config/asyncrl/keys" if page == "keys.md" else "other"
    return [f"keys init --keys {at}", f"keys add gpu1 --role rollout --keys {at}"]


@pytest.mark.slow("starts 60 commands")
@pytest.mark.parametrize(("page", "commands"), to_run(), ids=[page for page, _ in to_run()])
def test_the_commands_of_a_page_run(page: str, commands: list[list[str]], place: Path) -> None:
    for line in given(page):
        assert CliRunner().invoke(main, [str(Path(word).expanduser()) for word in line.split()]).exit_code == 0
    for key in place.glob("other/nodes/gpu1.key"):
        shutil.copy(key, "node.key")
    for command in commands:
        text = re.sub("|".join(NAMES), lambda found: NAMES[found[0]], shlex.join(command))
        program, *arguments = shlex.split(text)
        if arguments[0] == "run" and "--dry-run" not in arguments:
            arguments.append("--dry-run")
        done = CliRunner().invoke(PROGRAMS[program], arguments)
        assert done.exit_code == 0, f"{text}\n{done.output}\n{done.exception!r}"
