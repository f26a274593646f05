"""One trajectory of each group of the newest step, with its pictures."""

from array import array
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from asyncrl.errors import LedgerError
from asyncrl.messages.trajectory import FROM_PROMPT, Image, Span, Turn
from asyncrl.records import samples as module
from asyncrl.records.evaluation_files import turns_of
from asyncrl.records.samples import SampleRow, SamplesWriter, read_facts, read_pictured_samples

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
    monkeypatch.setattr(module, "SHOWN_PICTURES", 2)
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


# ── test samples ──────────────────────────────────────────────────────────────────────────────


def samples_row(index: int, ids: list[int], *, as_view: bool = False) -> SampleRow:
    completion_ids, logprobs = array("i", ids).tobytes(), array("f", [-0.5] * len(ids)).tobytes()
    return SampleRow(
        step=41,
        group_id=7,
        index=index,
        prompt="2 + 3 = ?",
        completion="5 ✓",
        answer="5",
        reward=1.0,
        metrics={"correct": 1.0},
        finish_reason="stop",
        spans=[Span(38, 0, 1), Span(39, 1, len(ids))],
        oldest_version=38,
        staleness=2,
        node="rollout-0",
        completion_ids=memoryview(completion_ids).cast("i") if as_view else completion_ids,
        behavior_logprobs=logprobs,
    )


def written(folder: Path, step: int, rows: list[SampleRow]) -> Path:
    writer = SamplesWriter(folder)
    return writer.write(writer.path(step), rows)


def test_rows_read_back_as_they_were_written(tmp_path: Path) -> None:
    path = written(
        tmp_path / "samples", 41, [samples_row(0, [9, 2, -1]), samples_row(1, [4], as_view=True), samples_row(2, [])]
    )

    assert path == tmp_path / "samples" / "step_000041.parquet"
    first, second, third = pq.read_table(path).to_pylist()
    assert first == {
        "step": 41,
        "group_id": 7,
        "index": 0,
        "prompt": "2 + 3 = ?",
        "completion": "5 ✓",
        "answer": "5",
        "reward": 1.0,
        "metrics": '{"correct":1.0}',
        "finish_reason": "stop",
        "num_tokens": 3,
        "spans": [
            {"policy_version": 38, "start": 0, "end": 1},
            {"policy_version": 39, "start": 1, "end": 3},
        ],
        "oldest_version": 38,
        "staleness": 2,
        "node": "rollout-0",
        "completion_ids": [9, 2, -1],
        "behavior_logprobs": [-0.5, -0.5, -0.5],
        "images": [],
        "num_turns": 1,
        "context_tokens": 0,
        "turns": [],
        "context_ids": [],
        "data_source": "",
    }
    assert (second["completion_ids"], second["num_tokens"]) == ([4], 1)
    assert (third["completion_ids"], third["behavior_logprobs"], third["num_tokens"]) == ([], [], 0)


def test_the_files_of_pictures_are_in_one_row_of_their_group(tmp_path: Path) -> None:
    images = [Image(bytes(32), 24, 16, 3)]
    rows = [
        replace(samples_row(0, [1]), images=images, image_files=[b"red"]),
        replace(samples_row(1, [2]), images=images),
    ]
    writer = SamplesWriter(tmp_path)
    first, second = pq.read_table(writer.write(writer.path(41), rows))["images"].to_pylist()
    assert first == [{"path": "00" * 32, "width": 24, "height": 16, "bytes": b"red"}]
    assert second == [{"path": "00" * 32, "width": 24, "height": 16, "bytes": None}]


def test_a_step_done_again_replaces_its_file(tmp_path: Path) -> None:
    writer = SamplesWriter(tmp_path)
    writer.write(writer.path(41), [samples_row(0, [1]), samples_row(1, [2])])
    path = writer.write(writer.path(41), [samples_row(0, [3])])

    assert [path] == list(tmp_path.iterdir())
    assert pq.read_table(path)["completion_ids"].to_pylist() == [[3]]


def test_a_step_without_rows_is_a_file_with_the_same_columns(tmp_path: Path) -> None:
    writer = SamplesWriter(tmp_path)
    full, empty = writer.write(writer.path(1), [samples_row(0, [1])]), writer.write(writer.path(2), [])

    assert pq.read_schema(empty) == pq.read_schema(full)
    assert pq.read_table(empty).num_rows == 0


def test_the_numbers_of_a_file_are_read_back(tmp_path: Path) -> None:
    path = written(tmp_path, 41, [samples_row(0, [9, 2, -1])])
    (facts,) = read_facts(path)
    assert (facts.step, facts.group_id, facts.index, facts.reward, facts.staleness) == (41, 7, 0, 1.0, 2)
    assert (facts.num_tokens, facts.spans) == (3, [Span(38, 0, 1), Span(39, 1, 3)])


TURNS = [
    Turn(FROM_PROMPT, 0, 2, text="look"),
    Turn(0, 1, 1, reward=0.5, call_s=0.25, observation="left 2", text="5 ✓", is_trained=False),
]


def test_an_episode_has_its_turns_and_the_tokens_that_its_environment_wrote(tmp_path: Path) -> None:
    context_ids = memoryview(array("i", [7])).cast("B")
    path = written(
        tmp_path, 41, [replace(samples_row(0, [9, 2, -1]), turns=TURNS, context_ids=context_ids), samples_row(1, [4])]
    )

    episode, single = pq.read_table(path).to_pylist()
    assert turns_of(episode["turns"]) == TURNS
    assert (episode["context_ids"], single["turns"], single["context_ids"]) == ([7], [], [])
    assert [(facts.num_turns, facts.context_tokens) for facts in read_facts(path)] == [(2, 1), (1, 0)]


def test_a_file_of_an_earlier_version_has_no_turns_and_is_read_all_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, 41, [samples_row(0, [9, 2, -1])])
    earlier = pq.read_table(path).drop_columns(["num_turns", "context_tokens", "turns", "context_ids"])
    pq.write_table(earlier, path)
    (facts,) = read_facts(path)
    assert (facts.num_tokens, facts.num_turns, facts.context_tokens) == (3, 1, 0)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet"])
def test_a_file_that_holds_no_samples_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "step_000041.parquet"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"step_000041\.parquet cannot be read as a samples file"):
        read_facts(path)


def test_answers_of_an_evaluation_have_a_file_of_their_own(tmp_path: Path) -> None:
    writer = SamplesWriter(tmp_path)
    path = writer.write(writer.answers_path(40), [samples_row(0, [1])])
    assert path == tmp_path / "held_out" / "version_000040.parquet"
    assert [facts.index for facts in read_facts(path)] == [0]
    assert list(tmp_path.glob("*.parquet")) == [], "which readers of trained trajectories look for"
