"""`asyncrl import-verl`."""

from pathlib import Path

import click

from asyncrl.cli.terminal import report_errors

PATH = click.Path(path_type=Path)


@click.command("import-verl", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", metavar="SCRIPT|OPTION...", nargs=-1, required=True)
@click.option("-o", "--out", type=PATH, metavar="FILE", help="Run file to write.  [default: print it]")
@click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="Variable for SCRIPT; repeatable.")
@click.option("--rows", type=click.IntRange(1), help="Rows of the training data.  [default: counted, if it is here]")
@report_errors
def import_verl(arguments: tuple[str, ...], out: Path | None, environment: tuple[str, ...], rows: int | None) -> None:
    """
    Translate a launch script of verl to a run file.

    SCRIPT is a shell script that starts a trainer of verl; arguments after it are passed to it and added to its
    options. Each OPTION is KEY=VALUE in Hydra's syntax, in place of a script. The script runs in a jail without files,
    network and programs, in which Python only records its arguments; its environment is empty but for HOME and --env.

    The run file has a comment where a meaning differs. The table on stderr accounts for every option. Exits with 1 if
    the run cannot work as translated: an option has no substitute, or something is missing.

    \b
    Example:
      asyncrl import-verl run_grpo.sh --env MODEL_PATH=models/base -o run.toml
      asyncrl import-verl algorithm.adv_estimator=grpo data.train_files=train.parquet ...
    """
    from asyncrl.cli.import_verl.translation import import_script

    import_script(arguments, environment, out, rows)
