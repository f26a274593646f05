from pathlib import Path

import pytest

from asyncrl.config.sections import Trackers
from asyncrl.errors import ConfigError
from asyncrl.observe.trackers import catalogue
from asyncrl.observe.trackers.catalogue import check_trackers, label, make_tracker
from asyncrl.observe.trackers.tensorboard import TensorBoard

OWN = """
class Slack:
    def __init__(self, channel):
        self.channel = channel

def slack(*, channel="ops"):
    return Slack(channel)
"""


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch) -> None:
    monkeypatch.setattr(catalogue, "find_spec", lambda name: object())


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


def test_ones_own_is_a_function_that_returns_it(own) -> None:
    check_trackers(Trackers(use=[own], options={own: {"channel": "rl"}}))
    assert make_tracker(own, {"channel": "rl"}).channel == "rl"  # type: ignore[attr-defined]
    assert label(own) == "slack"


@pytest.mark.parametrize(
    ("trackers", "message"),
    [
        pytest.param({"use": ["wanbd"]}, r"names 'wanbd', expected .*did you mean 'wandb'\?", id="misspelt"),
        pytest.param({"use": ["wandb", "wandb"]}, "names 'wandb' twice", id="twice"),
        pytest.param({"options": {"wandb": {"mode": "offline"}}}, "only read if trackers.use names it", id="unused"),
        pytest.param(
            {"use": ["mlflow"], "options": {"mlflow": {"url": "x"}}}, "'url'; it takes uri, experiment", id="option"
        ),
        pytest.param(
            {"use": ["wandb"], "options": {"wandb": {"mode": "off"}}}, "mode is 'off', expected one of", id="value"
        ),
        pytest.param({"use": ["nowhere.py:slack"]}, "there is no file", id="no such file"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(trackers, message) -> None:
    with pytest.raises(ConfigError, match=message):
        check_trackers(Trackers(**trackers))


def test_what_is_not_installed_is_named_with_the_extra(monkeypatch) -> None:
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"'wandb', which is not installed: pip install 'asyncrl\[tracking\]'"):
        check_trackers(Trackers(use=["wandb"]))
