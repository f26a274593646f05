"""The argument RUN of a command that reads the files of a run: a run directory, and no address of a broker."""

from pathlib import Path

import click

ADDRESSED = ("status", "top", "stop", "drain", "pause", "resume-sampling", "set", "stacks")
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
