"""
Toy models, made on the spot, so that a first run needs nothing but this repository.

    step sums   word list ─▶ tokenizer ─▶ random weights ─▶ warm-up ─▶ directory    and its data: train, held-out
    random      text ─▶ BPE tokenizer ──▶ random weights ────────────▶ directory

A model directory appears whole or not at all: it is written under another name, and renamed at the end. The same sizes,
seed and thread count give the same model on the same machine.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from msgspec import Struct
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from asyncrl.data.table import Rows, open_rows
from asyncrl.errors import ConfigError, DataError
from asyncrl.messages import Split
from asyncrl.toy import step_sums
from asyncrl.toy.vocabulary import tokenizer_from_texts, tokenizer_from_words
from asyncrl.toy.warm_up import WarmUp, WarmUpSchedule

MAX_POSITIONS = 4096
"""Longest prompt and completion together; rotary positions cost nothing."""
INIT_STD = 0.08
"""About 1 / sqrt(hidden size) of models this small, which then learn in half the steps that 0.02 takes."""
TEXT_COLUMNS = ("prompt", "answer", "solution")

Report = Callable[[str], None]


class Sizes(Struct, frozen=True, kw_only=True):
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int


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
    _write_data(directory, seed, report)
    if has_model:
        return
    torch.set_num_threads(threads)
    tokenizer = tokenizer_from_words(step_sums.WORDS)
    model = random_model(sizes, tokenizer, seed)
    warm_up = WarmUp(model, tokenizer, schedule, seed=seed, report=report)
    warm_up.train_chains()
    warm_up.train_guessing()
    save_model(directory / "model", model, tokenizer, report)


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
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        initializer_range=INIT_STD,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def _check_sizes(sizes: Sizes) -> None:
    if sizes.heads % sizes.kv_heads:
        raise ConfigError(
            f"{sizes.heads} heads cannot share {sizes.kv_heads} kv_heads evenly; make heads a multiple of kv_heads"
        )
    if sizes.head_dim % 2:
        raise ConfigError(f"head_dim is {sizes.head_dim}: rotary positions need an even number")


def _exists(directory: Path, report: Report) -> bool:
    if (directory / "config.json").exists():
        report(f"kept {directory}, which exists")
        return True
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} exists and is not a model directory; move it, or name another directory")
    return False


def _write_data(directory: Path, seed: int, report: Report) -> None:
    splits: tuple[Split, ...] = ("train", "held_out")
    for split in splits:
        path = directory / f"{split}.parquet"
        if path.exists():
            report(f"kept {path}, which exists")
        else:
            step_sums.write(path, split, seed)
            report(f"wrote {path}")


def _texts(rows: Rows) -> Iterator[str]:
    columns = [column for column in TEXT_COLUMNS if column in rows.columns]
    if not columns:
        raise DataError(f"dataset {rows.path} has none of the columns {', '.join(TEXT_COLUMNS)} to learn a BPE from")
    for row in (rows[number] for number in range(len(rows))):
        yield from (row[column] for column in columns if isinstance(row[column], str))


def save_model(directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, report: Report) -> None:
    """Write a model directory, whole or not at all."""
    with _written_whole(directory) as unfinished:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
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
