"""
A model made on the spot, so that a first run needs nothing but this repository.

    step_sums   words ─▶ tokenizer ─▶ fresh model ─▶ warm-up ─▶ directory      and the data: train, held-out
    random      data.train ─▶ BPE ─▶ fresh model ────────────▶ directory

The directory appears whole or not at all: it is written beside its place, and renamed at the end. The same recipe,
sizes, seed and thread count give the same model on the same machine.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from asyncrl.config.sections import Scratch
from asyncrl.data.table import Rows, open_rows
from asyncrl.errors import ConfigError, DataError
from asyncrl.messages import Split
from asyncrl.toy import step_sums, vocabulary
from asyncrl.toy.warm_up import Lesson, WarmUp

POSITIONS = 4096
"""Longest prompt and completion; rotary positions cost nothing."""
INIT_STD = 0.08
"""About 1 / sqrt(hidden size) of models this small, which then learn in half the steps that 0.02 takes."""
TEXT_COLUMNS = ("prompt", "answer", "solution")


def make(
    scratch: Scratch,
    directory: Path,
    *,
    train_path: Path,
    held_out_path: Path,
    threads: int = 1,
    report: Callable[[str], None],
    warm_up: WarmUp = WarmUp(),  # noqa: B008  (immutable)
) -> None:
    """
    Make the model directory; with ``step_sums`` also its data files, unless they are there.

    Args:
        scratch: Recipe, sizes and seed.
        directory: Where the model goes: config, safetensors, tokenizer. Must be absent or empty.
        train_path: Written by ``step_sums``, read by ``random``.
        held_out_path: Written by ``step_sums``; the empty path is passed over.
        threads: Of torch, in the whole process.
        report: Gets lines of progress.
        warm_up: How long ``step_sums`` is taught.

    Raises:
        ConfigError: No recipe, sizes that do not fit each other, or something is in the way.
        DataError: ``random`` finds no text in ``train_path``.
        RunFailed: ``step_sums`` was not learned.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is in the way of the model made from scratch; move it, or change model.path")
    _check_sizes(scratch)
    torch.set_num_threads(threads)
    with _appearing(directory) as unfinished:
        match scratch.recipe:
            case "step_sums":
                _write_step_sums(scratch.seed, train_path, held_out_path, report)
                tokenizer = vocabulary.of_words(step_sums.WORDS)
                model = fresh_model(scratch, tokenizer)
                lesson = Lesson(model, tokenizer, warm_up, seed=scratch.seed, report=report)
                lesson.teach_chains()
                lesson.teach_guessing()
            case "random":
                tokenizer = vocabulary.of_texts(_texts(open_rows(train_path)), scratch.vocab_size)
                model = fresh_model(scratch, tokenizer)
            case _:
                raise ConfigError("model.scratch.recipe is empty; expected 'step_sums' or 'random'")
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
    report(f"made {directory}: {model.num_parameters():,} parameters, {len(tokenizer):,} tokens")


def fresh_model(scratch: Scratch, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Random weights, the same for a seed, whatever was drawn before."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=scratch.hidden_size,
        intermediate_size=scratch.intermediate_size,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.heads,
        num_key_value_heads=scratch.kv_heads,
        head_dim=scratch.head_dim,
        max_position_embeddings=POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        initializer_range=INIT_STD,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(scratch.seed)
        return Qwen3ForCausalLM(config)


def _check_sizes(scratch: Scratch) -> None:
    if scratch.heads % scratch.kv_heads:
        raise ConfigError(
            f"model.scratch: {scratch.heads} heads cannot share {scratch.kv_heads} kv_heads evenly; "
            f"make heads a multiple of kv_heads"
        )
    if scratch.head_dim % 2:
        raise ConfigError(
            f"model.scratch.head_dim is {scratch.head_dim}, but rotary positions turn pairs; make it even"
        )


def _write_step_sums(seed: int, train_path: Path, held_out_path: Path, report: Callable[[str], None]) -> None:
    paths: dict[Split, Path] = {"train": train_path, "held_out": held_out_path}
    for split, path in paths.items():
        if not path.name:
            continue
        if path.exists():
            report(f"kept {path}, which was there")
        else:
            step_sums.write(path, split, seed)
            report(f"wrote {path}")


def _texts(rows: Rows) -> Iterator[str]:
    columns = [column for column in TEXT_COLUMNS if column in rows.columns]
    if not columns:
        raise DataError(f"dataset {rows.path} has none of the columns {', '.join(TEXT_COLUMNS)} to learn a BPE from")
    for row in (rows[number] for number in range(len(rows))):
        yield from (row[column] for column in columns if isinstance(row[column], str))


@contextmanager
def _appearing(directory: Path) -> Iterator[Path]:
    """A folder beside ``directory`` that takes its name if the block ends well, and vanishes if not."""
    unfinished = directory.with_name(f".{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a try that was killed
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
