"""What a tracker is: somewhere else to look at a run, TensorBoard, Weights & Biases, MLflow or a person's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from asyncrl.observe.run_directory import RunSummary


class Tracked(Struct, frozen=True, kw_only=True):
    """The run, as a tracker is told of it."""

    name: str
    path: Path
    """The run directory."""
    folder: Path
    """For the tracker to keep things in, from one start of it to the next. It is there."""
    config: dict[str, Any]
    """Every value under its full key, such as ``trainer.lr``; what looks like a secret is left out."""


class Tracker(Protocol):
    """
    Called by one thread of a process of its own. It may raise or hang: that ends its process, never the run.

    Metrics are called ``train/reward`` and so on: as in metrics.jsonl, behind ``train/``; ``eval/accuracy`` and so on,
    of evaluations; and ``events/node.lost``: how many there have been of each kind of event.
    """

    def start(self, run: Tracked, /) -> None:
        """Begin, or go on where an earlier process of this run was."""

    def log(self, step: int, metrics: Mapping[str, float], /) -> None:
        """
        Numbers after ``step`` optimizer steps. When this returns, they will not be handed over again.

        Steps need not come in order: an evaluation ends when later steps are done.
        """

    def event(self, step: int, kind: str, fields: Mapping[str, Any], /) -> None:
        """Something happened when ``step`` steps were done."""

    def finish(self, summary: RunSummary | None, /) -> None:
        """The run has ended so; None: this process is told to leave, and another one may go on."""
