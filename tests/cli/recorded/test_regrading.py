"""Samples of a run graded again by its reward."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.broker.ledger.audit import Audit
from asyncrl.cli.recorded.regrading import regraded
from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.data.prompts import train_stream
from asyncrl.messages.trajectory import Span
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.samples import SampleRow, SamplesWriter, prompt_text

ACCOUNTS = Audit(
    steps=1, issued=1, trained=1, committed=1, dropped={}, open=0, skipped=0, double_trained=0, peak_open=1, window=1,
    reissued={}, duplicates=0, failed_attempts={}, dead_letters=0, tokens_trained=0, tokens_thrown_away={},
    staleness_max=0, staleness={}, lengths=[], dropped_unfinished=0, problems=[],
)  # fmt: skip


@pytest.fixture
def config(toy: Path) -> Config:
    """The reward counts the letters ``a``, modulo 3."""
    return load_config(toy / "toy.toml", ["reward.workers=1"])


def row(config: Config, group_id: int, completion: str, reward: float) -> SampleRow:
    prompt = train_stream(config.data, config.run.seed).at(group_id).prompt
    return SampleRow(
        step=0, group_id=group_id, index=0, prompt=prompt_text(prompt), completion=completion, answer=prompt.answer,
        reward=reward, finish_reason="stop", spans=[Span(0, 0, 1)], oldest_version=0, staleness=0, node="a",
        completion_ids=b"\1\0\0\0", behavior_logprobs=b"\0\0\0\0",
    )  # fmt: skip


def graded(folder: Path, config: Config, *rows: SampleRow) -> Audit:
    directory = RunDirectory.create(folder, "run")
    writer = SamplesWriter(directory.samples)
    writer.write(writer.path(0), rows)
    return regraded(directory, config, ACCOUNTS)


def test_a_reward_that_the_completion_does_not_get_is_named(tmp_path: Path, config: Config) -> None:
    audit = graded(tmp_path, config, row(config, 0, "a a", 2.0), row(config, 1, "a", 2.0))

    assert audit.problems == [
        "samples/step_000000.parquet: unit 1/0 has the reward 2.0: graded again, its completion gets 1.0"
    ]
    assert audit.checked["rewards"] == "2 samples graded again"


def test_a_sample_whose_prompt_the_data_does_not_have_is_counted(tmp_path: Path, config: Config) -> None:
    directory = RunDirectory.create(tmp_path, "run")
    writer = SamplesWriter(directory.samples)
    writer.write(writer.path(0), [row(config, 0, "a", 1.0)])
    table = pq.read_table(writer.path(0))
    other = pa.Table.from_pylist([table.to_pylist()[0] | {"answer": "other"}], schema=table.schema)
    pq.write_table(other, writer.path(0))

    audit = regraded(directory, config, ACCOUNTS)

    assert audit.problems == []
    assert audit.unchecked == {"rewards": "1 samples, whose prompts the data does not have"}


def test_a_run_without_its_data_is_not_graded(tmp_path: Path) -> None:
    config = load_config(Path("conf/quickstart.toml"), ["data.train=gone.parquet"])

    audit = regraded(RunDirectory.create(tmp_path, "run"), config, ACCOUNTS)

    assert audit.unchecked == {"rewards": "not graded again: no such dataset: gone.parquet (data.train)"}
