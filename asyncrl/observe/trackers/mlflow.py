"""MLflow: a server, or a database in the run directory."""

import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrl.files.atomic import replacing
from asyncrl.observe.run_directory import RunSummary
from asyncrl.observe.trackers.tracker import Tracked

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

    def start(self, run: Tracked, /) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri or f"sqlite:///{run.folder.resolve() / 'mlflow.db'}")
        path = run.folder / "run_id"
        if path.exists():
            self._run_id = path.read_text()
            self._client.update_run(self._run_id, status="RUNNING")
            return
        self._run_id = self._client.create_run(self._experiment_id(), run_name=run.name).info.run_id
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

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        return str(found.experiment_id if found else self._client.create_experiment(self._experiment))

    def _describe(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        parameters = [Param(key, str(value)[:MAX_PARAMETER_CHARS]) for key, value in config.items()]
        for start in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(self._run_id, params=parameters[start : start + MAX_PARAMETERS])
