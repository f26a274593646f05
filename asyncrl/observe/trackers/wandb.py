"""Weights & Biases, online or offline."""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

import msgspec

from asyncrl.errors import ConfigError
from asyncrl.files.atomic import replacing
from asyncrl.observe.run_directory import RunSummary
from asyncrl.observe.trackers.tracker import Tracked

MODES = ("online", "offline")


class WandB:
    """
    One W&B run per asyncrl run; a restarted process continues it.

    Metrics use an axis named ``step`` of their own: W&B's built-in step axis rejects late values, such as evaluations.
    Mode ``online`` needs ``wandb login`` or WANDB_API_KEY; ``offline`` writes files for a later ``wandb sync``. Raises
    `ConfigError` for any other mode.
    """

    def __init__(
        self,
        *,
        project: str = "asyncrl",
        entity: str = "",
        group: str = "",
        tags: Sequence[str] = (),
        mode: str = "online",
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"trackers.options.wandb.mode is {mode!r}, expected one of {', '.join(MODES)}")
        self._settings = {"project": project, "entity": entity or None, "group": group or None, "mode": mode}
        self._tags = list(tags)
        self._run: Any = None

    def start(self, run: Tracked, /) -> None:
        """Create or continue the W&B run, with credentials from the environment."""
        import wandb

        self._run = wandb.init(
            id=_identity(run),
            resume="allow",
            name=run.name,
            dir=str(run.folder),
            config=run.config,
            tags=self._tags,
            settings=wandb.Settings(console="off", silent=True),
            **self._settings,
        )
        for section in ("train/*", "eval/*", "events/*"):
            self._run.define_metric(section, step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float], /) -> None:
        """Queue the metrics in W&B's own process, which sends them when it can."""
        self._run.log({"step": step, **metrics})

    def event(self, step: int, kind: str, fields: Mapping[str, Any], /) -> None:
        """Set a summary entry per kind of event; a later event replaces it."""
        self._run.summary[f"event.{kind}"] = msgspec.json.encode({"step": step, **fields}).decode()

    def finish(self, summary: RunSummary | None, /) -> None:
        """Send everything, or write it if offline; without a summary the W&B run can be continued."""
        if summary is None:
            self._run.finish()
            return
        self._run.summary.update(msgspec.to_builtins(summary))
        self._run.finish(exit_code=0 if summary.status == "finished" else 1)


def _identity(run: Tracked) -> str:
    """W&B run id: created once per run, then read from the tracker's folder."""
    path = run.folder / "run_id"
    if not path.exists():
        with replacing(path) as unfinished:
            unfinished.write_text(token_hex(8))
    return path.read_text()
