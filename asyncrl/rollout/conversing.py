"""Engines that can hold a conversation."""

from asyncrl.errors import ConfigError
from asyncrl.rollout.engine import ConversingEngine, Engine


def require_seam(engine: Engine) -> ConversingEngine:
    """The engine; raises `ConfigError` if it cannot continue a turn."""
    if not isinstance(engine, ConversingEngine):
        raise ConfigError(
            f"episodes of several turns need an engine with the method of asyncrl.rollout.engine.ConversingEngine, but "
            f"{type(engine).__name__} has no seam"
        )
    return engine
