"""`asyncrl episode`: play one in the terminal, or show some of a run."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from asyncrl.cli.parts import RUN_PATH, report_errors
from asyncrl.errors import ConfigError
from asyncrl.terminal import command_line, say

# ── command ───────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)


@click.group()
def episode() -> None:
    """Play episodes of several turns, or show those of a run."""


@episode.command("try")
@click.argument("function", metavar="[ENV]", required=False)
@click.option("--model", metavar="DIR", help="Model directory.  [default: from --config]")
@click.option("--config", "path", type=PATH, metavar="CONFIG", help="Run file that provides all other settings.")
@click.option("--tool", "tools", multiple=True, metavar="NAME", help="Tool in place of ENV; repeatable.")
@click.option("--data", metavar="FILE", help="Parquet or JSONL with the prompt.  [default: from --config]")
@click.option("--row", type=click.IntRange(min=0), default=0, help="Row of the data, counted from 0.")
@click.option("--prompt", "text", metavar="TEXT", help="Prompt in place of a row.")
@click.option("--answer", default="", metavar="TEXT", help="Reference answer, for the environment; with --prompt.")
@click.option("--greedy", is_flag=True, help="Take the likeliest token each time.")
@click.option("--seed", type=int, help="Seed of sampling and environment.  [default: from --config, or 0]")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one setting; repeatable.")
@report_errors
def try_(row: int, text: str | None, answer: str, **choices: Any) -> None:
    """
    Play one episode and show it turn by turn.

    ENV is an environment, file.py:name or module:name, as environment.function has it.

    \b
    Example:
      asyncrl episode try boxes.py:Boxes --model cache/hidden-sums/model \\
        --data cache/hidden-sums/held_out.parquet
      asyncrl episode try --tool calculator --model models/base \\
        --prompt "What is 17 * 23?"
    """
    if answer and text is None:
        raise click.UsageError("--answer needs --prompt: a row of the data has its own")

    from asyncrl.runtime.machine import require_train

    require_train()
    from asyncrl.tools.play import play, try_config

    play(try_config(**choices), Console(highlight=False), row=row, text=text, answer=answer)


@episode.command()
@click.argument("run_directory", metavar="RUN", type=RUN_PATH)
@click.option("--step", type=click.IntRange(min=1), help="Step that trained on it.  [default: newest]")
@click.option("--group", type=click.IntRange(min=0), help="Group id.  [default: any]")
@click.option("--index", type=click.IntRange(min=0), help="Index in the group.  [default: any]")
@click.option("--count", type=click.IntRange(min=1), default=1, help="Most episodes shown.")
@report_errors
def show(run_directory: Path, step: int | None, group: int | None, index: int | None, count: int) -> None:
    """
    Show episodes that a run was trained on, turn by turn.

    RUN is a run directory. Its samples have every episode. Completions of one turn are shown by `asyncrl samples`.
    """
    from itertools import islice

    from asyncrl.records.formatting import ordinal
    from asyncrl.records.run_record import require_run
    from asyncrl.records.samples import newest_file, read_episodes, step_file
    from asyncrl.tools.play import sampled_lines

    folder = require_run(run_directory).samples
    path = newest_file(folder) if step is None else step_file(folder, ordinal(step))
    if path is None:
        raise ConfigError(f"there are no samples in {folder} yet: no step is done")
    found = read_episodes(path, lambda g, i: group in (None, g) and index in (None, i))
    if not found:
        raise ConfigError(
            f"{path} has no such episode: the group is of another step, or the run has no [environment]; samples "
            f"without turns: {command_line('asyncrl', 'samples', run_directory)}"
        )
    console = Console(highlight=False)
    for one in islice(found, count):
        for line in sampled_lines(one):
            say(console, line)
