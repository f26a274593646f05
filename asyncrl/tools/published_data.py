"""
Published datasets by the names of folders and files, and whether the rows of a run have pictures.

    data/gsm8k/train.parquet ─▶ GSM8K          data/geo3k/train.parquet ─▶ GEO3K, with pictures
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.config.sections.data import Data
from asyncrl.data.prepare.geo3k import GEO3K
from asyncrl.data.prepare.published import DAPO_MATH, GSM8K, MATH, PublishedDataset
from asyncrl.data.table import open_rows

DATASETS = (("gsm8k", GSM8K), ("geo3k|geometry3k", GEO3K), ("dapo|aime", DAPO_MATH), ("math", MATH))
"""Patterns of the names of folders and files, in lower case, with the published dataset that they mean."""


def dataset_of(path: Path) -> PublishedDataset | None:
    """Published dataset that a part of the path names, the last such part; None if no part does."""
    parts = [part.lower() for part in reversed(path.parts)]
    return next((dataset for part in parts for pattern, dataset in DATASETS if re.search(pattern, part)), None)


def has_pictures(data: Mapping[str, Any]) -> bool:
    """
    True if the rows of a run file's ``[data]``, as it is written, have pictures.

    For a missing file, a column of pictures that ``data`` names decides, or the dataset's name. Raises
    `DataError` for a file that cannot be read.
    """
    named = [data.get(key) or [] for key in ("train", "held_out")]
    paths = [Path(path) for paths in named for path in ([paths] if isinstance(paths, str) else paths)]
    column = data.get("image_column", Data(train="").image_column)
    if not column:
        return False
    is_named = "image_column" in data and not any(path.is_file() for path in paths)
    return is_named or any(_has_pictures(path, column) for path in paths)


def _has_pictures(path: Path, column: str) -> bool:
    if not path.is_file():
        return dataset_of(path) is GEO3K
    rows = open_rows(path, on_disk=column)
    return column in rows.columns and any(rows.column(column))
