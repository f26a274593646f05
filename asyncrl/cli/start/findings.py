"""
Findings of `asyncrl init`: model, data and devices, by files and drivers alone.

    models/base, data/train.parquet ──▶ Findings(model, data, held_out, devices) ──▶ run_text
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from asyncrl.cli.start.columns import Columns, guess
from asyncrl.config.model.directory import check_model
from asyncrl.config.model.weights import CONFIG, check_weights, read_config
from asyncrl.config.sections import Data
from asyncrl.data.check import CountTokens, inspect
from asyncrl.data.table import open_rows
from asyncrl.errors import ConfigError
from asyncrl.node.machine.devices import Devices, find

LOOKED_AT = 32
"""First rows by which columns are guessed."""
DEPTH = 3
"""Folders below the working directory in which models and data are looked for."""
DATA = (".parquet", ".jsonl")
HELD_OUT = ("held_out", "heldout", "test", "val", "valid", "validation", "eval", "dev")
SKIPPED = ("runs", "node_modules", "__pycache__")


class ModelFound(Struct, frozen=True):
    path: str
    num_parameters: int
    positions: int
    """Longest prompt and completion together, in tokens; 0 if config.json does not say."""


class DataFound(Struct, frozen=True):
    path: str
    num_rows: int
    columns: Columns
    data_sources: list[str]
    longest_prompt: int
    """Tokens of the longest prompt, counted; or estimated from its characters."""
    is_counted: bool
    num_bad: int


class Findings(Struct, frozen=True):
    model: ModelFound
    data: DataFound
    held_out: str
    """Empty if there is none."""
    devices: Devices
    cores: int
    has_vllm: bool


def find_model(path: str | None) -> ModelFound:
    """The model in ``path``, or the only one near the working directory; raises `ConfigError`."""
    if path is None:
        path = _only(sorted({str(found.parent) for found in _near(CONFIG)}), "a model", "--model DIR", _TOY)
    check_model(path, setting="--model")
    shapes = check_weights(Path(path), "--model")
    config = read_config(Path(path))
    text = config.get("text_config")
    positions = (text if isinstance(text, dict) else config).get("max_position_embeddings")
    return ModelFound(path, sum(map(math.prod, shapes.values())), positions if isinstance(positions, int) else 0)


_TOY = "; `asyncrl toy step-sums cache/step-sums` makes a small model with its data"


def find_data(path: str | None, given: Mapping[str, str], count_tokens: CountTokens | None) -> DataFound:
    """The dataset in ``path``, or the only one to train on near the working directory; raises `ConfigError`."""
    if path is None:
        near = [str(found) for suffix in DATA for found in _near(f"*{suffix}") if not _is_held_out(found)]
        path = _only(sorted(near), "a dataset", "--data FILE", "")
    rows = open_rows(Path(path))
    columns = guess([rows[row] for row in range(min(len(rows), LOOKED_AT))], rows.columns, given, path)
    inspection = inspect(Path(path), data_section(path, columns), count_tokens=count_tokens)
    inspection.require_usable()
    longest = inspection.prompt_tokens.get("max") or math.ceil(inspection.prompt_chars.get("max", 0) / 2)
    sources = list(inspection.data_sources)
    is_counted = count_tokens is not None
    return DataFound(path, inspection.num_rows, columns, sources, longest, is_counted, len(inspection.bad))


def data_section(path: str, columns: Columns) -> Data:
    """Section ``[data]`` with these columns, which leaves out rows that cannot be used."""
    return Data(train=path, prompt_column=columns.prompt, answer_column=columns.answer or "answer", on_bad_row="skip")


def find_held_out(train: str) -> str:
    """A file of evaluation prompts beside the training data, by its name; empty if there is none, or several."""
    beside = Path(train).parent
    found = [str(path) for path in sorted(beside.iterdir()) if path.suffix in DATA and _is_held_out(path)]
    return found[0] if len(found) == 1 and found[0] != train else ""


def find_machine(environment: Mapping[str, str]) -> tuple[Devices, int]:
    """Devices that the vendor's drivers list, and cores."""
    return find("auto", environment), len(os.sched_getaffinity(0))


def _is_held_out(path: Path) -> bool:
    """True if one of `HELD_OUT` is among the words of the name."""
    name = path.stem.lower().replace("-", "_")
    return any(f"_{word}_" in f"_{name}_" for word in HELD_OUT)


def _near(pattern: str) -> Iterator[Path]:
    """Files below the working directory, not in hidden folders or those of runs."""
    for depth in range(DEPTH + 1):
        for path in Path().glob("*/" * depth + pattern):
            if not any(part.startswith(".") or part in SKIPPED for part in path.parts):
                yield path


def _only(found: Sequence[str], what: str, option: str, advice: str) -> str:
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(f"there is not {what} in this folder: name one with {option}{advice}")
    shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    raise ConfigError(f"{what} could be any of {shown}: name one with {option}")
