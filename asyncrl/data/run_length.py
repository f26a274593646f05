"""Conversion of a run's length from epochs of its dataset to optimizer steps."""

from asyncrl.config.config import Config
from asyncrl.config.resolve import with_steps
from asyncrl.data.prompts import train_stream


def resolve_steps(config: Config) -> Config:
    """
    Configuration with ``run.steps`` computed from ``run.epochs``; the same object if epochs are not set.

    Raises `ConfigError` if the epochs are less than one step, and `DataError` if ``data.train`` cannot be read.
    """
    if config.run.epochs is None:
        return config
    return with_steps(config, train_stream(config.data, config.run.seed).num_rows)
