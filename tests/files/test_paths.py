"""Paths without detours, which name the same place."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.files.paths import absolute

NAMES = ("real", "link", "below", "..", ".")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``real/below`` and ``below``, and a link ``link`` to the former."""
    folder = tmp_path_factory.mktemp("paths").resolve()
    (folder / "real" / "below").mkdir(parents=True)
    (folder / "below").mkdir()
    (folder / "link").symlink_to(folder / "real" / "below")
    return folder


@given(st.lists(st.sampled_from(NAMES), max_size=6))
def test_a_path_names_the_same_place_without_dots(folder: Path, names: list[str]) -> None:
    found = absolute(folder.joinpath(*names))
    assert found.resolve() == folder.joinpath(*names).resolve()
    assert found.is_absolute()
    assert ".." not in found.parts


def test_links_are_kept_but_those_that_dots_leave(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert absolute(Path("real/../link/new")) == folder / "link" / "new"
    assert absolute(Path("link/../new")) == folder / "real" / "new"
