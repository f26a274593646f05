"""
Which checkpoints of a run stay: the newest few, and the one that did best on held-out prompts.

    Evaluating(40) ─▶ step 40 is spared, however many follow ─▶ Evaluated(40, 0.71) ─▶ best.json names it, or it may go

A version has a result without a checkpoint if none was written of it; then it cannot be the best that is kept.
"""

from math import isfinite
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from asyncrl.config.sections import Checkpoint
from asyncrl.errors import ConfigError
from asyncrl.files.atomic import replacing
from asyncrl.files.disk import needed
from asyncrl.messages import Evaluated
from asyncrl.trainer.checkpoints import checkpoint

log = structlog.get_logger()

BEST = "best.json"


class Best(Struct, frozen=True, kw_only=True):
    """The checkpoint that did best, as ``best.json`` says it."""

    step: int
    """Its folder is ``step_<step>``."""
    policy_version: int
    metric: str
    value: float


class Retention:
    """
    Tidies one folder of checkpoints: in a thread, while others say what was heard meanwhile.

    Args:
        directory: The folder.
        config: How many are kept, and what is best.
    """

    def __init__(self, directory: Path, config: Checkpoint) -> None:
        self._directory = directory
        self._config = config
        self._values: dict[int, float] = {}
        """What evaluated versions achieved."""
        self._evaluated_now = -1

    def evaluating(self, policy_version: int) -> None:
        """It is being measured."""
        self._evaluated_now = policy_version

    def evaluated(self, result: Evaluated) -> None:
        """
        It was measured. An evaluation that none of its prompts survived says nothing.

        Raises:
            ConfigError: It has no ``checkpoint.best_metric``; names those it has.
        """
        if not self._config.keep_best:
            return
        if result.policy_version == self._evaluated_now:
            self._evaluated_now = -1
        metrics = {"accuracy": result.accuracy, **result.metrics}
        if (value := metrics.get(self._config.best_metric)) is None:
            raise ConfigError(
                f"checkpoint.best_metric is {self._config.best_metric!r}, which evaluations do not have; use one of "
                f"{', '.join(metrics)}"
            )
        if result.num_prompts and isfinite(value):
            self._values[result.policy_version] = value

    def mark(self) -> Best | None:
        """
        Name the best.

        Raises:
            RunFailed: The disk does not take it.
        """
        if not self._config.keep_best:
            return None
        best = self._best({version: _step(folder) for version, folder in self._folders().items()})
        if best is not None:
            self._write(best)
        return best

    def tidy(self) -> None:
        """
        Name the best, and remove what need not stay. Only after this process has written a checkpoint: of older ones
        nobody knows whether they can still be read.

        Raises:
            RunFailed: The disk does not take it.
        """
        spared: list[Path] = []
        if self._config.keep_best:
            best, folders = self.mark(), self._folders()
            versions = (best.policy_version if best else -1, self._evaluated_now)
            spared = [folders[version] for version in versions if version in folders]
        checkpoint.prune(self._directory, self._config.keep, spared)

    def _folders(self) -> dict[int, Path]:
        """Complete checkpoints, by policy version."""
        return {manifest.policy_version: folder for folder, manifest in checkpoint.complete(self._directory)}

    def _best(self, steps: dict[int, int]) -> Best | None:
        """Of these versions; of equals, the earliest."""
        candidates = [
            Best(step=step, policy_version=version, metric=self._config.best_metric, value=self._values[version])
            for version, step in sorted(steps.items())
            if version in self._values
        ]
        return max(candidates, key=lambda best: best.value, default=None)

    def _write(self, best: Best) -> None:
        path = self._directory / BEST
        text = msgspec.json.format(msgspec.json.encode(best)) + b"\n"
        with needed(path):
            if path.exists() and path.read_bytes() == text:
                return
            with replacing(path) as unfinished:
                unfinished.write_bytes(text)
        log.info("checkpoint.best", **msgspec.to_builtins(best))


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))
