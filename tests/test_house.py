"""The house stays one that a person can hold in mind: no import cycle, one class for a name, no file past 600 lines."""

import ast
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncrl

PACKAGE = Path(asyncrl.__file__).parent
ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(("asyncrl", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
MAX_LINES = 600


def at_import(body: list[ast.stmt]) -> Iterator[ast.ImportFrom]:
    """Imports that run when the module is imported."""
    for node in body:
        match node:
            case ast.ImportFrom():
                yield node
            case ast.If(test=test, orelse=orelse) if "TYPE_CHECKING" in ast.unparse(test):
                yield from at_import(orelse)
            case ast.If() | ast.Try() | ast.With() | ast.ClassDef():
                yield from at_import(node.body)


def imported(name: str) -> Iterator[str]:
    """Modules that a module imports when it is imported itself."""
    for node in at_import(TREES[name].body):
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            if (found := inner if inner in MODULES else node.module or "") in MODULES and found != name:
                yield found


def test_no_module_imports_itself_through_others() -> None:
    left = {name: set(imported(name)) for name in MODULES}
    while leaves := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in leaves}
    assert set(left) == set(), "each of these is in an import cycle, or imports one that is"


def test_no_two_classes_have_one_name() -> None:
    classes = Counter(node.name for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1] == []


def test_no_file_is_too_long_to_be_read_in_a_sitting() -> None:
    lengths = {name: path.read_text(encoding="utf-8").count("\n") for name, path in MODULES.items()}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a clone knows which links are part of it")
def test_no_link_leads_out_of_the_tree() -> None:
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    links = [ROOT / line.partition("\t")[2] for line in listed.splitlines() if line.startswith("120000")]
    assert links, "asyncrl/shipped has some"
    targets = {str(link.relative_to(ROOT)): link.readlink() for link in links}
    assert {link: target for link, target in targets.items() if target.is_absolute()} == {}


FROM_ITS_PLACE = re.compile(r"Path\(__file__\)(?:\.resolve\(\))?\.parents\[(\d+)\]((?: / [\"'][^\"']+[\"'])*)")
MADE_LATER = (".venv", "shared")
"""Beginnings of names of folders that a checkout may lack."""


def test_what_a_test_or_a_bench_finds_from_its_own_place_is_there() -> None:
    """A file that moved would look elsewhere, and what needs the other one would be skipped without a word."""
    lost = []
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]:
        for steps, literal in FROM_ITS_PLACE.findall(path.read_text(encoding="utf-8")):
            folder, parts = path.parents[int(steps)], re.findall(r"[\"']([^\"']+)[\"']", literal)
            begins = parts[0] if parts else ""
            if begins.startswith(MADE_LATER):
                is_there = folder == (ROOT.parent if begins.startswith("shared") else ROOT)
            else:
                is_there = folder.is_relative_to(ROOT) and folder.joinpath(*parts).exists()
            if not is_there:
                lost.append(f"{path.relative_to(ROOT)}: parents[{steps}]{literal}")
    assert lost == []


@pytest.mark.parametrize("name", ["check", "quickstart", "release", "venv", "venv-agents", "venv-oldest"])
def test_a_script_of_bin_that_is_asked_for_help_says_what_it_is_for_and_installs_nothing(name: str) -> None:
    script = ROOT / "bin" / name
    told = subprocess.run(
        [script, "--help"], capture_output=True, text=True, check=True, env={**os.environ, "PYTHON": "false"}
    )
    _, first, *_ = script.read_text().splitlines()
    assert told.stdout.startswith(first.removeprefix("# ") + "\n")


def test_the_environment_is_made_with_extras_that_are_named() -> None:
    told = subprocess.run(ROOT / "bin" / "venv", capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "usage: bin/venv EXTRA" in told.stderr
