"""Written files: idempotent, and never over a change made by hand."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from asyncrl.cli.services.install import problems, to_write, write_files
from asyncrl.cli.services.render import Manager
from asyncrl.errors import ConfigError

TEXTS = {"a.service": "[Service]\nExecStart=/bin/true\n", "a.service.d/10.conf": "[Service]\nUMask=0077\n"}


def write(folder: Path, texts: Mapping[str, str], manager: Manager = "systemd", *, force: bool = False) -> list[Path]:
    """Write what differs; returns the files that changed."""
    changed = to_write(manager, folder, texts, force=force)
    write_files(changed)
    return list(changed)


def test_files_are_written_once(tmp_path):
    assert write(tmp_path, TEXTS) == [tmp_path / name for name in TEXTS]
    assert write(tmp_path, TEXTS) == []
    assert all((tmp_path / name).read_text().endswith(text) for name, text in TEXTS.items())


def test_a_new_text_replaces_an_old_one_that_nobody_changed(tmp_path):
    write(tmp_path, TEXTS)
    newer = TEXTS | {"a.service": "[Service]\nExecStart=/bin/false\n"}
    assert write(tmp_path, newer) == [tmp_path / "a.service"]


@pytest.mark.parametrize("by_hand", ["another first line\n", ""])
def test_a_file_changed_by_hand_is_kept_and_nothing_else_is_written(tmp_path, by_hand):
    write(tmp_path, TEXTS)
    path = tmp_path / "a.service"
    path.write_text(by_hand + path.read_text() + "Nice=5\n")
    newer = {name: text + "# newer\n" for name, text in TEXTS.items()}
    with pytest.raises(ConfigError, match=r"changed by hand: .*a\.service; keep the changes in a drop-in"):
        write(tmp_path, newer)
    assert "Nice=5" in path.read_text()
    assert "newer" not in (tmp_path / "a.service.d" / "10.conf").read_text()
    assert write(tmp_path, newer, force=True) == [tmp_path / name for name in TEXTS]
    assert "Nice=5" not in path.read_text()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot (write|read) .*a\.service"):
        write(tmp_path / "file", TEXTS)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_names_a_mistake():
    texts = {"asyncrl-x.service": "[Service]\nExecStart=/bin/true\nColour=red\n"}
    (problem,) = problems("systemd", texts) or []
    assert "Colour" in problem
    assert problem.startswith("asyncrl-x.service:"), "the file is not written yet, and has no folder"
    good = {"asyncrl-x.service": "[Service]\nExecStart=/bin/true\n"}
    assert problems("systemd", good) == []


def test_supervisord_names_a_mistake():
    pytest.importorskip("supervisor")
    good = "[supervisord]\n[program:x]\ncommand=/bin/true\n"
    for text, count in ((good, 0), (good + "startsecs=soon\n", 1)):
        assert len(problems("supervisord", {"asyncrl.conf": text}) or []) == count


def test_what_an_operator_changed_is_kept_where_the_manager_reads_it(tmp_path: Path):
    (tmp_path / "asyncrl.conf").write_text("mine\n")
    with pytest.raises(
        ConfigError, match=r"keep the changes in a file of its folder asyncrl\.d, such as asyncrl\.d/local"
    ):
        write(tmp_path, {"asyncrl.conf": "[supervisord]\n"}, "supervisord")
