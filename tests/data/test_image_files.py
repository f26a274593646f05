"""Rows name regular files below their dataset's folder, or where the operator allows it; nothing else is opened."""

import os
import socket
from pathlib import Path

import pytest

from asyncrl.config.run_file import with_absolute_paths
from asyncrl.config.sections.data import Data
from asyncrl.data import images
from asyncrl.data.check import inspect
from asyncrl.data.dataset import BadRow
from asyncrl.data.images import ImageFiles
from asyncrl.data.prompts import train_stream
from asyncrl.errors import DataError
from asyncrl.messages.trajectory import Prompt
from tests.config.configs import made
from tests.conftest import draw_picture
from tests.data.test_images import parquet, scanned

RED = draw_picture(24, 16)
MOVE = "move it there, or allow its folder with data.image_folders"
ANYWHERE = ("/",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset's folder, with a picture in it and one beside it."""
    (tmp_path / "data" / "diagrams").mkdir(parents=True)
    (tmp_path / "data" / "diagrams" / "red.png").write_bytes(RED)
    (tmp_path / "outside.png").write_bytes(RED)
    return tmp_path / "data"


def refusal(folder: Path, name: str, allowed: tuple[str, ...] = ()) -> str:
    with pytest.raises(DataError) as refused:
        ImageFiles(folder / "rows.parquet", allowed).read(name)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", ["diagrams/red.png", "diagrams/../diagrams/red.png", "{folder}/diagrams/red.png"])
def test_a_file_below_the_datasets_folder_is_read(folder: Path, name: str) -> None:
    assert ImageFiles(folder / "rows.parquet").read(name.format(folder=folder)) == RED


def test_a_path_that_leaves_the_datasets_folder_is_refused_with_the_setting(folder: Path) -> None:
    (folder / "link.png").symlink_to(folder.parent / "outside.png")
    (folder / "up").symlink_to(folder.parent)
    outside = folder.parent / "outside.png"
    for name in ("../outside.png", str(outside), "link.png", "up/outside.png"):
        link = "" if name == str(outside) else f"leads to {outside}, which "
        sentence = f"picture {folder / name} {link}is not below the dataset's folder {folder}; {MOVE}"
        assert refusal(folder, name) == sentence
        assert ImageFiles(folder / "rows.parquet", [str(folder.parent)]).read(name) == RED


def test_a_refusal_does_not_tell_whether_there_is_such_a_file_elsewhere(folder: Path) -> None:
    assert refusal(folder, "../gone.png").endswith(MOVE)


def test_a_dataset_that_is_a_link_may_name_files_beside_what_it_leads_to(folder: Path) -> None:
    """As in the hub's cache: snapshots/COMMIT has links to the files of blobs/."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "c0ffee"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for name, content in (("rows.parquet", b""), ("red.png", RED)):
        (blobs / f"of-{name}").write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/of-{name}")
    assert ImageFiles(snapshot / "rows.parquet").read("red.png") == RED


def test_only_regular_files_are_opened_wherever_they_may_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(folder)  # a short path
        listening.bind("socket")
    (folder / "zero").symlink_to("/dev/zero")
    monkeypatch.setattr(os, "open", None)  # to open a device may already act on it
    kinds = {
        "/dev/zero": "a device",
        "zero": "a device",
        "pipe": "a pipe",
        "socket": "a socket",
        "diagrams": "a folder",
    }
    for name, kind in (kinds | {"diagrams": "a folder"}).items():
        sentence = f"picture {folder / name} cannot be read: it is {kind}, expected a regular file"
        assert refusal(folder, name, ANYWHERE) == sentence


@pytest.mark.skipif(not Path("/proc/kmsg").exists(), reason="this kernel has no /proc/kmsg")
def test_a_file_of_the_kernel_that_waits_for_news_does_not_hang_the_reader(folder: Path) -> None:
    assert refusal(folder, "/proc/kmsg").endswith(MOVE)
    try:
        ImageFiles(folder / "rows.parquet", ANYWHERE).read("/proc/kmsg")  # with the rights of root it may have news
    except DataError as error:
        assert "cannot be read" in str(error) or "too large" in str(error)  # noqa: PT017  each end is right but waiting


@pytest.mark.parametrize("name", ["a\0b", "\ud800.png", "a" * 5000, "loop", "gone.png"])
def test_a_path_that_is_none_is_one_sentence(folder: Path, name: str) -> None:
    (folder / "loop").symlink_to("loop")
    assert "cannot be read: " in refusal(folder, name, ANYWHERE)


def test_a_path_is_shown_with_escapes(folder: Path) -> None:
    assert refusal(folder, "\x1b[2J\n").startswith(f"picture {folder}/\\x1b[2J\\n cannot be read")


def test_a_file_is_bounded_by_what_is_read_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of a terabyte costs the limit, and one that claims to be empty is read to its end."""
    monkeypatch.setattr(images, "MAX_FILE_BYTES", 1 << 16)
    with (folder / "huge.png").open("wb") as file:
        file.truncate(1 << 40)
    sentence = f"picture {folder}/huge.png is too large: the limit is 65,536 bytes; make it smaller"
    assert refusal(folder, "huge.png") == sentence
    if Path("/proc/version").exists():
        assert ImageFiles(folder / "rows.parquet", ANYWHERE).read("/proc/version") == Path("/proc/version").read_bytes()


def test_data_check_and_a_run_have_the_same_rule(folder: Path) -> None:
    path = parquet(folder, {"images": ["diagrams/red.png"]}, {"images": ["../outside.png"]})
    inside, outside = scanned(path)
    assert isinstance(inside, Prompt)
    assert isinstance(outside, BadRow)
    assert MOVE in outside.reason
    assert inspect(Path(path)).bad == [outside]
    with pytest.raises(DataError, match=r"allow its folder with data[.]image_folders"):
        train_stream(Data(train=path), seed=0)
    allowed = Data(train=path, image_folders=[str(folder.parent)])
    assert train_stream(allowed, seed=0).num_rows == 2
    assert inspect(Path(path), allowed).bad == []


def test_allowed_folders_are_resolved_on_the_brokers_machine() -> None:
    config = made(data={"image_folders": ["pictures", "/srv"]})
    assert with_absolute_paths(config, Path("/base")).data.image_folders == ["/base/pictures", "/srv"]
