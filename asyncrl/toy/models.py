"""
Toy models, made on the spot, so that a first run needs nothing but this repository.

    step sums       word list ─▶ tokenizer ─▶ random weights ─▶ warm-up ─▶ directory    and its data: train, held-out
    drawn squares   the same, for a model with a vision tower
    random          text ─▶ BPE tokenizer ──▶ random weights ────────────▶ directory

A model directory appears whole or not at all: it is written under another name, and renamed at the end. The same sizes,
seed and thread count give the same model on the same machine.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from msgspec import Struct
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2VLImageProcessorPil,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from asyncrl.data.table import Rows, open_rows
from asyncrl.errors import ConfigError, DataError
from asyncrl.messages import Split
from asyncrl.toy import drawn_squares, step_sums
from asyncrl.toy.lessons import Lesson, drawn_squares_lesson, step_sums_lesson
from asyncrl.toy.vision_model import VISION_WORDS, image_processor, random_vision_model
from asyncrl.toy.vocabulary import tokenizer_from_texts, tokenizer_from_words
from asyncrl.toy.warm_up import WarmUp, WarmUpSchedule

MAX_POSITIONS = 4096
"""Longest prompt and completion together; rotary positions cost nothing."""
INIT_STD = 0.08
"""About 1 / sqrt(hidden size) of models this small, which then learn in half the steps that 0.02 takes."""
DRAWN_SQUARES = WarmUpSchedule(
    constant_steps=400, decay_steps=300, goal=0.9, mixture_steps=150, batches_by_length=1, report_every=100
)
"""Chains have one length, and a batch of the mixture has all its kinds."""
TEXT_COLUMNS = ("prompt", "answer", "solution")

Report = Callable[[str], None]


class Sizes(Struct, frozen=True, kw_only=True):
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int = 0
    """Experts of each layer; 0 makes a dense model."""
    experts_per_token: int = 2
    """They share ``intermediate_size``, so that a token costs as much as in a dense model."""


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
    _check_sizes(sizes)
    has_model = _exists(directory / "model", report)
    _write_data(directory, step_sums.write, seed, report)
    if has_model:
        return
    torch.set_num_threads(threads)
    tokenizer = tokenizer_from_words(step_sums.WORDS)
    model = random_model(sizes, tokenizer, seed)
    _teach(model, step_sums_lesson(tokenizer, seed), schedule, seed, report)
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


def make_random(directory: Path, text: Path, sizes: Sizes, *, vocab_size: int, seed: int = 0, report: Report) -> None:
    """
    Make a model directory with random weights and a BPE trained on ``text``; it is kept if it exists already.

    Raises:
        ConfigError: The sizes contradict each other, or ``directory`` exists and is not a model.
        DataError: ``text`` cannot be read, or has none of the `TEXT_COLUMNS`.
    """
    if _exists(directory, report):
        return
    _check_sizes(sizes)
    tokenizer = tokenizer_from_texts(_texts(open_rows(text)), vocab_size)
    save_model(directory, random_model(sizes, tokenizer, seed), tokenizer, report)


def random_model(sizes: Sizes, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A Qwen3 with random weights, a function of its arguments; the process's random state stays as it was."""
    config = {
        "vocab_size": len(tokenizer),
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "initializer_range": INIT_STD,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not sizes.experts:
            return Qwen3ForCausalLM(Qwen3Config(**config))
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**config, **_expert_sizes(sizes)))


def _expert_sizes(sizes: Sizes) -> dict[str, int | bool]:
    return {
        "num_experts": sizes.experts,
        "num_experts_per_tok": sizes.experts_per_token,
        "moe_intermediate_size": sizes.intermediate_size // sizes.experts_per_token,
        "norm_topk_prob": True,  # as in the published Qwen3 mixtures
    }


def _check_sizes(sizes: Sizes) -> None:
    if sizes.heads % sizes.kv_heads:
        raise ConfigError(
            f"{sizes.heads} heads cannot share {sizes.kv_heads} kv_heads evenly; make heads a multiple of kv_heads"
        )
    if sizes.head_dim % 2:
        raise ConfigError(f"head_dim is {sizes.head_dim}: rotary positions need an even number")
    if sizes.experts and sizes.experts_per_token > sizes.experts:
        raise ConfigError(
            f"experts_per_token is {sizes.experts_per_token}, but a layer has {sizes.experts} experts; lower it, or "
            f"raise experts"
        )
    if sizes.experts and sizes.intermediate_size % sizes.experts_per_token:
        raise ConfigError(
            f"{sizes.experts_per_token} experts_per_token cannot share an intermediate_size of "
            f"{sizes.intermediate_size} evenly; make it a multiple of them"
        )


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
    """Write a model directory, whole or not at all; ``images`` reads the pictures of a model that sees."""
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
