"""Output and errors of `asyncrl plan`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from asyncrl.cli.main import main

TOY = """
devices = 2
assumptions = ["every completion is as long as the next"]
[lengths]
median = 100
[rollout]
devices = 1
slots = 4
decode = [[1, 10]]
prefill_tokens_per_s = 1000
kv = "keep"
[trainer]
speeds = [{ devices = 1, tokens_per_s = 100 }]
[schedule]
groups_per_step = 2
group_size = 2
staleness = 1.0
[[measured]]
name = "the real one"
groups = 2
seconds = 12.5
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(TOY)
    return path


def plan(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, arguments)])


def test_the_table_has_step_time_speed_up_idle_shares_staleness_and_the_best_split(toy):
    result = plan(toy)
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
    answer = json.loads(plan(toy, "--json", "--no-search", "--set", "staleness=0").stdout)
    assert answer["planned"]["step_s"] == pytest.approx(14)
    assert answer["found"] is None


def test_the_page_is_written_to_the_given_file(toy, tmp_path):
    result = plan(toy, "--no-search", "--picture", tmp_path / "toy.html")
    assert result.exit_code == 0
    assert "<svg" in (tmp_path / "toy.html").read_text()
    assert result.stderr == f"simulating\n{tmp_path / 'toy.html'}\n"


def test_a_contradictory_plan_is_refused_in_one_sentence(toy):
    result = plan(toy, "--set", "rollout.devices=2")
    assert result.exit_code == 78
    assert result.stderr == "asyncrl: rollout.devices is 2 of 2 devices: at least one has to be left to train\n"
