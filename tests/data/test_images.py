"""Pictures of rows: from bytes, dicts and paths; each file read once, and refused with a sentence."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.config.sections.data import Data
from asyncrl.data import images
from asyncrl.data import images as images_module
from asyncrl.data.dataset import BadRow, Dataset
from asyncrl.data.images import ImageFiles, check_model_reads, describe, read_files
from asyncrl.data.prompts import held_out_stream, train_stream
from asyncrl.errors import ConfigError, DataError
from asyncrl.messages.trajectory import Image, Prompt
from tests.conftest import draw_picture

RED, BLUE = draw_picture(24, 16), draw_picture(8, 8, seed=1, file_format="JPEG")
DATA = Data(train="", shuffle=False)


def image(content: bytes, width: int, height: int) -> Image:
    return Image(hashlib.sha256(content).digest(), width, height, len(content))


def parquet(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"prompt": "<image>?", "answer": "1"} | row for row in rows]), path)
    return str(path)


def scanned(path: str, data: Data = DATA) -> list[Prompt | BadRow]:
    return [row.found for row in Dataset.open([path], data).scan()]


@pytest.mark.parametrize(
    "cell",
    [
        [{"bytes": RED, "path": "anything.png"}],
        [{"bytes": RED, "path": None}],
        [{"path": "red.png"}],
        [RED],
        ["red.png"],
        {"bytes": RED, "path": ""},
        RED,
        "red.png",
    ],
)
def test_a_cell_names_or_holds_the_files_of_its_pictures(tmp_path: Path, cell: Any) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    assert read_files(cell, ImageFiles(tmp_path / "rows.parquet")) == [RED]
    (found,) = scanned(parquet(tmp_path, {"images": cell}))
    assert found == Prompt(text="<image>?", answer="1", images=[image(RED, 24, 16)])


def test_jsonl_names_its_pictures_by_paths_beside_it(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    row = {"prompt": [{"role": "user", "content": "<image>?"}], "answer": "1", "images": ["red.png"]}
    (tmp_path / "rows.jsonl").write_bytes(msgspec.json.encode(row))
    (found,) = scanned(str(tmp_path / "rows.jsonl"))
    assert isinstance(found, Prompt)
    assert found.images == [image(RED, 24, 16)]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ([{"path": ""}], "a picture must be bytes or a path, or {bytes, path} with one of them, got a dict with path"),
        ([7], "a picture must be bytes or a path, or {bytes, path} with one of them, got int 7"),
        ([b""], "a picture must be bytes or a path, or {bytes, path} with one of them, got bytes b''"),
    ],
)
def test_a_cell_without_a_picture_is_refused(tmp_path: Path, cell: Any, reason: str) -> None:
    with pytest.raises(DataError) as refused:
        read_files(cell, ImageFiles(tmp_path / "rows.parquet"))
    assert str(refused.value) == reason


def test_bad_pictures_are_bad_rows_with_their_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (images_module, images):
        monkeypatch.setattr(module, "MAX_FILE_BYTES", len(RED))
    (tmp_path / "large.png").write_bytes(bytes(len(RED) + 1))
    cells: list[list[str | bytes]] = [["gone.png"], ["large.png"], [RED], [RED, RED]]
    rows = [
        {"images": [{"bytes": item, "path": None} if isinstance(item, bytes) else {"path": item} for item in cell]}
        for cell in cells
    ]
    gone, large, fine, two = scanned(parquet(tmp_path, *rows))
    assert gone == BadRow(
        f"{tmp_path}/rows.parquet row 0", f"picture {tmp_path}/gone.png cannot be read: there is no such file"
    )
    assert isinstance(large, BadRow)
    assert (
        large.reason == f"picture {tmp_path}/large.png is too large: the limit is {len(RED):,} bytes; make it smaller"
    )
    assert isinstance(fine, Prompt)
    assert two == BadRow(
        f"{tmp_path}/rows.parquet row 3",
        "it has 2 pictures, but 1 marks <image> in its prompt; write the mark once for each picture",
    )


def test_a_mark_without_a_picture_is_a_bad_row_unless_the_settings_say_that_it_is_text(tmp_path: Path) -> None:
    for row in ({"images": pa.scalar(None, pa.list_(pa.binary())).as_py()}, {"prompt": "what does <image> mean?"}):
        (bad,) = scanned(path := parquet(tmp_path, row))
        assert isinstance(bad, BadRow)
        assert bad.reason == (
            "it has 0 pictures, but 1 marks <image> in its prompt; write the mark once for each picture, or set "
            'data.image_column = "" if no row has pictures and <image> is text'
        )
        (text,) = scanned(path, Data(train=path, image_column=""))
        assert isinstance(text, Prompt)


def test_bytes_that_are_no_picture_are_refused() -> None:
    with pytest.raises(DataError, match="cannot be read"):
        describe(b"GIF89a but not really")


def test_without_pillow_a_picture_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncrl.vision.picture", None)
    with pytest.raises(DataError, match=r"pictures, but pillow is not installed: pip install 'asyncrl.vision.'"):
        describe(RED)


def test_files_are_read_by_the_scan_alone_and_kept_by_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path, {"images": [RED]}, {"images": [BLUE]}, {"images": [RED]})
    kept: list[tuple[Image, bytes]] = []
    stream = train_stream(Data(train=path, shuffle=False), 0, lambda image, content: kept.append((image, content)))
    red, blue = image(RED, 24, 16), image(BLUE, 8, 8)
    assert kept == [(red, RED), (blue, BLUE), (red, RED)]
    assert stream.summary.num_images == 3
    monkeypatch.setattr(Path, "read_bytes", None)
    (tmp_path / "rows.parquet").unlink()
    assert [stream.at(group_id).prompt.images for group_id in range(4)] == [[red], [blue], [red], [red]]


def test_pictures_are_not_in_memory_with_the_rows(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"images": [RED]})
    dataset = Dataset.open([path], DATA)
    assert "images" in dataset.files[0].columns
    assert "images" not in dataset.files[0][0]


def test_the_digest_of_a_dataset_covers_its_pictures(tmp_path: Path) -> None:
    def digest(content: bytes) -> str:
        path = parquet(tmp_path, {"images": [content]})
        return held_out_stream(Data(train="", held_out=path), 9).summary.digest

    assert digest(RED) == digest(RED) != digest(draw_picture(24, 16, seed=2))


def test_pictures_need_a_model_that_reads_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    check_model_reads(tmp_path, 0)
    with pytest.raises(ConfigError, match=r"the prompts have 3 pictures, but the model .* reads none"):
        check_model_reads(tmp_path, 3)


def test_another_column_may_hold_the_pictures_and_must_be_there(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"figure": RED})
    data = Data(train=path, image_column="figure")
    (found,) = scanned(path, data)
    assert isinstance(found, Prompt)
    assert len(found.images) == 1
    with pytest.raises(DataError, match="has no column 'diagram'"):
        Dataset.open([path], Data(train=path, image_column="diagram"))
