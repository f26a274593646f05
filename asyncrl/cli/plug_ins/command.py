"""`asyncrl reward try` and `asyncrl loss try`: functions of one's own, before a run."""

import sys
from pathlib import Path

import click

from asyncrl.cli.terminal import report_errors
from asyncrl.errors import RunFailed

PATH = click.Path(path_type=Path)


@click.group()
def reward() -> None:
    """Try a reward function before a run."""


@reward.command("try")
@click.argument("function", metavar="FUNCTION")
@click.argument("data", metavar="DATA", type=PATH)
@click.option("--num", type=click.IntRange(1), default=5, show_default=True, help="Rows to try, from the first.")
@click.option("--completion", "given", multiple=True, metavar="TEXT", help="Completion to grade; repeatable.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting of [reward] or [data].")
@report_errors
def try_reward(function: str, data: Path, num: int, given: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """
    Grade some rows of a dataset, in the killable workers of a run.

    FUNCTION is file.py, file.py:name, module:name or a built-in name; DATA is parquet or JSONL. Without --completion
    each row is graded with its reference answer in three forms, with nothing, and with nonsense as the completion.
    Exits with 1 if a verdict fails.

    \b
    Example:
      asyncrl reward try score.py:score train.parquet
      asyncrl reward try gsm8k train.parquet --completion "#### 18" --set reward.options.method=flexible
    """
    from asyncrl.cli.plug_ins import reward as module
    from asyncrl.cli.plug_ins.naming import full_name

    config = module.trial_config(full_name(function, ("compute_score", "score", "reward")), data, overrides)
    if not module.try_reward(config, num, given, click.echo):
        sys.exit(RunFailed.exit_code)
