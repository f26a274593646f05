"""Several files read as one: rows numbered across files, and unusable rows named by their place."""

from pathlib import Path

import pytest

from asyncrl.config.sections.data import Data
from asyncrl.data.dataset import BadRow, Dataset, count_reasons
from asyncrl.errors import DataError
from asyncrl.messages.trajectory import Prompt

DATA = Data(train="")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A file of two rows, and one of three, the last two of them unusable."""
    (tmp_path / "a.jsonl").write_text('{"prompt": "a0", "answer": "0"}\n\n{"prompt": "a1", "answer": "1"}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "b0", "answer": "2"}\n{"prompt": "", "answer": "3"}\n{"prompt":\n')
    return [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]


def test_rows_are_numbered_across_files(files: list[str]) -> None:
    dataset = Dataset.open(files, DATA)

    assert len(dataset) == 5
    assert [dataset.prompt(row).text for row in range(3)] == ["a0", "a1", "b0"]
    assert dataset.by_file([0, 2, 1, 4]) == [[0, 1], [2, 4]]


def test_a_bad_row_is_named_by_the_line_of_its_file(files: list[str]) -> None:
    with pytest.raises(DataError, match=r"b\.jsonl line 2: 'prompt' is empty$"):
        Dataset.open(files, DATA).prompt(3)


def test_a_scan_stops_at_no_bad_row(files: list[str]) -> None:
    found = [row.found for row in Dataset.open(files, DATA).scan()]

    assert [row.text for row in found if isinstance(row, Prompt)] == ["a0", "a1", "b0"]
    assert found[3] == BadRow(f"{files[1]} line 2", "'prompt' is empty")
    assert isinstance(found[4], BadRow)
    assert (found[4].place, found[4].reason[:23]) == (f"{files[1]} line 3", "it is not a JSON object")


def test_reasons_are_counted_the_most_frequent_first() -> None:
    bad = [BadRow("row 0", "rare"), BadRow("row 1", "often"), BadRow("row 2", "often")]
    assert list(count_reasons(bad).items()) == [("often", 2), ("rare", 1)]


def test_a_held_out_file_without_a_column_of_the_training_data_is_to_be_changed(
    files: list[str], tmp_path: Path
) -> None:
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text('{"prompt": "?", "label": "1"}\n')
    data = Data(train=files, held_out=str(held_out))
    with pytest.raises(DataError) as refused:
        Dataset.open([str(held_out)], data)
    assert str(refused.value) == (
        f"held-out dataset {held_out} has no column 'answer', which the training data has (data.answer_column): "
        "it has prompt, label; rename one of them to 'answer' in that file"
    )
    with pytest.raises(DataError, match=r"name it with data\.answer_column$"):
        Dataset.open([str(held_out)], Data(train=str(held_out), held_out=str(held_out)))


def test_every_file_must_have_the_columns(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"question": "?", "answer": "1"}\n')
    with pytest.raises(DataError, match=r"c\.jsonl has no column 'prompt'"):
        Dataset.open([*files, str(tmp_path / "c.jsonl")], DATA)
