import fcntl
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError, TrackerError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.tools.track import track_run

OWN = """
from pathlib import Path

class Notes:
    def start(self, run):
        self.path = run.path / "notes.txt"
        self.say("start")

    def log(self, step, metrics):
        if step == self.breaks_at:
            raise OSError("no network")
        self.say(f"{step} {sorted(metrics)}")

    def event(self, step, kind, fields):
        self.say(kind)

    def finish(self, summary):
        self.say(f"finish {summary and summary.status}")

    def say(self, text):
        with self.path.open("a") as file:
            file.write(text + "\\n")

def notes(*, breaks_at=-1):
    tracker = Notes()
    tracker.breaks_at = breaks_at
    return tracker
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "my.py"
    path.write_text(OWN)
    return f"{path}:notes"


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, "tiny")
    directory.write_config('[model]\npath = "model"\n[data]\ntrain = "rows"\n')
    directory.append_metrics({"step": 0, "reward": 0.5})
    return directory


@pytest.fixture(autouse=True)
def keep_signal_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.tools.track.signal.signal", lambda *_: None)


def notes(directory: RunDirectory) -> list[str]:
    return (directory.path / "notes.txt").read_text().splitlines()


def test_a_run_is_sent_even_if_its_configuration_names_no_tracker(directory: RunDirectory, own: str) -> None:
    track_run(directory.path, own, (), once=True)
    assert notes(directory) == ["start", "1 ['train/reward']", "finish None"]
    directory.append_metrics({"step": 1, "loss": 1.0})
    track_run(directory.path, own, (), once=True)
    assert notes(directory)[3:] == ["start", "2 ['train/loss']", "finish None"]


def test_options_can_be_overridden(directory: RunDirectory, own: str) -> None:
    override = f'trackers.options={{ "{own}" = {{ breaks_at = 1 }} }}'
    with pytest.raises(TrackerError, match=r"notes\.log: OSError: no network"):
        track_run(directory.path, own, (override,), once=True)


def test_a_second_process_for_the_same_tracker_is_refused(directory: RunDirectory, own: str) -> None:
    folder = directory.trackers / "notes"
    folder.mkdir(parents=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process already sends this run"):
            track_run(directory.path, own, (), once=True)


def test_a_folder_without_a_run_is_refused(tmp_path: Path, own: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml"):
        track_run(tmp_path / "nothing", own, (), once=True)
