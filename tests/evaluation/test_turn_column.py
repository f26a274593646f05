"""Turns as a column of parquet."""

import pyarrow as pa
import pytest

from asyncrl.evaluation.turn_column import turn_cell, turn_type, turns_of
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Turn

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
