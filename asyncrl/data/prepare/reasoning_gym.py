"""
Tasks of the package reasoning-gym, generated as a dataset of rows.

    reasoning-gym countdown --seed 7 ──▶ question, answer, extra_info.entry = {"question", "answer", "metadata"}

The reward `reasoning_gym` judges them with the package's own function, which wants the whole entry; so the entry goes
with the row, as JSON. A kind of task whose entries JSON cannot hold is refused.

Source:
    Stojanovski et al. 2025, arXiv:2505.24760; rows are checked with reasoning-gym 0.1.25.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from asyncrl.data.prepare.published import PublishedDataset, PublishedProblem
from asyncrl.data.table import Row, Rows
from asyncrl.errors import ConfigError, DataError
from asyncrl.plug_in import hint

SOURCE = "reasoning_gym/"
"""Beginning of the data source; the name of the dataset follows."""


class GeneratedRows(Rows):
    """`Rows` of a procedural dataset, the same for a seed and a version of the package."""

    def __init__(self, name: str, dataset: Any) -> None:
        self.path = Path(name)
        self.columns = ["question", "answer", "metadata"]
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int, /) -> Row:
        entry = dict(self._dataset[row])
        return entry | {"entry": self._encoded(entry)}

    def place(self, row: int, /) -> str:
        return f"{self.path}, entry {row}"

    def _encoded(self, entry: dict[str, Any]) -> str:
        """Encode an entry; raises `DataError` if the decoded one judges the reference answer differently."""
        try:
            text = json.dumps({name: entry[name] for name in self.columns})
        except (TypeError, ValueError) as error:
            raise DataError(f"its metadata has no form in JSON: {error}") from error
        answer = entry["answer"]
        if self._dataset.score_answer(answer, json.loads(text)) != self._dataset.score_answer(answer, entry):
            raise DataError("its metadata is changed by JSON, and its answer would be judged differently")
        return text


def reasoning_gym_rows(name: str, size: int, seed: int) -> PublishedDataset:
    """Describe ``size`` tasks of one kind; raises `ConfigError` without the package, or for an unknown kind."""
    try:
        import reasoning_gym  # noqa: PLC0415  optional, and takes a second
        from reasoning_gym.factory import DATASETS  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"reasoning-gym is not installed ({error}); pip install 'asyncrl[reasoning-gym]'") from error
    known: Collection[str] = DATASETS
    if name not in known:
        raise ConfigError(f"reasoning-gym has no dataset {name!r}: {hint(name, known)}")
    try:
        dataset = reasoning_gym.create_dataset(name, size=size, seed=seed)
    except Exception as error:  # code of the package
        raise ConfigError(f"reasoning-gym cannot make the dataset {name!r} by itself: {error}") from error
    return PublishedDataset(
        data_source=f"{SOURCE}{name}",
        problem=_problem,
        open=lambda path: GeneratedRows(str(path), dataset),
        instruction="Give your final answer between <answer> and </answer>.",
        ability="reasoning",
    )


def _problem(row: Row) -> PublishedProblem:
    answer = row["answer"]
    return PublishedProblem(
        prompt=str(row["question"]), answer="" if answer is None else str(answer), extra={"entry": row["entry"]}
    )
