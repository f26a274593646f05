"""Written files: idempotent, and never over a change made by hand."""

import shutil
from pathlib import Path

import pytest

from asyncrl.cli.services.install import problems, write_files
from asyncrl.errors import ConfigError

TEXTS = {"a.service": "[Service]\nExecStart=/bin/true\n", "a.service.d/10.conf": "[Service]\nUMask=0077\n"}


def test_files_are_written_once(tmp_path):
    assert write_files(tmp_path, TEXTS, force=False) == [tmp_path / name for name in TEXTS]
    assert write_files(tmp_path, TEXTS, force=False) == []
    assert all((tmp_path / name).read_text().endswith(text) for name, text in TEXTS.items())


def test_a_new_text_replaces_an_old_one_that_nobody_changed(tmp_path):
    write_files(tmp_path, TEXTS, force=False)
    newer = TEXTS | {"a.service": "[Service]\nExecStart=/bin/false\n"}
    assert write_files(tmp_path, newer, force=False) == [tmp_path / "a.service"]


@pytest.mark.parametrize("by_hand", ["another first line\n", ""])
def test_a_file_changed_by_hand_is_kept_and_nothing_else_is_written(tmp_path, by_hand):
    write_files(tmp_path, TEXTS, force=False)
    path = tmp_path / "a.service"
    path.write_text(by_hand + path.read_text() + "Nice=5\n")
    newer = {name: text + "# newer\n" for name, text in TEXTS.items()}
    with pytest.raises(ConfigError, match=r"changed by hand: .*a\.service; keep the changes in a drop-in"):
        write_files(tmp_path, newer, force=False)
    assert "Nice=5" in path.read_text()
    assert "newer" not in (tmp_path / "a.service.d" / "10.conf").read_text()
    assert write_files(tmp_path, newer, force=True) == [tmp_path / name for name in TEXTS]
    assert "Nice=5" not in path.read_text()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot (write|read) .*a\.service"):
        write_files(tmp_path / "file", TEXTS, force=False)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_names_a_mistake(tmp_path):
    texts = {"asyncrl-x.service": "[Service]\nExecStart=/bin/true\nColour=red\n"}
    write_files(tmp_path, texts, force=False)
    (problem,) = problems("systemd", tmp_path, texts) or []
    assert "Colour" in problem
    good = {"asyncrl-x.service": "[Service]\nExecStart=/bin/true\n"}
    write_files(tmp_path, good, force=False)
    assert problems("systemd", tmp_path, good) == []


def test_supervisord_names_a_mistake(tmp_path: Path):
    pytest.importorskip("supervisor")
    good = "[supervisord]\n[program:x]\ncommand=/bin/true\n"
    for text, count in ((good, 0), (good + "startsecs=soon\n", 1)):
        texts = {"asyncrl.conf": text}
        write_files(tmp_path, texts, force=False)
        assert len(problems("supervisord", tmp_path, texts) or []) == count
