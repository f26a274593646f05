"""The argument RUN of commands that read the files of a run: a run directory, by default the newest, and no address."""

from pathlib import Path

import click

ADDRESSED = ("status", "top", "stop", "drain", "admit", "pause", "resume-sampling", "set", "stacks")
"""Commands that ask a broker, and take its address too."""


class RunPath(click.ParamType[Path]):
    """A path, taken before its slashes are changed."""

    name = "run"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if "://" in str(value):
            self.fail(
                f"{value} is an address, but this command reads files: give the run directory, on the machine that has "
                f"it; an address is taken by {', '.join(ADDRESSED[:-1])} and {ADDRESSED[-1]}",
                param,
                ctx,
            )
        return Path(value)


RUN_PATH = RunPath()


def newest_run() -> Path:
    """The run below runs/ that began last; raises `click.UsageError` if there is none."""
    from asyncrl.observe.run_directory import RunDirectory
    from asyncrl.observe.run_overview import find_runs

    if runs := find_runs(Path("runs")):
        return max(runs, key=lambda run: RunDirectory(run).config.stat().st_mtime)
    raise click.UsageError("there are no runs below runs/: give the directory of a run")
