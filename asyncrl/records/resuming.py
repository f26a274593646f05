"""Sentences on what a resume of a run finds: no checkpoint yet, or a pause."""

from collections.abc import Iterator, Mapping
from typing import Any

from asyncrl.terminal import command_line


def no_checkpoint(settings: Mapping[str, Any], steps: int, *, is_finished: bool) -> str:
    """
    Clause about a run without a checkpoint: when its first one comes, and what a resume does until then.

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


def pause_notes(by: str, where: object) -> Iterator[str]:
    """Sentence about a run that is over and paused, with what lets it sample again; none if nobody paused it."""
    if by:
        goes_on = command_line("asyncrl", "unpause", where)
        yield f"{by} paused sampling, which a resume does not end; once the run is resumed: {goes_on}"
