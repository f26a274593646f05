"""The length of a run in steps, where its file gives it in epochs of a dataset."""

from asyncrl.config.resolve import with_steps
from asyncrl.config.sections import Config
from asyncrl.data.prompts import train_stream


def resolve_steps(config: Config) -> Config:
    """
    The configuration with ``run.steps`` for its ``run.epochs``; unchanged, and no file read, without them.

    Raises `ConfigError` if they are less than one step, and `DataError` if ``data.train`` cannot be read.
    """
    if config.run.epochs is None:
        return config
    return with_steps(config, train_stream(config.data, config.run.seed).num_rows)
