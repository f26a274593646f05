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


class Commands(click.Group):
    """Commands whose interruption is one sentence, also while their arguments are read."""

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
