"""
Trackers by name: the built-in ones, and a user's own.

    "tensorboard" | "wandb" | "mlflow" | "trackio"        need the extra `tracking`
    "my.py:slack"                             a function that takes options and returns a `Tracker`
"""

import inspect
import re
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from asyncrl.config.sections.broker import Trackers
from asyncrl.errors import ConfigError
from asyncrl.files.atomic import replacing
from asyncrl.plug_in import hint, is_path, load_function
from asyncrl.records.run_directory import RunSummary

# ── tracker ───────────────────────────────────────────────────────────────────────────────────
# Interface of a tracker: TensorBoard, Weights & Biases, MLflow, or a user's own.


class RunDescription(Struct, frozen=True, kw_only=True):
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

    def start(self, run: RunDescription, /) -> None:
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


# ── mlflow ────────────────────────────────────────────────────────────────────────────────────
# MLflow: a server, or a database in the run directory.

MAX_PARAMETERS = 100
"""Per call. This and the next two are MLflow's limits."""
MAX_PARAMETER_CHARS = 6000
MAX_TAG_CHARS = 5000
FORBIDDEN = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow forbids in the name of a metric."""


class MLflow:
    """
    One MLflow run per asyncrl run; a restarted process continues it.

    ``uri`` is a tracking server or database; empty uses an SQLite file in the run directory, which ``mlflow ui
    --backend-store-uri`` shows. ``experiment`` is created if it does not exist.
    """

    def __init__(self, *, uri: str = "", experiment: str = "asyncrl") -> None:
        self._uri = uri
        self._experiment = experiment
        self._client: Any = None
        self._run_id = ""

    def start(self, run: RunDescription, /) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri or f"sqlite:///{run.folder.resolve() / 'mlflow.db'}")
        path = run.folder / "run_id"
        if path.exists():
            self._run_id = path.read_text()
            self._client.update_run(self._run_id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(self._experiment)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(self._experiment)
        self._run_id = self._client.create_run(str(experiment_id), run_name=run.name).info.run_id
        self._describe(run.config)
        with replacing(path) as unfinished:
            unfinished.write_text(self._run_id)

    def log(self, step: int, metrics: Mapping[str, float], /) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        entries = [Metric(FORBIDDEN.sub("_", name), value, now_ms, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=entries)

    def event(self, step: int, kind: str, fields: Mapping[str, Any], /) -> None:
        """Set a tag per kind of event; a later event replaces it."""
        text = msgspec.json.encode({"step": step, **fields}).decode()
        self._client.set_tag(self._run_id, f"event.{kind}", text[:MAX_TAG_CHARS])

    def finish(self, summary: RunSummary | None, /) -> None:
        """End the MLflow run with the same status; without a summary it stays open."""
        if summary is None:
            return
        self._client.set_tag(self._run_id, "cause", summary.cause[:MAX_TAG_CHARS])
        self._client.set_terminated(self._run_id, "FINISHED" if summary.status == "finished" else "FAILED")

    def _describe(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        parameters = [Param(key, str(value)[:MAX_PARAMETER_CHARS]) for key, value in config.items()]
        for start in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(self._run_id, params=parameters[start : start + MAX_PARAMETERS])


# ── tensorboard ───────────────────────────────────────────────────────────────────────────────
# TensorBoard event files, written with the tensorboard package; needs neither torch nor TensorFlow.


class TensorBoard:
    """Writes into ``log_dir``; if empty, a folder in the run directory. View with ``tensorboard --logdir runs``."""

    def __init__(self, *, log_dir: str = "") -> None:
        self._log_dir = log_dir
        self._writer: Any = None

    def start(self, run: RunDescription, /) -> None:
        """Open a new file; TensorBoard reads all files of the folder as one run."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(self._log_dir or str(run.folder / "events"))
        self._text(0, "config", "\n".join(f"    {key} = {value!r}" for key, value in run.config.items()))

    def log(self, step: int, metrics: Mapping[str, float], /) -> None:
        self._write(step, [{"tag": name, "simple_value": value} for name, value in metrics.items()])

    def event(self, step: int, kind: str, fields: Mapping[str, Any], /) -> None:
        """Write the fields as text under ``events/KIND``."""
        self._text(step, f"events/{kind}", msgspec.json.encode(fields).decode())

    def finish(self, summary: RunSummary | None, /) -> None:
        if summary is not None:
            self._text(summary.steps, "summary", msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())
        self._writer.close()

    def _text(self, step: int, tag: str, text: str) -> None:
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        metadata = create_summary_metadata(display_name="", description="")
        self._write(step, [{"tag": tag, "tensor": tensor, "metadata": metadata}])

    def _write(self, step: int, values: list[dict[str, Any]]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(**value) for value in values])
        self._writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))
        self._writer.flush()


