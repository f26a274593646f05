"""What a run reads from a row depends on neither the other rows, nor their order, nor the format of the file."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.config.sections.data import Data
from asyncrl.data.check import inspect
from asyncrl.data.dataset import BadRow, Dataset
from asyncrl.data.prepare.published import write
from asyncrl.data.table import Row, guess, open_rows
from asyncrl.messages.trajectory import Prompt
from tests.conftest import draw_picture

RED = draw_picture(24, 16, seed=1)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<"), min_size=1, max_size=6)
CHAT = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": TEXT}), min_size=1)
SCALAR = st.integers(-9, 9)
TOOL = st.fixed_dictionaries({"name": TEXT}, optional={"description": TEXT, "strict": st.booleans()})
# One type for each column, because a parquet file has no other; any value may be missing, or null.
COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.none() | TEXT | TEXT.map("<image>{}".format) | CHAT.map(json.dumps),
        "tools": st.none() | st.lists(TOOL, max_size=2),
        "answer": st.none() | TEXT,
        "images": st.none() | st.lists(st.just("red.png"), max_size=2),
        "data_source": st.none() | TEXT,
        "level": st.none() | SCALAR,
        "note.text": st.none() | TEXT,
        "tags": st.none() | st.lists(TEXT, max_size=2),
        "extra_info": st.none() | st.dictionaries(st.sampled_from(["level", "index"]), st.none() | SCALAR, min_size=1),
        "reward_model": st.none() | st.fixed_dictionaries({"ground_truth": st.none() | TEXT}),
    },
)
FIRST = {"prompt": "?", "answer": "1"}
"""A row of which each file has one, so that none lacks the columns that are needed."""


def files_of(rows: Sequence[Row], folder: Path, name: str) -> list[Path]:
    """The same rows in each format that a run reads, a parquet file with one row in each group too."""
    lines, parquet, grouped = folder / f"{name}.jsonl", folder / f"{name}.parquet", folder / f"{name}-groups.parquet"
    lines.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    write(rows, parquet)
    pq.write_table(pq.read_table(parquet), grouped, row_group_size=1)
    return [lines, parquet, grouped]


def read(files: Sequence[Path]) -> list[Any]:
    """What a run reads from each row: a prompt, without what is null in it, or the reason why it cannot be used."""
    data = Data(train=list(map(str, files)))
    dataset = Dataset.open(data.train_files, data)
    scanned = [row.found for row in dataset.scan()]
    for row, found in enumerate(scanned):
        assert isinstance(found, BadRow) or dataset.prompt(row) == found
    return [found.reason if isinstance(found, BadRow) else spoken(found) for found in scanned]


def spoken(prompt: Prompt) -> Prompt:
    given = {name: value for name, value in prompt.extra.items() if value is not None}
    return msgspec.structs.replace(prompt, extra=given)


@settings(deadline=None)
@given(st.lists(COLUMNS, min_size=1, max_size=5), st.randoms(use_true_random=False), st.integers(0, 5))
def test_a_row_is_read_as_it_is_alone_in_every_format_and_order(rows: list[Row], random: Any, cut: int) -> None:
    rows = [FIRST, *rows]
    order = random.sample(range(len(rows)), len(rows))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "red.png").write_bytes(RED)
        alone = [read(files_of([FIRST, row], folder, "alone")[:1])[1] for row in rows]
        for file in files_of(rows, folder, "rows"):
            assert read([file]) == alone
        for file in files_of([rows[place] for place in order], folder, "permuted"):
            assert read([file]) == [alone[place] for place in order]
        first, *_ = files_of([*rows[:cut], FIRST], folder, "first")
        _, second, _ = files_of([FIRST, *rows[cut:]], folder, "second")
        assert read([first, second]) == [*alone[:cut], alone[0], alone[0], *alone[cut:]]


@settings(deadline=None)
@given(st.lists(COLUMNS, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_a_check_of_a_file_says_the_same_in_every_format_and_order(rows: list[Row], random: Any) -> None:
    rows = [FIRST, *rows]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "red.png").write_bytes(RED)
        found = set()
        for each in (rows, random.sample(rows, len(rows))):
            for file in files_of(each, folder, "rows"):
                seen, columns = inspect(file), guess(open_rows(file), {})
                bad = sorted(row.reason for row in seen.bad)
                found.add((*sorted(seen.columns), len(seen.images), seen.num_without_answer, *bad, columns))
        assert len(found) == 1


@pytest.mark.parametrize("blank", [{}, {"images": None}, {"images": []}])
def test_pictures_of_later_rows_are_read_when_the_first_has_none(tmp_path: Path, blank: Row) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    rows = [FIRST | blank, {"prompt": "<image>?", "answer": "red", "images": ["red.png"]}]
    for file in files_of(rows, tmp_path, "rows"):
        plain, pictured = read([file])
        assert [len(plain.images), len(pictured.images)] == [0, 1]


def test_every_row_has_the_names_of_all_rows_of_all_files(tmp_path: Path) -> None:
    (first, *_), (_, second, _) = (
        files_of([FIRST | extra], tmp_path, name)
        for name, extra in {"a": {"level": 2, "extra_info": {"index": 7}}, "b": {"topic": "sums"}}.items()
    )
    dataset = Dataset.open([str(first), str(second)], Data(train=""))
    assert [dataset.prompt(row).extra for row in range(2)] == [
        {"level": 2, "topic": None, "index": 7},
        {"level": None, "topic": "sums", "index": None},
    ]
