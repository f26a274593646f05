"""A cell of README's table is the best of a peer's figures in one run, or says why there is none."""

import importlib
from pathlib import Path
from typing import Any

import pytest

TRL = {"case": "trained tokens", "ours": 28600.0, "unit": "tokens/s", "better": "higher"}
STEP = {"case": "step, spread 10", "ours": 0.0951, "better": "lower", "peer": "trl"}
ABSENT = {"case": "all", "peer": "trl", "skipped": "trl is not installed"}


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    return importlib.import_module("readme").Lines


def test_of_several_peers_the_best_is_shown(lines: Any) -> None:
    found = lines([TRL | {"peer": "trl, 1", "peer_value": 3865.0}, TRL | {"peer": "trl, 2", "peer_value": 4470.0}])

    assert found.beside("trained", "trl", "TRL") == ("28,600", "TRL: 4,470")


def test_seconds_are_those_of_the_clock(lines: Any) -> None:
    found = lines([STEP | {"unit": "CPU-s", "peer_value": 9.0}, STEP | {"unit": "s", "peer_value": 0.5}])

    assert found.beside("step", "trl", "TRL") == (".0951 s", "TRL: .5 s")


def test_a_peer_that_is_not_installed_is_said_beside_our_figure(lines: Any) -> None:
    found = lines([ABSENT, TRL | {"peer": "bare loop", "peer_value": 1.0}])

    assert found.beside("trained", "trl", "TRL") == ("28,600", "TRL: trl is not installed")


def test_a_line_that_the_table_needs_and_nobody_printed_ends_it(lines: Any) -> None:
    with pytest.raises(SystemExit, match="no line has the case 'whole'"):
        lines([TRL]).of("whole")
