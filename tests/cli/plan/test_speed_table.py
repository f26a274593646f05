"""Tables of `asyncrl plan`."""

import json

import pytest

from tests.cli.invoke import asyncrl


def test_the_table_has_step_time_speed_up_idle_shares_staleness_and_the_best_split(toy):
    result = asyncrl("plan", toy)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["colocated", "synchronous", "2", "0", "1", "12", "1.00x", "16.7", "%", "83.3", "%", "2", "0.00/0"] in lines
    assert ["as", "planned", "1", "+", "1", "1", "1", "10", "1.20x", "0.0", "%", "60.0", "%", "4", "1.00/1"] in lines
    assert any(line[:2] == ["best", "found"] for line in lines)
    assert ["0", "60.0%", "█" * 24] in lines
    assert ["1", "1", "+", "1", "10", "1.20x", "best"] in lines
    assert ["the", "real", "one", "2", "12.5", "10.0", "-20%"] in lines
    assert result.output.endswith("assumptions\n  - every completion is as long as the next\n")


def test_json_has_the_same_numbers(toy):
    answer = json.loads(asyncrl("plan", toy, "--json", "--no-search", "--set", "staleness=0").stdout)
    assert answer["planned"]["step_s"] == pytest.approx(14)
    assert answer["found"] is None
