"""
Decide which checkpoints of a run to keep: the newest few, and the best by evaluation on held-out prompts.

    Evaluating(40) ─▶ keep step 40 ─▶ Evaluated(40, 0.71) ─▶ best: named in best.json and kept; else: may be removed

A version without a checkpoint can be evaluated, but cannot be the best that is kept.
"""

from math import isfinite
from pathlib import Path

import msgspec
from msgspec import Struct

from asyncrl.config.sections.checkpoint import Checkpoint
from asyncrl.errors import ConfigError
from asyncrl.files.atomic import replacing
from asyncrl.files.checkpoints import BEST
from asyncrl.files.disk import needed
from asyncrl.log import get_logger
from asyncrl.messages.supervisor import Evaluated
from asyncrl.trainer.checkpoints import checkpoint

log = get_logger()


class Best(Struct, frozen=True, kw_only=True):
    """Contents of ``best.json``: the best checkpoint, in folder ``step_<step>``."""

    step: int
    policy_version: int
    metric: str
    value: float


class Retention:
    """Keep and remove checkpoints in ``directory``. `evaluating` and `evaluated` may run beside the other methods."""

    def __init__(self, directory: Path, config: Checkpoint) -> None:
        self._directory = directory
        self._config = config
        self._values: dict[int, float] = {}
        """Value of ``best_metric``, by evaluated version."""
        self._in_evaluation = -1

    def evaluating(self, policy_version: int) -> None:
        """Keep the checkpoint of this version until it is evaluated."""
        self._in_evaluation = policy_version

    def evaluated(self, result: Evaluated) -> None:
        """
        Note a result; one without prompts or with a non-finite value is ignored.

        Raises `ConfigError`, with the metrics that there are, if the result lacks ``checkpoint.best_metric``.
        """
        if not self._config.keep_best:
            return
        if result.policy_version == self._in_evaluation:
            self._in_evaluation = -1
        metrics = {"accuracy": result.accuracy, **result.metrics}
        if (value := metrics.get(self._config.best_metric)) is None:
            raise ConfigError(
                f"checkpoint.best_metric is {self._config.best_metric!r}, which evaluations do not report; use one of "
                f"{', '.join(metrics)}"
            )
        if result.num_prompts and isfinite(value):
            self._values[result.policy_version] = value

    def write_best(self) -> Best | None:
        """Write ``best.json`` if the best checkpoint changed; raises `RunFailed` if the disk fails."""
        if not self._config.keep_best:
            return None
        if (best := self._best()) is not None:
            self._write(best)
        return best

    def prune(self) -> None:
        """
        Write ``best.json``, and remove checkpoints that need not be kept; raises `RunFailed` if the disk fails.

        Call it only after this process has written a checkpoint: older ones may be unreadable, unknown to this process.
        """
        spared: list[Path] = []
        if self._config.keep_best:
            best, folders = self.write_best(), self._folders()
            versions = (best.policy_version if best else -1, self._in_evaluation)
            spared = [folders[version] for version in versions if version in folders]
        checkpoint.prune(self._directory, self._config.keep, spared)

    def _folders(self) -> dict[int, Path]:
        """Complete checkpoints, by policy version."""
        return {manifest.policy_version: folder for folder, manifest in checkpoint.complete(self._directory)}

    def _best(self) -> Best | None:
        """Best evaluated checkpoint; the earliest of equals."""
        candidates = [
            Best(
                step=int(folder.name.removeprefix("step_")),
                policy_version=version,
                metric=self._config.best_metric,
                value=self._values[version],
            )
            for version, folder in sorted(self._folders().items())
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
