from pathlib import Path

import numpy as np
import pytest

from asyncrl.observe.dashboard.curves import columns, histograms
from asyncrl.observe.dashboard.samples.sample_index import SampleIndex
from asyncrl.observe.run_record import read_run
from tests.observe.conftest import MakeRun
from tests.observe.dashboard.browser_free import a_sample, write


def test_metrics_become_columns_from_a_step_on(make_run: MakeRun) -> None:
    record = read_run(make_run().path)
    found = columns(record, 7)
    assert (found["step"], found["reward"]) == ([7, 8, 9], [0.7, 0.8, 0.9])
    assert found["grad_norm"] == [None] * 3  # NaN was recorded as null
    assert columns(record, 10)["reward"] == []


def filled(folder: Path) -> SampleIndex:
    index = SampleIndex(folder)
    index.advance(60)
    return index


def test_every_sample_of_the_newest_steps_is_in_one_bin(tmp_path: Path) -> None:
    for step in range(60):
        tokens = [np.zeros(step * 7 + i, "<i4").tobytes() for i in range(3)]
        rows = [a_sample(step, index=i, completion_ids=ids, reward=i / 2, staleness=i) for i, ids in enumerate(tokens)]
        write(tmp_path, *rows)
    found = histograms(filled(tmp_path))
    assert found["steps"] == {"from": 10, "to": 59}
    for name in ("staleness", "reward", "length"):
        assert sum(found[name]["counts"]) == 150
        assert len(found[name]["edges"]) == len(found[name]["counts"]) + 1
    assert (found["staleness"]["edges"], found["staleness"]["counts"]) == ([-0.5, 0.5, 1.5, 2.5], [50, 50, 50])


@pytest.mark.parametrize("reward", [0.0, float("nan")])
def test_equal_and_missing_rewards_do_not_break_a_histogram(tmp_path: Path, reward: float) -> None:
    write(tmp_path, a_sample(reward=reward), a_sample(index=1, reward=reward))
    assert sum(histograms(filled(tmp_path))["reward"]["counts"]) == (2 if reward == 0 else 0)


def test_a_run_without_samples_has_empty_histograms(tmp_path: Path) -> None:
    assert histograms(filled(tmp_path)) == {
        "files_waiting": 0,
        "steps": {},
        **{name: {"edges": [], "counts": []} for name in ("staleness", "reward", "length")},
    }
