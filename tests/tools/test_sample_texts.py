"""A few samples of one file are chosen for people."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.records.samples import SamplesWriter
from asyncrl.tools.sample_texts import SampleText, chosen, held_out_file, read_texts, trained_file
from tests.records.test_samples import samples_row, written


def text(group_id: int, index: int, reward: float) -> SampleText:
    return SampleText(
        step=0, group_id=group_id, index=index, prompt="", completion="", answer="", reward=reward,
        finish_reason="stop", num_tokens=1, staleness=0, oldest_version=0,
    )  # fmt: skip


ROWS = [text(1, 0, 0.5), text(1, 1, 1.0), text(2, 0, 0.0), text(2, 1, 1.0)]


@pytest.mark.parametrize(
    ("order", "places"),
    [
        ("spread", [(1, 0), (2, 0), (1, 1)]),
        ("best", [(1, 1), (2, 1), (1, 0)]),
        ("worst", [(2, 0), (1, 0), (1, 1)]),
    ],
)
def test_different_groups_come_first_unless_the_reward_decides(order, places) -> None:
    assert [(one.group_id, one.index) for one in chosen(ROWS, 3, order)] == places


def test_the_newest_step_is_read_unless_another_is_named(tmp_path: Path) -> None:
    early, late = (
        written(tmp_path, 3, [samples_row(0, [1])]),
        written(tmp_path, 4, [samples_row(0, [1, 2]), samples_row(1, [])]),
    )
    assert (trained_file(tmp_path, None), trained_file(tmp_path, 4)) == (late, early)
    assert [(one.num_tokens, one.prompt, one.completion) for one in read_texts(late)] == [
        (2, "2 + 3 = ?", "5 ✓"),
        (0, "2 + 3 = ?", "5 ✓"),
    ]
    with pytest.raises(ConfigError, match=r"no samples of step 9 in .*; the newest are of step 5"):
        trained_file(tmp_path, 9)


def test_an_evaluation_is_named_by_the_steps_before_it(tmp_path: Path) -> None:
    writer = SamplesWriter(tmp_path)
    files = [writer.write(writer.answers_path(n), [replace(samples_row(0, [1]), step=2 * n)]) for n in (1, 5)]
    assert (held_out_file(tmp_path, None), held_out_file(tmp_path, 2)) == (files[1], files[0])
    with pytest.raises(ConfigError, match="no evaluation after 3 steps; there are held-out samples after 2, 10 steps"):
        held_out_file(tmp_path, 3)


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"broker\.samples is false"):
        trained_file(tmp_path, None)
    with pytest.raises(ConfigError, match=r"there are no held-out samples in .*held_out"):
        held_out_file(tmp_path, None)
    damaged = tmp_path / "step_000001.parquet"
    damaged.write_bytes(b"?")
    with pytest.raises(LedgerError, match=r"step_000001\.parquet cannot be read"):
        read_texts(damaged)


def test_a_file_of_an_earlier_version_has_one_turn(tmp_path: Path) -> None:
    path = written(tmp_path, 4, [samples_row(0, [1])])
    pq.write_table(pq.read_table(path).drop_columns(["num_turns"]), path)
    assert [one.num_turns for one in read_texts(path)] == [1]
