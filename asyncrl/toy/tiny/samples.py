"""
Generated rows in the form in which `asyncrl data prepare` writes a published dataset.

    data/gsm8k/train.parquet ─▶ gsm8k ─▶ "What is 3 + 4? ..." with its data source and instruction ─▶ parquet
"""

import random
from pathlib import Path

from asyncrl.data.prepare.dapo_math import DAPO_MATH
from asyncrl.data.prepare.geo3k import GEO3K
from asyncrl.data.prepare.gsm8k import GSM8K
from asyncrl.data.prepare.published import Problem, PublishedDataset, write, written_row
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import IMAGE_MARK
from asyncrl.toy import drawn_squares

DATASETS = {"gsm8k": GSM8K, "dapo-math": DAPO_MATH, "aime-2024": DAPO_MATH, "geo3k": GEO3K}
"""Published datasets by the name of a folder or file."""
NUM_ROWS = 32
LONG = 100
"""Repetitions of the question in a prompt that is too long."""


def dataset_of(path: Path) -> PublishedDataset:
    """Published dataset that a part of the path names. Raises `ConfigError` if no part does."""
    for part in (path.stem, *(parent.name for parent in path.parents)):
        if found := DATASETS.get(part.lower()):
            return found
    raise ConfigError(
        f"{path} is not here, and no part of it names a dataset that --scale tiny can imitate ({', '.join(DATASETS)}); "
        f"give a file that exists, with --set"
    )


def write_sample(dataset: PublishedDataset, out: Path, *, split: str, seed: int, long_every: int = 0) -> None:
    """
    Write `NUM_ROWS` rows of a dataset, sums or pictures of squares, drawn by ``split`` and ``seed``.

    Args:
        long_every: Each n-th prompt exceeds the limit of ``--scale tiny``, for recipes that drop or shorten such
            prompts; 0 makes none.
    """
    rng = random.Random(f"{dataset.data_source} {split} {seed}")
    rows = []
    for number in range(NUM_ROWS):
        is_long = long_every > 0 and number % long_every == long_every - 1
        times = LONG if is_long else 1
        problem = _squares(rng, times) if dataset is GEO3K else _sum(rng, times)
        rows.append(written_row(dataset, problem, split=split, number=number))
    out.parent.mkdir(parents=True, exist_ok=True)
    write(rows, out)


def _sum(rng: random.Random, times: int) -> Problem:
    first, second = rng.randrange(100), rng.randrange(100)
    return Problem(prompt=f"What is {first} + {second}? " * times, answer=str(first + second))


def _squares(rng: random.Random, times: int) -> Problem:
    drawn = next(drawn_squares.problems(rng.getrandbits(32), "train"))
    question = drawn.prompt.removeprefix(IMAGE_MARK)
    return Problem(
        prompt=IMAGE_MARK + f"{question} " * times,
        answer=drawn.answer,
        image=drawn_squares.png(drawn),
        image_name="squares.png",
    )
