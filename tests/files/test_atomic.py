from pathlib import Path

import pytest

from asyncrl.files.atomic import replacing


@pytest.mark.parametrize("durable", [True, False])
def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")

    with replacing(path, durable=durable) as unfinished:
        unfinished.write_text("ne")
        assert path.read_text() == "old"
        unfinished.write_text("new")

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")

    with pytest.raises(InterruptedError):
        write_half(path)

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def write_half(path: Path) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text("ne")
        raise InterruptedError


def test_missing_folders_are_created(tmp_path: Path) -> None:
    with replacing(tmp_path / "a" / "b" / "c.json") as unfinished:
        unfinished.write_text("new")

    assert (tmp_path / "a" / "b" / "c.json").read_text() == "new"
