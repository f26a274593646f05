"""The sdist and the wheel that is built from it hold what they should, and nothing else."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from shutil import copytree, ignore_patterns
from venv import EnvBuilder

import pytest

from asyncrl.version import VERSION

ROOT = Path(__file__).parents[1]
PARTS = ("asyncrl", "bin", "conf", "docs", "examples", "requirements", "tests/cli")
"""Folders that the built tree has; one of the tests is there, so that its absence in the sdist means something."""
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
LEFTOVERS = ("__pycache__", ".pyc", ".egg-info")

pytestmark = pytest.mark.slow("builds distributions")


def files(*folders: str, pattern: str = "*") -> set[str]:
    """Paths of files in the repository, except those behind links to folders."""
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob(pattern)
        if path.is_file() and not any(part.startswith(LEFTOVERS) or part.endswith(LEFTOVERS) for part in path.parts)
    }


def build(kind: str, source: Path, target: Path) -> Path:
    """Build without network; the backend is the environment's own."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(target)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return target / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist."""
    tree, target = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("sdist")
    for part in PARTS:
        copytree(ROOT / part, tree / part, symlinks=True, ignore=ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            (tree / path.name).write_bytes(path.read_bytes())
    with tarfile.open(build("build_sdist", tree, target)) as archive:
        archive.extractall(target, filter="data")
    (unpacked,) = (path for path in target.iterdir() if path.is_dir())
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("build_wheel", sdist, tmp_path_factory.mktemp("wheel"))


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_sdist_has_what_one_reads_and_runs(sdist: Path) -> None:
    found = {path.relative_to(sdist).as_posix() for path in sdist.rglob("*") if path.is_file()}
    expected = files("bin", "conf", "docs", "examples", "requirements") | files("asyncrl", pattern="*.py")
    assert expected - found == set()
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "mkdocs.yml"} <= found


def test_the_sdist_has_no_tests_and_no_leftovers(sdist: Path) -> None:
    found = {path.relative_to(sdist).as_posix() for path in sdist.rglob("*") if path.is_file()}
    assert {name for name in found if name.startswith(("tests/", "bench/", "runs/", "cache/"))} == set()
    assert {name for name in found if "__pycache__" in name} == set()


def test_the_wheel_has_every_module_and_all_package_data(wheel: Path) -> None:
    package, shipped = files("asyncrl"), {f"asyncrl/shipped/{name}" for name in files("conf", "docs", "examples")}
    assert {"asyncrl/py.typed", "asyncrl/tools/services/templates/systemd/asyncrl@.service"} <= package
    assert package | shipped == in_wheel(wheel)


def test_the_metadata_says_what_it_is_and_names_every_extra(wheel: Path) -> None:
    said = metadata(wheel)
    assert (said["Name"], said["Version"], said["License-Expression"]) == ("asyncrl", VERSION, "Apache-2.0")
    assert said["Requires-Python"] == ">=3.11"
    assert said["Keywords"]
    assert "Typing :: Typed" in (said.get_all("Classifier") or [])
    assert {"node", "train", "vllm", "tracking"} <= set(said.get_all("Provides-Extra") or [])


def test_pages_and_citation_name_this_version(wheel: Path) -> None:
    for page in ("README.md", "docs/own-run.md"):
        assert f"dist/{wheel.name}[train]" in (ROOT / page).read_text(encoding="utf-8"), page
    assert f'version: "{VERSION}"' in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {VERSION}, " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_core_needs_nothing_large(wheel: Path) -> None:
    core = [need for need in metadata(wheel).get_all("Requires-Dist") or [] if "extra ==" not in need]
    names = {need.partition(">")[0].strip() for need in core}
    assert names.isdisjoint({"torch", "transformers", "numpy", "pyarrow", "vllm", "pillow"})
    assert "pyzmq" in names


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs of an environment that has the wheel, and of this one nothing but other packages."""
    folder = tmp_path_factory.mktemp("installed")
    EnvBuilder(symlinks=True).create(folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(
        sysconfig.get_path("purelib")
    )  # whose own links, as to this tree, are not followed
    return python.parent


def test_the_wheel_alone_brings_the_first_page_and_trains(installed: Path, toy: Path, tmp_path: Path) -> None:
    shutil.copy(toy / "toy.toml", tmp_path)

    def asyncrl(*words: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(installed / "asyncrl"), *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    assert VERSION in asyncrl("--version")
    assert "conf/quickstart.toml" in asyncrl("example", "quickstart")
    asyncrl("example", "docs")
    assert (tmp_path / "docs" / "tutorial.md").exists()
    assert "finished: 2 of 2 steps" in asyncrl("run", "toy.toml", "--set", "run.steps=2", "--set", "rollout.replicas=1")
    assert "everything adds up" in asyncrl("audit", "runs/toy")
