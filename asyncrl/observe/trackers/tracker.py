"""Interface of a tracker: TensorBoard, Weights & Biases, MLflow, or a user's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from asyncrl.observe.run_directory import RunSummary


class Tracked(Struct, frozen=True, kw_only=True):
    """Description of the run, given to `Tracker.start`."""

    name: str
    path: Path
    folder: Path
    """Folder for the tracker's own files, kept across restarts; exists already."""
    config: dict[str, Any]
    """Every value under its full key, such as ``trainer.lr``, without keys that name a secret."""


class Tracker(Protocol):
    """
    Receives the metrics and events of one run, in one thread of a process of its own.

    A tracker may raise or hang: that ends its process, never the run. Names of metrics are ``train/`` and the name in
    metrics.jsonl, such as ``train/reward``; ``eval/`` and a metric of an evaluation, such as ``eval/accuracy``; and
    ``events/`` and a kind of event, such as ``events/node.lost``, whose value is the number of such events so far.
    """

    def start(self, run: Tracked, /) -> None:
        """Start, or continue after an earlier process of the same run."""

    def log(self, step: int, metrics: Mapping[str, float], /) -> None:
        """
        Record metrics after ``step`` optimizer steps. Once this returns, they are not passed again.

        Steps may come out of order: an evaluation may end after later steps.
        """

    def event(self, step: int, kind: str, fields: Mapping[str, Any], /) -> None:
        """Record an event that happened after ``step`` optimizer steps."""

    def finish(self, summary: RunSummary | None, /) -> None:
        """End of the run; with None this process stops early, and another one may continue."""
