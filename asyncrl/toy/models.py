"""
Toy models, made on the spot, so that a first run needs nothing but this repository.

    step sums       word list ─▶ tokenizer ─▶ random weights ─▶ warm-up ─▶ directory    and its data: train, held-out
    hidden sums     the same, for a model of several turns
    drawn squares   the same, for a model with a vision tower
    SmolLM2         file of a package ──────────────────────────────────▶ directory    and word problems
    random          text ─▶ BPE tokenizer ──▶ random weights ────────────▶ directory

A model directory appears whole or not at all: it is written under another name, and renamed at the end. The same sizes,
seed and thread count give the same model on the same machine.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2VLImageProcessorPil

from asyncrl.data.table import Rows, open_rows
from asyncrl.errors import ConfigError, DataError
from asyncrl.messages.words import Split
from asyncrl.toy import drawn_squares, hidden_sums, step_sums, word_problems
from asyncrl.toy.lessons import Lesson, drawn_squares_lesson, hidden_sums_lesson, step_sums_lesson
from asyncrl.toy.smollm2 import find_gguf, read_gguf
from asyncrl.toy.text_model import Sizes, check_sizes, random_model
from asyncrl.toy.vision_model import VISION_WORDS, image_processor, random_vision_model
from asyncrl.toy.vocabulary import PLAIN_CHAT, tokenizer_from_texts, tokenizer_from_words
from asyncrl.toy.warm_up import WarmUp, WarmUpSchedule

HIDDEN_SUMS = WarmUpSchedule(constant_steps=300, decay_steps=300, mixture_steps=150, report_every=100)
HIDDEN_SUMS_SIZES = Sizes(layers=3, hidden_size=64, intermediate_size=192, heads=4, kv_heads=2, head_dim=16)
DRAWN_SQUARES = WarmUpSchedule(
    constant_steps=400, decay_steps=300, goal=0.9, mixture_steps=150, batches_by_length=1, report_every=100
)
"""Chains have one length, and a batch of the mixture has all its kinds."""
TEXT_COLUMNS = ("prompt", "answer", "solution")

Report = Callable[[str], None]


def make_step_sums(
    directory: Path,
    sizes: Sizes,
    *,
    seed: int = 0,
    threads: int = 1,
    report: Report,
    schedule: WarmUpSchedule = WarmUpSchedule(),  # noqa: B008  (immutable)
) -> None:
    """
    Make ``model``, ``train.parquet`` and ``held_out.parquet`` in ``directory``; each is kept if it exists already.

    Args:
        threads: Torch threads of the whole process.
        report: Called with lines of progress.

    Raises:
        ConfigError: The sizes contradict each other, or ``directory/model`` exists and is not a model.
        RunFailed: The model did not learn step sums.
    """
    check_sizes(sizes)
    has_model = _exists(directory / "model", report)
    _write_data(directory, step_sums.write, seed, report)
    if has_model:
        return
    torch.set_num_threads(threads)
    tokenizer = tokenizer_from_words(step_sums.WORDS)
    model = random_model(sizes, tokenizer, seed)
    _teach(model, step_sums_lesson(tokenizer, seed), schedule, seed, report)
    save_model(directory / "model", model, tokenizer, report)


def make_hidden_sums(
    directory: Path,
    *,
    seed: int = 0,
    threads: int = 1,
    report: Report,
    schedule: WarmUpSchedule = HIDDEN_SUMS,
) -> None:
    """
    Make a model of several turns, whose prompts are chats, and its data; see `make_step_sums`.

    Raises:
        ConfigError: ``directory/model`` exists and is not a model.
        RunFailed: The model did not learn hidden sums.
    """
    has_model = _exists(directory / "model", report)
    _write_data(directory, hidden_sums.write, seed, report)
    if has_model:
        return
    torch.set_num_threads(threads)
    tokenizer = tokenizer_from_words(hidden_sums.WORDS, chat_template=PLAIN_CHAT)
    model = random_model(HIDDEN_SUMS_SIZES, tokenizer, seed)
    _teach(model, hidden_sums_lesson(tokenizer, seed), schedule, seed, report)
    save_model(directory / "model", model, tokenizer, report)


def make_drawn_squares(
    directory: Path,
    *,
    seed: int = 0,
    threads: int = 1,
    report: Report,
    schedule: WarmUpSchedule = DRAWN_SQUARES,
) -> None:
    """
    Make a model that reads pictures, and its data; see `make_step_sums`.

    Raises:
        ConfigError: ``directory/model`` exists and is not a model.
        RunFailed: The model did not learn drawn squares.
    """
    has_model = _exists(directory / "model", report)
    _write_data(directory, drawn_squares.write, seed, report)
    if has_model:
        return
    torch.set_num_threads(threads)
    tokenizer = tokenizer_from_words(drawn_squares.WORDS, special=VISION_WORDS)
    model = random_vision_model(tokenizer, seed)
    _teach(model, drawn_squares_lesson(tokenizer, seed), schedule, seed, report)
    save_model(directory / "model", model, tokenizer, report, image_processor())


def make_smollm2(directory: Path, *, seed: int = 0, report: Report) -> None:
    """
    Make a model directory of SmolLM2-135M-Instruct, and word problems for it; see `make_step_sums`.

    Raises:
        ConfigError: The packages with the model are not installed, or ``directory/model`` exists and is not a model.
    """
    has_model = _exists(directory / "model", report)
    file = None if has_model else find_gguf()
    _write_data(directory, word_problems.write, seed, report)
    if file:
        report(f"reading {file.name}, about half a minute")
        save_model(directory / "model", *read_gguf(file), report)


def make_random(directory: Path, text: Path, sizes: Sizes, *, vocab_size: int, seed: int = 0, report: Report) -> None:
    """
    Make a model directory with random weights and a BPE trained on ``text``; it is kept if it exists already.

    Raises:
        ConfigError: The sizes contradict each other, or ``directory`` exists and is not a model.
        DataError: ``text`` cannot be read, or has none of the `TEXT_COLUMNS`.
    """
    if _exists(directory, report):
        return
    check_sizes(sizes)
    tokenizer = tokenizer_from_texts(_texts(open_rows(text)), vocab_size)
    save_model(directory, random_model(sizes, tokenizer, seed), tokenizer, report)


def _exists(directory: Path, report: Report) -> bool:
    if (directory / "config.json").exists():
        report(f"kept {directory}, which exists")
        return True
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} exists and is not a model directory; move it, or name another directory")
    return False


def _teach(model: PreTrainedModel, lesson: Lesson, schedule: WarmUpSchedule, seed: int, report: Report) -> None:
    warm_up = WarmUp(model, lesson, schedule, seed=seed, report=report)
    warm_up.train_chains()
    warm_up.train_guessing()


def _write_data(directory: Path, write: Callable[[Path, Split, int], None], seed: int, report: Report) -> None:
    splits: tuple[Split, ...] = ("train", "held_out")
    for split in splits:
        path = directory / f"{split}.parquet"
        if path.exists():
            report(f"kept {path}, which exists")
        else:
            write(path, split, seed)
            report(f"wrote {path}")


def _texts(rows: Rows) -> Iterator[str]:
    columns = [column for column in TEXT_COLUMNS if column in rows.columns]
    if not columns:
        raise DataError(f"dataset {rows.path} has none of the columns {', '.join(TEXT_COLUMNS)} to learn a BPE from")
    for row in (rows[number] for number in range(len(rows))):
        yield from (row[column] for column in columns if isinstance(row[column], str))


def save_model(
    directory: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    report: Report,
    images: Qwen2VLImageProcessorPil | None = None,
) -> None:
    """Write a model directory, whole or not at all; ``images`` is the image processor of a vision model."""
    with _written_whole(directory) as unfinished:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        if images:
            images.save_pretrained(unfinished)
    report(f"made {directory}: {model.num_parameters():,} parameters, {len(tokenizer):,} tokens")


@contextmanager
def _written_whole(directory: Path) -> Iterator[Path]:
    """A folder beside ``directory`` that is renamed to it if the block succeeds, and removed if it does not."""
    unfinished = directory.with_name(f".{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # from an attempt that was killed
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
