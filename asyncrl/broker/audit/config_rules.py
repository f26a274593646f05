"""The configuration in config.toml against the one that the broker recorded in the ledger when it last started."""

from collections.abc import Iterator

import msgspec

from asyncrl.config.changes import MAY_CHANGE, STEPS
from asyncrl.config.config import Config, from_json, leaves

CONFIG_FILE = "config.toml"


def recorded_config(raw: str) -> Config | None:
    """The recorded configuration; None if there is none, or another asyncrl recorded it."""
    try:
        return from_json(raw.encode()) if raw else None
    except msgspec.MsgspecError:
        return None


def differing(recorded: Config, now: Config) -> dict[str, tuple[object, object]]:
    """Values in the ledger and in config.toml that differ, by setting."""
    before, after = (dict(leaves(msgspec.to_builtins(config))) for config in (recorded, now))
    keys = dict.fromkeys((*before, *after))
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def config_problems(recorded: Config, now: Config, *, is_over: bool) -> Iterator[str]:
    """
    Sentences about values that differ from those that the run used.

    Args:
        is_over: There is a summary. Without one, a resumed run may be about to start with some other values.
    """
    for key, (expected, got) in differing(recorded, now).items():
        if is_over or not _may_change(key):
            yield f"{CONFIG_FILE}: {key} is {got!r}: expected {expected!r}, as in the ledger"


def _may_change(key: str) -> bool:
    return key == STEPS or key.startswith(MAY_CHANGE)
