"""
Findings of `asyncrl init`: model, data and devices, by files and drivers alone.

    models/base, data/train.parquet ──▶ Findings(model, data, held_out, devices) ──▶ run_text
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct

from asyncrl.config.model.directory import check_model
from asyncrl.config.model.weights import CONFIG, check_weights, read_config
from asyncrl.config.sections.data import Data
from asyncrl.data.chat_template import read_template
from asyncrl.data.check import CountTokens, inspect
from asyncrl.data.columns import LOOKED_AT, Columns, guess
from asyncrl.data.table import open_rows
from asyncrl.errors import ConfigError
from asyncrl.node.machine.devices import Devices, find

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
    has_template: bool = False
    """True if the tokenizer has a chat template."""


class DataFound(Struct, frozen=True):
    path: str
    num_rows: int
    columns: Columns
    data_sources: list[str]
    longest_prompt: int
    """Tokens of the longest prompt, counted; or estimated from its characters."""
    is_counted: bool
    num_bad: int
    as_chat: bool = False
    """Prompts are texts, to which the model's chat template should be applied."""


class Findings(Struct, frozen=True):
    model: ModelFound
    data: DataFound
    held_out: list[str]
    """Files that may be the held-out one; it is known if there is one alone."""
    devices: Devices
    cores: int
    has_vllm: bool


def find_model(path: str | None) -> ModelFound:
    """The model in ``path``, or the only one near the working directory; raises `ConfigError`."""
    if path is None:
        path = _only(sorted({str(found.parent) for found in _near(CONFIG)}), "model", "--model DIR", _TOY)
    check_model(path, setting="--model")
    shapes = check_weights(Path(path), "--model")
    config = read_config(Path(path))
    text = config.get("text_config")
    positions = (text if isinstance(text, dict) else config).get("max_position_embeddings")
    return ModelFound(
        path=path,
        num_parameters=sum(map(math.prod, shapes.values())),
        positions=positions if isinstance(positions, int) else 0,
        has_template=bool(read_template(Path(path))),
    )


_TOY = "; `asyncrl toy step-sums cache/step-sums` makes a small model with its data"


def find_data(
    path: str | None, given: Mapping[str, str], count_tokens: CountTokens | None, *, has_template: bool = False
) -> DataFound:
    """
    The dataset in ``path``, or the only one to train on near the working directory; raises `ConfigError`.

    ``has_template`` is true if the model has a chat template, which prompts of plain text should get.
    """
    if path is None:
        near = [str(found) for suffix in DATA for found in _near(f"*{suffix}") if not _is_held_out(found)]
        path = _only(sorted(near), "dataset", "--data FILE", "")
    rows = open_rows(Path(path))
    columns = guess(rows, given, "--{}-column NAME")
    is_text = any(isinstance(value, str) for value in islice(rows.column(columns.prompt), LOOKED_AT))
    as_chat = has_template and is_text
    inspection = inspect(Path(path), data_section(path, columns, as_chat=as_chat), count_tokens=count_tokens)
    inspection.require_usable()
    longest = inspection.prompt_tokens.get("max") or math.ceil(inspection.prompt_chars.get("max", 0) / 2)
    return DataFound(
        path=path,
        num_rows=inspection.num_rows,
        columns=columns,
        data_sources=list(inspection.data_sources),
        longest_prompt=longest,
        is_counted=count_tokens is not None,
        num_bad=len(inspection.bad),
        as_chat=as_chat,
    )


def data_section(path: str, columns: Columns, *, as_chat: bool = False) -> Data:
    """Section ``[data]`` with these columns, which leaves out rows that cannot be used."""
    answer = columns.answer or "answer"
    return Data(train=path, prompt_column=columns.prompt, answer_column=answer, as_chat=as_chat, on_bad_row="skip")


def find_held_out(train: str) -> list[str]:
    """Files of evaluation prompts beside the training data, by their names; those of its own format if there are."""
    beside = sorted(path for path in Path(train).parent.iterdir() if path != Path(train))
    found = [path for path in beside if path.suffix in DATA and _is_held_out(path)]
    alike = [path for path in found if path.suffix == Path(train).suffix]
    return list(map(str, alike or found))


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
        raise ConfigError(f"no {what} was found in this folder: name one with {option}{advice}")
    shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    raise ConfigError(f"the {what} could be any of {shown}: name one with {option}")
