"""Samples files hold the stored trajectories; a step with unreadable payloads is skipped."""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from asyncrl.broker.groups.group import Group
from asyncrl.broker.metrics.sample_files import SampleFiles
from asyncrl.errors import DecodeError
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.trajectory import FROM_PROMPT, Prompt, Span, Trajectory, Turn, Unit
from asyncrl.records.samples import SamplesWriter
from asyncrl.wire.spools import ImageCache


class Payloads:
    """A spool with the given trajectories, or none."""

    def __init__(self, *trajectories: Trajectory | None) -> None:
        self._trajectories = list(trajectories)

    async def fetch_all(self, refs: Sequence[SpoolRef], deadline_s: float) -> list[Trajectory | None]:
        if len(refs) != len(self._trajectories):
            raise DecodeError("the spool no longer has the payload")
        return self._trajectories


def a_group(prompt: Prompt) -> Group:
    group = Group(7, prompt, 1, min_version=0)
    group.slots[0].ref = SpoolRef("spool", 0, 0, 1, 0)
    group.slots[0].reward, group.slots[0].metrics = 0.5, {"correct": 0.0}
    return group


def written(folder: Path, group: Group, *trajectories: Trajectory) -> list[dict[str, object]]:
    files = SampleFiles(Payloads(*trajectories), ImageCache(), SamplesWriter(folder))  # type: ignore[arg-type]
    asyncio.run(files.write(Stepped(3, 5, {}), [group]))
    return [row for path in folder.glob("*.parquet") for row in pq.read_table(path).to_pylist()]


TRAJECTORY = Trajectory(
    unit=Unit(7, 0),
    prompt_ids=memoryview(b"\1\0\0\0"),
    completion_ids=memoryview(b"\2\0\0\0\3\0\0\0"),
    behavior_logprobs=memoryview(b"\0" * 8),
    spans=[Span(4, 0, 1), Span(5, 1, 2)],
    finish_reason="stop",
    text="four",
    node="ann",
)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (Prompt(text="2 + 2?", answer="4", data_source="sums"), "2 + 2?"),
        (Prompt(chat=[{"role": "user", "content": "2 + 2?"}], answer="4"), "user: 2 + 2?"),
    ],
)
def test_staleness_is_counted_from_the_oldest_token(tmp_path: Path, prompt: Prompt, said: str) -> None:
    (row,) = written(tmp_path, a_group(prompt), TRAJECTORY)

    assert (row["step"], row["group_id"], row["oldest_version"], row["staleness"]) == (3, 7, 4, 1)
    assert (row["prompt"], row["completion"], row["answer"], row["reward"]) == (said, "four", "4", 0.5)
    assert (row["completion_ids"], row["data_source"]) == ([2, 3], prompt.data_source)


def test_whoever_records_it_is_told_the_digest_of_a_file(tmp_path: Path) -> None:
    told: list[tuple[Path, str]] = []
    files = SampleFiles(
        Payloads(TRAJECTORY),  # type: ignore[arg-type]
        ImageCache(),
        SamplesWriter(tmp_path),
        written=lambda *what: told.append(what),
    )
    asyncio.run(files.write(Stepped(3, 5, {}), [a_group(Prompt(text="2 + 2?"))]))

    (path,) = tmp_path.glob("*.parquet")
    assert told == [(path, hashlib.sha256(path.read_bytes()).hexdigest())]


def test_an_episode_is_written_with_its_turns_and_context(tmp_path: Path) -> None:
    turns = [Turn(FROM_PROMPT, 0, 1, text="look"), Turn(0, 1, 1, observation="left 2", text="four")]
    episode = replace(TRAJECTORY, turns=turns, context_ids=memoryview(b"\7\0\0\0"))
    (row,) = written(tmp_path, a_group(Prompt(text="2 + 2?")), episode)
    assert (row["num_turns"], row["context_ids"]) == (2, [7])
    assert [turn["text"] for turn in row["turns"]] == ["look", "four"]  # type: ignore[attr-defined]


def test_a_step_has_its_file_once_it_is_written(tmp_path: Path) -> None:
    writer = SamplesWriter(tmp_path)
    files = SampleFiles(Payloads(TRAJECTORY), ImageCache(), writer)  # type: ignore[arg-type]
    assert not writer.path(3).exists()
    asyncio.run(files.write(Stepped(3, 5, {}), [a_group(Prompt(text="2 + 2?"))]))
    assert writer.path(3).exists()


def test_a_step_without_payloads_is_skipped(tmp_path: Path) -> None:
    assert written(tmp_path, a_group(Prompt(text="2 + 2?"))) == []


def test_a_full_disk_skips_the_samples_of_the_step(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    folder.write_text("where a folder should be")

    with capture_logs() as said:
        assert written(folder, a_group(Prompt(text="2 + 2?")), TRAJECTORY) == []

    assert [(line["event"], line["step"]) for line in said] == [("samples.skipped", 3)]


def test_trajectories_that_were_lost_with_their_spool_are_counted_and_left_out(tmp_path: Path) -> None:
    group = Group(7, Prompt(text="2 + 2?"), 2, min_version=0)
    for slot in group.slots:
        slot.ref = SpoolRef("spool", 0, 0, 1, 0)
    lost: list[tuple[int, int]] = []
    payloads: Any = Payloads(TRAJECTORY, None)
    files = SampleFiles(payloads, ImageCache(), SamplesWriter(tmp_path), lost=lambda *what: lost.append(what))
    asyncio.run(files.write(Stepped(3, 5, {}), [group]))
    assert lost == [(3, 1)]
    (file,) = tmp_path.glob("*.parquet")
    assert pq.read_table(file).num_rows == 1


def test_answers_of_an_evaluation_are_written_before_the_next_commit(tmp_path: Path) -> None:
    async def scene() -> None:
        files = SampleFiles(Payloads(TRAJECTORY), ImageCache(), SamplesWriter(tmp_path))  # type: ignore[arg-type]
        group = a_group(Prompt(text="2 + 2?"))
        async with asyncio.TaskGroup() as tasks:
            files.begin_answers(tasks, 10, 5, [(group.prompt, group.slots[0])])
            assert len(files.being_written(0)) == 1

    asyncio.run(scene())
    (row,) = pq.read_table(tmp_path / "held_out" / "version_000005.parquet").to_pylist()
    assert (row["step"], row["prompt"], row["completion"], row["reward"]) == (10, "2 + 2?", "four", 0.5)
