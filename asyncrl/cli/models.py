"""`asyncrl eval`, `asyncrl sample` and `asyncrl export`: commands for trained models."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from asyncrl.cli.parts import RUN_PATH, json_option, report_errors
from asyncrl.cli.settings import set_option
from asyncrl.config.engines import ENGINES
from asyncrl.errors import ConfigError
from asyncrl.terminal import echo

# ── commands ──────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)
OPTIONS = (
    click.option(
        "--temperature",
        type=float,
        help="0 is greedy.  [default: from --config; or 0 for one completion, and 1 for more]",
    ),
    click.option("--top-p", type=float, help="Nucleus sampling.  [default: from --config, or 1]"),
    click.option(
        "--max-tokens", type=int, help="Most tokens of a completion.  [default: from --config, or at most 1024]"
    ),
    click.option("--engine", type=click.Choice(list(ENGINES)), help="[default: from --config, or transformers]"),
    click.option("--seed", type=int, help="Sampling seed.  [default: from --config, or 0]"),
    click.option(
        "--config", "path", type=PATH, metavar="CONFIG", help="Other settings.  [default: those of MODEL's run]"
    ),
    set_option,
)
"""Choices of `eval_config` that both commands have: those of how the model is run."""


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that gives a command `OPTIONS`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.command("eval")
@click.argument("model", metavar="MODEL")
@click.option("--data", multiple=True, metavar="FILE", help="Parquet or JSONL; repeatable.  [default: from --config]")
@click.option("-k", "--samples", type=int, help="Completions per prompt.  [default: from --config, or 1]")
@click.option("--reward", help="Reward function.  [default: from --config, or 'auto': by data source]")
@click.option("--max-prompts", type=int, help="Most prompts of each file, from its start.  [default: all]")
@sampling_options
@click.option("--out", type=PATH, metavar="FILE", help="Also write every completion to a parquet file.")
@json_option
@report_errors
def evaluate(out: Path | None, as_json: bool, **choices: Any) -> None:
    """
    Evaluate a model on held-out prompts, without training.

    MODEL is a Hugging Face model directory, a run directory, or a checkpoint in one; the run's settings and held-out
    prompts are then the defaults. Prints accuracy (avg@k, pass@k and maj@k with several completions per prompt), length
    and truncation for each data source. Completions without a verdict are in no mean, and counted as failed. Fit the
    engine to the machine with --set: rollout.slots, rollout.threads, model.dtype and others.

    \b
    Examples:
      asyncrl eval models/base --data held_out.parquet -k 8 --reward math
      asyncrl eval runs/quickstart
    """
    from asyncrl.runtime.machine import require_train

    require_train()
    from asyncrl.runtime.model_files import with_local_copies
    from asyncrl.tools.evaluate import eval_config, evaluate_model

    config = with_local_copies(eval_config(**choices), partial(echo, err=True), model_setting="MODEL")
    evaluate_model(config, out=out, as_json=as_json)


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--prompt", "texts", multiple=True, metavar="TEXT", help="Text, or - for stdin; repeatable.")
@click.option("--row", "rows", type=click.IntRange(0), multiple=True, help="Prompt of a row, from 0; repeatable.")
@click.option("--data", metavar="FILE", help="Parquet or JSONL with the rows.  [default: from --config]")
@click.option("--system", default="", metavar="TEXT", help="Message of the system before each prompt.")
@click.option("--image", "files", type=PATH, multiple=True, metavar="FILE", help="Picture in each prompt; repeatable.")
@click.option("--plain", "is_plain", is_flag=True, help="Let the model continue the bare text, without its template.")
@click.option("-n", "samples", type=click.IntRange(1), help="Completions per prompt.  [default: from --config, or 1]")
@sampling_options
@json_option
@report_errors
def sample(
    texts: tuple[str, ...],
    rows: tuple[int, ...],
    data: str | None,
    system: str,
    files: tuple[Path, ...],
    *,
    is_plain: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """
    Sample completions of your own prompts from a model.

    MODEL is a Hugging Face model directory, a run directory, or a checkpoint in one; the run's settings are then the
    defaults. A text is a message of the user if the model has a chat template. Pictures stand at the marks <image> of
    a text, or before a text without marks. A row is asked as in training, with all messages of its chat.

    \b
    Examples:
      asyncrl sample runs/quickstart --prompt "3+4+5=" --prompt "2+2+2="
      asyncrl sample models/base --prompt "Why is the sky blue?" \\
        -n 4 --temperature 0.7
      asyncrl sample runs/mine --data chats.jsonl --row 0 --row 7
    """
    rows = rows or ((0,) if data else ())
    if not texts and not rows:
        raise click.UsageError("no prompt: give --prompt TEXT, or --row N of the data")
    if not texts and (system or files or is_plain):
        raise click.UsageError("--system, --image and --plain need --prompt: a row has its own messages and pictures")

    from asyncrl.runtime.machine import require_train

    require_train()
    from asyncrl.runtime.model_files import with_local_copies
    from asyncrl.tools.evaluate import eval_config, sample_model
    from asyncrl.tools.play import NO_DATA

    config = eval_config(data=(data,) if data else () if rows else (NO_DATA,), **choices)
    config = with_local_copies(config, partial(echo, err=True), model_setting="MODEL")
    prompts = [sys.stdin.read() if text == "-" else text for text in texts]
    sample_model(config, prompts, rows=rows, system=system, files=files, is_plain=is_plain, as_json=as_json)


@click.command()
@click.argument("run_directory", metavar="RUN", type=RUN_PATH)
@click.option("--step", metavar="N|best", help="Checkpoint: its step, or the best evaluated.  [default: newest]")
@click.option("-o", "--out", type=PATH, metavar="DIR", required=True, help="Directory to create.")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Cast weights.  [default: as trained]"
)
@click.option("--adapter", "is_adapter", is_flag=True, help="Export the LoRA adapter alone, for PEFT.")
@click.option("--push", "push_to", metavar="OWNER/NAME", default="", help="Upload it to a model of the Hub, too.")
@click.option("--private", "is_private", is_flag=True, help="With --push: make the model for its owner's eyes.")
@report_errors
def export(run_directory: Path, out: Path, *, is_private: bool, push_to: str, **choices: Any) -> None:
    """
    Export a checkpoint as a Hugging Face model directory.

    RUN is a run directory. The export holds weights, tokenizer and a model card, and loads in transformers and vLLM.
    With --adapter it is an adapter directory of the PEFT library, for the base model of the run.

    \b
    Examples:
      asyncrl export runs/quickstart --step best -o models/mine
      asyncrl export runs/quickstart --adapter -o adapters/mine
      asyncrl export runs/quickstart -o models/mine --push me/mine --private
    """
    if is_private and not push_to:
        raise ConfigError("--private is for --push OWNER/NAME, which is missing")
    from asyncrl.runtime.machine import require_train

    require_train()
    from asyncrl.tools.export import export_run

    echo(export_run(run_directory, out, push_to=push_to, is_private=is_private, **choices))


COMMANDS = (evaluate, sample, export)
