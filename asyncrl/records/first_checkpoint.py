"""Sentence about a run without a checkpoint: when its first one comes, and what a resume does until then."""

from collections.abc import Mapping
from typing import Any


def no_checkpoint(settings: Mapping[str, Any], steps: int, *, is_finished: bool) -> str:
    """
    Clause that begins with ``none``.

    Args:
        settings: Every value of the run's configuration under its full key; empty if that cannot be read.
        steps: Steps with metrics.
    """
    every = settings.get("checkpoint.every_steps")
    if not isinstance(every, int):
        return "none, and the configuration, which says when one is written, cannot be read"
    if is_finished or 0 < every < steps:
        return "none here: if the trainer ran on another machine, the event checkpoint.written has the folder there"
    when = f"step {every}" if every > 0 else "the last step"
    return (
        f"none yet: the first one comes after {when} (checkpoint.every_steps = {every}), or with `asyncrl stop`; until "
        f"then a resume begins from the base model, with the same batches"
    )
