"""`asyncrl example` and `asyncrl init`: the files that a first run needs."""

from pathlib import Path

import click

from asyncrl.cli.terminal import report_errors

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--to", "folder", type=PATH, metavar="DIR", default=".", help="Folder to copy into.")
@report_errors
def example(name: str | None, folder: Path) -> None:
    """
    List the examples that come with asyncrl, or copy one.

    NAME is a run file, the folder of a service manager or a scheduler, or a program. The files that it uses come with
    it. A file that is there already is left alone.

    \b
    Example:
      asyncrl example quickstart
      asyncrl example kubernetes --to deploy
    """
    from asyncrl.cli.start import examples

    if name is None:
        table = click.HelpFormatter(width=100)
        table.write_dl([(each, examples.describe(each)) for each in examples.names()])
        click.echo(table.getvalue(), nl=False)
        return
    found = examples.find(name)
    for path in examples.copy(found, folder):
        click.echo(path)
    if commands := examples.commands(found):
        click.echo("next:")
        for command in commands:
            click.echo(f"  {command}")
