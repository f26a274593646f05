"""One row per completion, with or without a verdict."""

from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from asyncrl.evaluation.completions import CompletionRow, write_completions
from asyncrl.evaluation.turn_column import turn_cell
from asyncrl.messages.trajectory import FROM_PROMPT, Turn

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
