"""Trackers by their names, and the methods that each has."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.sections.broker import Trackers
from asyncrl.errors import ConfigError
from asyncrl.records import trackers
from asyncrl.records import trackers as trackers_module
from asyncrl.records.trackers import TensorBoard, Tracker, check_trackers, label, make_tracker

OWN = """
class Slack:
    def __init__(self, channel):
        self.channel = channel

def slack(*, channel="ops"):
    return Slack(channel)
"""


@pytest.fixture(autouse=True)
def all_packages_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers_module, "find_spec", lambda name: object())


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "my.py"
    path.write_text(OWN)
    return f"{path}:slack"


def test_none_is_the_default() -> None:
    check_trackers(Trackers())


def test_a_tracker_that_comes_with_asyncrl_takes_its_options() -> None:
    check_trackers(Trackers(use=["tensorboard", "wandb", "mlflow"], options={"wandb": {"mode": "offline"}}))
    assert isinstance(make_tracker("tensorboard", {"log_dir": "x"}), TensorBoard)


def test_a_path_names_a_function_that_returns_the_tracker(own: str) -> None:
    check_trackers(Trackers(use=[own], options={own: {"channel": "rl"}}))
    assert make_tracker(own, {"channel": "rl"}).channel == "rl"  # type: ignore[attr-defined]
    assert label(own) == "slack"


@pytest.mark.parametrize(
    ("trackers", "message"),
    [
        pytest.param({"use": ["wanbd"]}, r"names 'wanbd': expected .*did you mean 'wandb'\?", id="misspelt"),
        pytest.param({"use": ["wandb", "wandb"]}, "names 'wandb' twice", id="twice"),
        pytest.param({"options": {"wandb": {"mode": "offline"}}}, "trackers.use does not name 'wandb'", id="unused"),
        pytest.param(
            {"use": ["mlflow"], "options": {"mlflow": {"url": "x"}}}, "'url'; it takes uri, experiment", id="option"
        ),
        pytest.param(
            {"use": ["wandb"], "options": {"wandb": {"mode": "off"}}}, "mode is 'off', expected one of", id="value"
        ),
        pytest.param({"use": ["nowhere.py:slack"]}, "there is no file", id="no such file"),
    ],
)
def test_bad_settings_are_refused(trackers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_trackers(Trackers(**trackers))


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"'wandb', which is not installed: pip install 'asyncrl\[tracking\]'"):
        check_trackers(Trackers(use=["wandb"]))


METHODS = ("start", "log", "event", "finish")


def test_each_has_the_methods_of_a_tracker() -> None:
    classes = [kind for _, kind in inspect.getmembers(trackers, inspect.isclass) if hasattr(kind, "finish")]
    own = [kind for kind in classes if kind is not Tracker]
    assert len(own) == 4
    for kind in own:
        for name in METHODS:
            expected = len(inspect.signature(getattr(Tracker, name)).parameters)
            assert len(inspect.signature(getattr(kind, name)).parameters) == expected, (kind, name)
