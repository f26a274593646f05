"""One row per completion, with or without a verdict."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Image, Turn
from asyncrl.records.evaluation_files import (
    CompletionRow,
    image_cell,
    image_type,
    turn_cell,
    turn_type,
    turns_of,
    write_completions,
)

JUDGED = CompletionRow(
    place=3,
    index=1,
    data_source="sums",
    prompt="2 + 3 =",
    reference="5",
    completion="it is 5",
    answer="5",
    reward=1.0,
    correct=1.0,
    metrics={"correct": 1.0, "format": 0.5},
    finish_reason="stop",
    num_tokens=4,
    turns=turn_cell([Turn(FROM_PROMPT, 0, 3, text="look"), Turn(0, 2, 1, reward=1.0, observation="3", text="it is 5")]),
)
FAILED = CompletionRow(place=4, index=0, data_source="", prompt="?", reference="", failure="the verifier raised")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_completions(tmp_path / "new" / "answers.parquet", [JUDGED, FAILED])

    rows = pq.read_table(tmp_path / "new" / "answers.parquet").to_pylist()
    assert list(rows[0]) == list(CompletionRow.__struct_fields__)
    assert rows[0] == msgspec.to_builtins(JUDGED) | {"metrics": '{"correct":1.0,"format":0.5}'}
    assert rows[1] == msgspec.to_builtins(FAILED) | {"metrics": "{}"}


def test_columns_have_their_types_even_if_nothing_is_in_them(tmp_path: Path) -> None:
    write_completions(tmp_path / "a.parquet", [FAILED])
    write_completions(tmp_path / "b.parquet", [JUDGED])

    assert pq.read_schema(tmp_path / "a.parquet") == pq.read_schema(tmp_path / "b.parquet")


# ── test image column ─────────────────────────────────────────────────────────────────────────
# Pictures as viewers of datasets know them.

IMAGES = [Image(b"\1" * 32, 24, 16, 3), Image(b"\2" * 32, 8, 8, 4)]


def test_a_cell_names_each_picture_and_has_its_file_if_there_is_one() -> None:
    first, second = image_cell(IMAGES, [b"red", b"blue"])
    assert first == {"path": "01" * 32, "width": 24, "height": 16, "bytes": b"red"}
    assert second["bytes"] == b"blue"
    assert [cell["bytes"] for cell in image_cell(IMAGES)] == [None, None]


def test_cells_with_and_without_files_fit_the_column() -> None:
    cells = [image_cell(IMAGES, [b"red", b"blue"]), image_cell(IMAGES), []]
    assert pa.array(cells, image_type()).to_pylist() == cells


# ── test turn column ──────────────────────────────────────────────────────────────────────────
# Turns as a column of parquet.

TURNS = [
    Turn(FROM_PROMPT, 0, 3, text="look"),
    Turn(0, 2, 1, reward=0.5, is_trained=False, call_s=0.25, observation="left 2", text="4"),
    Turn(FROM_NOTHING, 9, 1),
]


def test_turns_are_read_back_as_they_were_written() -> None:
    cells = [turn_cell(TURNS), turn_cell([])]
    assert [turns_of(cell) for cell in pa.array(cells, turn_type()).to_pylist()] == [TURNS, []]
    assert turns_of(None) == []


def test_every_field_of_a_turn_has_a_column() -> None:
    assert {field.name for field in turn_type().value_type} == set(Turn.__struct_fields__)


def test_other_fields_are_no_turn() -> None:
    with pytest.raises(TypeError):
        turns_of([{"parent": 0}])
