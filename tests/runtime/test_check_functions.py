"""The user's functions are checked in a process of their own."""

import sys
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError
from asyncrl.runtime.check_functions import check_functions

MINE = """
import sys

def loss(tokens):
    return -tokens.advantages * tokens.logprobs

def advantage(outcomes, *, gama):
    return []

def old_loss(logprobs, advantages, mask):
    return 0

def odd_loss(tokens, *, power=0.2):
    return 0

def score(sample):
    return 1.0

sys.modules["seen"] = sys
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def a_run(**sections):
    return decode({"model": {"path": "m"}, "data": {"train": "t"}} | sections)


def test_valid_functions_are_accepted_and_not_imported_here(mine: Path) -> None:
    check_functions(a_run(algorithm={"loss": f"{mine}:loss"}, reward={"function": f"{mine}:score"}))
    check_functions(a_run(algorithm={"loss": f"{mine}:odd_loss", "loss_options": {"power": 2.0}}))
    assert "seen" not in sys.modules


def test_built_in_names_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", None)
    check_functions(a_run())


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"algorithm": {"advantage": "MINE:advantage"}}, "needs 'gama', which is neither a setting nor"),
        ({"algorithm": {"loss": "MINE:los"}}, "has no function 'los': did you mean 'loss'?"),
        (
            {"algorithm": {"loss": "MINE:old_loss"}},
            "must be def old_loss(tokens, *, <settings and options>), but 'advantages'",
        ),
        (
            {"algorithm": {"loss": "MINE:odd_loss", "loss_options": {"pover": 1.0}}},
            "algorithm.loss_options.pover is not a keyword argument of",
        ),
        ({"reward": {"function": "MINE:score", "options": {"form": 1.0}}}, "form"),
        ({"reward": {"function": "gsm8"}}, "unknown reward function 'gsm8': did you mean 'gsm8k'?"),
        ({"reward": {"group": "MINE:old_loss"}}, "is called with one argument, the list of members"),
    ],
    ids=str,
)
def test_invalid_functions_are_refused_in_one_sentence(mine: Path, sections: dict[str, Any], sentence: str) -> None:
    sections = {
        name: {
            key: value.replace("MINE", str(mine)) if isinstance(value, str) else value for key, value in part.items()
        }
        for name, part in sections.items()
    }
    with pytest.raises(ConfigError) as caught:
        check_functions(a_run(**sections))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
