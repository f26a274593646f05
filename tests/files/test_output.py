from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.files.output import check_output, output


def test_a_file_is_replaced(tmp_path: Path) -> None:
    with output(tmp_path / "new" / "page.html") as unfinished:
        unfinished.write_text("new")

    assert (tmp_path / "new" / "page.html").read_text() == "new"


def test_a_folder_is_one_sentence(tmp_path: Path) -> None:
    sentence = f"cannot write {tmp_path}: it is a folder, not a file; give the path of a file that can be written"
    with pytest.raises(ConfigError) as failure, output(tmp_path):
        pytest.fail("there is nothing to write to")
    with pytest.raises(ConfigError) as early:
        check_output(tmp_path)

    assert str(failure.value) == str(early.value) == sentence


def test_a_place_that_cannot_exist_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*file/page\.html: (Not a directory|File exists); give"):
        write(tmp_path / "file" / "page.html")


def write(path: Path) -> None:
    with output(path) as unfinished:
        unfinished.write_text("new")


def test_a_path_that_can_be_written_is_no_error(tmp_path: Path) -> None:
    check_output(tmp_path / "page.html")
