"""A tracker that records its calls, and a run to track."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.trackers import RunDescription, Tracker
from asyncrl.tools.track import Follower

CONFIG = """
[run]
steps = 4
[schedule]
steps_per_publish = 2
[reward]
options = { api_key = "hush", url = "http://verifier" }
"""

Follow = Callable[[Tracker], Follower]


class RecordingTracker:
    """Records its calls; the call named by ``breaks`` raises."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.breaks = ""

    def start(self, run: RunDescription, /) -> None:
        self._record("start", run.name)
        self.run = run

    def log(self, step: int, metrics: Mapping[str, float], /) -> None:
        self._record("log", step, dict(metrics))

    def event(self, step: int, kind: str, fields: Mapping[str, Any], /) -> None:
        self._record("event", step, kind)

    def finish(self, summary: RunSummary | None, /) -> None:
        self._record("finish", summary and summary.status)

    def _record(self, what: str, *rest: Any) -> None:
        if what == self.breaks:
            raise OSError("no network")
        self.calls.append((what, *rest))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, "tiny")
    directory.write_config(CONFIG)
    return directory


@pytest.fixture
def follow(run: RunDirectory) -> Follow:
    """Starts a new follower, as a new process would."""

    def start(tracker: Tracker) -> Follower:
        follower = Follower(run, tracker, "tracker", 60.0)
        follower.start()
        return follower

    return start


@pytest.fixture
def ended() -> RunSummary:
    return RunSummary(
        name="tiny",
        status="finished",
        seed=0,
        steps=4,
        steps_planned=4,
        versions=2,
        wall_s=8.0,
        trained_tokens=100,
        staleness_mean=0.5,
        staleness_max=1,
    )


@pytest.fixture
def tracked(tmp_path: Path) -> RunDescription:
    folder = tmp_path / "kept"
    folder.mkdir()
    return RunDescription(name="tiny", path=tmp_path, folder=folder, config={"trainer.lr": 1e-3, "data.train": "rows"})
