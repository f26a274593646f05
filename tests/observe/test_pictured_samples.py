"""One trajectory of each group of the newest step, with its pictures."""

from array import array
from pathlib import Path

import pytest

from asyncrl.errors import LedgerError
from asyncrl.messages.trajectory import Image, Span
from asyncrl.observe import pictured_samples as module
from asyncrl.observe.pictured_samples import read_pictured_samples
from asyncrl.observe.samples import SampleRow, SamplesWriter

RED = Image(bytes(32), 24, 16, 3)


def row(step: int, group_id: int, index: int = 0, *, images: tuple[Image, ...] = (RED,)) -> SampleRow:
    return SampleRow(
        step=step,
        group_id=group_id,
        index=index,
        prompt=f"<image> {group_id}?",
        completion="four",
        answer="4",
        reward=1.0,
        finish_reason="stop",
        spans=[Span(0, 0, 1)],
        oldest_version=0,
        staleness=0,
        node="r",
        completion_ids=array("i", [1]).tobytes(),
        behavior_logprobs=array("f", [-0.5]).tobytes(),
        images=images,
        image_files=[b"red"] * len(images) if index == 0 else [],
    )


def write(folder: Path, *rows: SampleRow) -> Path:
    writer = SamplesWriter(folder / "samples")
    for step in {row.step for row in rows}:
        writer.write(writer.path(step), [row for row in rows if row.step == step])
    return folder / "samples"


def test_the_newest_step_is_read_and_one_trajectory_of_each_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHOWN", 2)
    folder = write(tmp_path, row(3, 1), row(4, 7), row(4, 7, index=1), row(4, 8), row(4, 9))
    found = read_pictured_samples(folder)
    assert [(sample.step, sample.prompt, sample.files) for sample in found] == [
        (4, "<image> 7?", [b"red"]),
        (4, "<image> 8?", [b"red"]),
    ]


def test_a_run_without_pictures_has_none(tmp_path: Path) -> None:
    assert read_pictured_samples(tmp_path) == []
    assert read_pictured_samples(write(tmp_path, row(3, 1, images=()))) == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "step_000001.parquet").write_bytes(b"?")
    with pytest.raises(LedgerError, match=r"step_000001\.parquet cannot be read"):
        read_pictured_samples(tmp_path)