# ── trackio ───────────────────────────────────────────────────────────────────────────────────
# Trackio, of Hugging Face: a database on this machine, which `trackio show` shows, or a Space.


class Trackio:
    """
    One trackio run per asyncrl run; a restarted process continues it.

    Without ``space_id`` the run stays on this machine, in TRACKIO_DIR. Its name ends with letters of its own, because
    trackio tells runs of a project apart by their names.
    """

    def __init__(self, *, project: str = "asyncrl", group: str = "", space_id: str = "") -> None:
        self._settings = {"project": project, "group": group or None, "space_id": space_id or None}
        self._run: Any = None

    def start(self, run: RunDescription, /) -> None:
        """Create or continue the trackio run, with credentials of the Hub from the environment."""
        import trackio

        self._run = trackio.init(
            name=f"{run.name}-{_identity(run.folder)[:6]}",
            resume="allow",
            config=dict(run.config),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
            **self._settings,
        )

    def log(self, step: int, metrics: Mapping[str, float], /) -> None:
        """Queue the metrics in trackio's own thread, which stores or sends them."""
        self._run.log(dict(metrics), step=step)

    def event(self, step: int, kind: str, fields: Mapping[str, Any], /) -> None:
        """Count the event alone, as ``events/KIND`` of `log` does: alerts of trackio are for what a person set up."""

    def finish(self, summary: RunSummary | None, /) -> None:
        self._run.finish()


def _identity(folder: Path) -> str:
    """Random name of a run at a tracker, made once for its folder."""
    path = folder / "run_id"
    if not path.exists():
        with replacing(path) as unfinished:
            unfinished.write_text(token_hex(8))
    return path.read_text()


# ── wandb ─────────────────────────────────────────────────────────────────────────────────────
# Weights & Biases, online or offline.

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

    def start(self, run: RunDescription, /) -> None:
        """Create or continue the W&B run, with credentials from the environment."""
        import wandb

        self._run = wandb.init(
            id=_identity(run.folder),
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


# ── catalogue ─────────────────────────────────────────────────────────────────────────────────

BUILT_IN: Mapping[str, Callable[..., Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
}
"""Name to class; the name is also that of the package it needs."""


def check_trackers(trackers: Trackers) -> None:
    """Raise `ConfigError` if a tracker is unknown, not installed or named twice, or does not take its options."""
    labels = [label(name) for name in trackers.use]
    for name in trackers.use:
        if labels.count(label(name)) > 1:
            raise ConfigError(f"trackers.use names {label(name)!r} twice; list each tracker once")
        _factory(name, trackers.options.get(name, {}))
    for name in trackers.options.keys() - set(trackers.use):
        raise ConfigError(
            f"trackers.options.{name} has no effect: trackers.use does not name {name!r}; add it there, or remove "
            f"its options"
        )


def make_tracker(name: str, options: Mapping[str, Any]) -> Tracker:
    """Create a tracker without starting it. Raises as `check_trackers`."""
    return _factory(name, options)(**options)


def label(name: str) -> str:
    """Short name for a tracker's files and process: ``my.py:slack`` gives ``slack``."""
    return name.rpartition(":")[2]


def _factory(name: str, options: Mapping[str, Any]) -> Callable[..., Tracker]:
    factory = load_function(name, setting="trackers.use") if is_path(name) else _built_in(name)
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(factory).parameters) or "none"
        raise ConfigError(f"trackers.options of {name!r}: {error}; it takes {known}") from error
    if name in BUILT_IN:
        factory(**options)  # The constructors only check the values of their options.
    return factory


def _built_in(name: str) -> Callable[..., Tracker]:
    if name not in BUILT_IN:
        raise ConfigError(
            f"trackers.use names {name!r}: expected {', '.join(BUILT_IN)}, or file.py:name: {hint(name, BUILT_IN)}"
        )
    if find_spec(name) is None:
        raise ConfigError(f"trackers.use names {name!r}, which is not installed: pip install 'asyncrl[tracking]'")
    return BUILT_IN[name]
