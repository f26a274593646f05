"""The command `asyncrl`: a subcommand imports what it needs once it runs, so that `--help` stays fast."""

from typing import Any

import click

from asyncrl.cli.data import data
from asyncrl.cli.doctor import doctor
from asyncrl.cli.episodes import episode
from asyncrl.cli.import_verl import import_verl
from asyncrl.cli.keys import keys
from asyncrl.cli.launch import COMMANDS as LAUNCH
from asyncrl.cli.launch import example, init
from asyncrl.cli.models import COMMANDS as MODELS
from asyncrl.cli.operate import COMMANDS as OPERATE
from asyncrl.cli.parts import errors_reported
from asyncrl.cli.plan import plan
from asyncrl.cli.plug_ins import advantage, loss, reward
from asyncrl.cli.recorded import COMMANDS as RECORDED
from asyncrl.cli.services import services
from asyncrl.cli.settings import config
from asyncrl.cli.toy import toy
from asyncrl.version import VERSION

GROUPS = (advantage, config, data, episode, keys, loss, reward, services, toy)


TASKS: dict[str, tuple[str, ...]] = {
    "Begin": ("init", "example", "toy", "data", "config", "doctor", "import-verl", "plan"),
    "Try before a run": ("reward", "loss", "advantage", "episode"),
    "Run": ("run", "resume", "stop"),
    "Watch a run": ("status", "top", "dashboard", "logs", "events", "attach", "ls", "why", "stacks", "track"),
    "Change a run that goes on": ("set", "pause", "unpause", "drain", "admit"),
    "Read what a run recorded": ("report", "samples", "dead-letters", "audit"),
    "Use a model": ("sample", "eval", "export"),
    "Several machines": ("keys", "services"),
}
"""Commands by what one wants to do, in the order in which one comes to it."""


class Commands(click.Group):
    """Commands whose interruption is one sentence, also while their arguments are read; help lists them by task."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        for task, names in TASKS.items():
            with formatter.section(task):
                texts = {name: self.commands[name].get_short_help_str(formatter.width - width) for name in names}
                formatter.write_dl([(name.ljust(width), text) for name, text in texts.items()])

    def invoke(self, ctx: click.Context) -> Any:
        with errors_reported():
            return super().invoke(ctx)


@click.group(cls=Commands, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.version_option(VERSION)
def main() -> None:
    """
    Asynchronous reinforcement-learning post-training of language models.

    \b
    Start here:
      asyncrl example quickstart      # a run file, and the commands to try it
      asyncrl init --data FILE        # a run of your own
    """


for command in (*LAUNCH, *MODELS, *OPERATE, *RECORDED, *GROUPS, doctor, example, import_verl, init, plan):
    main.add_command(command)


if __name__ == "__main__":
    main()
