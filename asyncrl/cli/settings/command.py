"""`asyncrl config`: the settings of a run file, and what settings mean."""

from pathlib import Path

import click

from asyncrl.cli.terminal import echo, report_errors

PATH = click.Path(path_type=Path)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override one setting; repeatable. `asyncrl config explain` has all of them.",
)


@click.group()
def config() -> None:
    """Explain settings, or show those of a run file."""


@config.command()
@click.argument("config_path", metavar="CONFIG", type=PATH)
@set_option
@report_errors
def show(config_path: Path, overrides: tuple[str, ...]) -> None:
    """
    Print every setting of the run file CONFIG, and its origin.

    The origin is the file, --set, a preset, or the default. With run.epochs, run.steps is counted from data.train.
    Notes on settings that hardly anybody wants follow on stderr.
    """
    from asyncrl.config.checks.check import advice
    from asyncrl.config.run_file import explain as origins_of
    from asyncrl.config.run_file import load_config
    from asyncrl.data.run_length import resolve_steps

    origins = origins_of(config_path, overrides, resolve_steps)
    width = max(len(origin.key) for origin in origins)
    for origin in origins:
        value = "unset" if origin.value is None else repr(origin.value)
        echo(f"{origin.key:<{width}}  {value:<24} {origin.source}")
    for sentence in advice(load_config(config_path, overrides)):
        echo(f"note: {sentence}", err=True)


@config.command()
@click.argument("name", metavar="[KEY|SECTION]", default="", required=False)
@report_errors
def explain(name: str) -> None:
    """
    Print what settings mean.

    Each with its default, the values that it may have, whether `asyncrl set` changes it while a run goes on, and verl's
    name for it. Without an argument the sections are listed.

    \b
    Example:
      asyncrl config explain schedule
      asyncrl config explain trainer.lr
    """
    from asyncrl.cli.settings.explain import explanation

    echo("\n".join(explanation(name)))
