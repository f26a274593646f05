"""`asyncrl example` and `asyncrl init`: the files that a first run needs."""

from pathlib import Path

import click

from asyncrl.cli.parts import report_errors
from asyncrl.terminal import echo

# ── command ───────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("folder", metavar="[FOLDER]", type=PATH, default=".")
@click.option("--model", metavar="DIR", help="Model directory.  [default: the only one here]")
@click.option("--data", metavar="FILE", help="Parquet or JSONL to train on.  [default: the only one here]")
@click.option("--prompt-column", metavar="NAME", help="Column of the prompt.  [default: guessed]")
@click.option("--answer-column", metavar="NAME", help="Column of the reference answer.  [default: guessed]")
@report_errors
def init(
    folder: Path, model: str | None, data: str | None, prompt_column: str | None, answer_column: str | None
) -> None:
    """
    Write a run file for this machine, a model and a dataset.

    Looks for the model, the data, its columns, a held-out file beside it and the devices, and says what it found. The
    reward function is a stub, unless the data source has a built-in one; it is tried on a few rows. FOLDER gets
    run.toml and reward.py; files that exist are left alone.

    \b
    Example:
      asyncrl init --model models/base --data train.parquet
    """
    from asyncrl.tools.init import write_files

    columns = {"prompt": prompt_column, "answer": answer_column}
    write_files(folder, model, data, {kind: name for kind, name in columns.items() if name}, echo)


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--to", "folder", type=PATH, metavar="DIR", default=".", help="Folder to copy into.")
@report_errors
def example(name: str | None, folder: Path) -> None:
    """
    List the examples that come with asyncrl, or copy one.

    NAME is a run file, the folder of a service manager or a scheduler, a program, or docs. The files that it uses come
    with it, below conf/ and examples/. A file that is there already is left alone.

    \b
    Example:
      asyncrl example quickstart
      asyncrl example kubernetes --to deploy
    """
    from asyncrl.tools import examples

    if name is None:
        echo("\n".join(examples.listing()))
        return
    found = examples.find(name)
    for path, is_copied in examples.copy(found, folder).items():
        echo(path if is_copied else f"{path}, which is there already, was left alone")
    if commands := examples.commands(found):
        echo("next:")
        for command in commands:
            echo(f"  {command}")
