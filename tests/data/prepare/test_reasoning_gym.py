"""Tasks of reasoning-gym as rows: with a stand-in for the package, and with the package where it is installed."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from asyncrl.data.prepare.published import prepare
from asyncrl.data.prepare.reasoning_gym import reasoning_gym_rows
from asyncrl.data.table import open_rows
from asyncrl.errors import ConfigError, DataError
from tests.episodes.environments.agents import needs, run_beside

PREPARES = "from asyncrl.cli.main import main\nmain()"


class Sums:
    """A procedural dataset whose metadata JSON can hold, or not."""

    def __init__(self, size: int, seed: int, numbers: Any = list) -> None:
        self._size, self._seed, self._numbers = size, seed, numbers

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        numbers = self._numbers((self._seed, index))
        return {"question": f"{self._seed} + {index}?", "answer": str(self._seed + index), "metadata": {"n": numbers}}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        return float(answer == entry["answer"] and isinstance(entry["metadata"]["n"], self._numbers))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package, with three datasets."""
    kinds = {"sums": list, "tuples": tuple, "sets": set}
    gym, factory = ModuleType("reasoning_gym"), ModuleType("reasoning_gym.factory")
    gym.create_dataset = lambda name, size, seed: Sums(size, seed, kinds[name])  # type: ignore[attr-defined]
    factory.DATASETS = kinds  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reasoning_gym", gym)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)


@pytest.mark.usefixtures("package")
def test_a_task_becomes_a_row_with_its_whole_entry(tmp_path: Path) -> None:
    assert prepare(reasoning_gym_rows("sums", 3, 7), Path("sums"), tmp_path / "out.parquet").num_rows == 3

    row = open_rows(tmp_path / "out.parquet")[2]
    assert row["prompt"][0]["content"] == "7 + 2? Give your final answer between <answer> and </answer>."
    assert (row["data_source"], row["reward_model"]["ground_truth"]) == ("reasoning_gym/sums", "9")
    assert json.loads(row["extra_info"]["entry"]) == {"question": "7 + 2?", "answer": "9", "metadata": {"n": [7, 2]}}


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("name", "reason"), [("tuples", "judged differently"), ("sets", "has no form in JSON")])
def test_entries_that_json_cannot_hold_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(DataError, match=f"1 of 1 rows cannot be used.*{reason}"):
        prepare(reasoning_gym_rows(name, 1, 0), Path(name), tmp_path / "out.parquet")


@pytest.mark.usefixtures("package")
def test_an_unknown_dataset_is_refused() -> None:
    with pytest.raises(ConfigError, match="no dataset 'sum': did you mean 'sums'"):
        reasoning_gym_rows("sum", 1, 0)


def test_without_the_package_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)

    with pytest.raises(ConfigError, match=r"reasoning-gym is not installed .*pip install 'asyncrl\[reasoning-gym\]'"):
        reasoning_gym_rows("sums", 1, 0)


@pytest.mark.slow("the package takes seconds to import")
@needs("reasoning_gym")
@pytest.mark.timeout(120)
def test_tasks_of_the_package_are_prepared_and_are_the_same_for_a_seed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        options = ("--size", "4", "--seed", "3", "-o", str(tmp_path / f"{name}.parquet"))
        assert "4 of 4 rows" in run_beside(PREPARES, "data", "prepare", "reasoning-gym", "countdown", *options)

    rows = [[dict(row) for row in map(open_rows(tmp_path / f"{name}.parquet").__getitem__, range(4))] for name in "ab"]
    assert rows[0] == rows[1]
    assert rows[0][0]["data_source"] == "reasoning_gym/countdown"
