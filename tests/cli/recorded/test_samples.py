"""`asyncrl samples` shows what the policy writes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from asyncrl.cli.main import main
from asyncrl.cli.recorded.samples import Samples, sample_lines
from tests.observe.test_sample_texts import text
from tests.observe.test_sampled_episodes import episode
from tests.observe.test_samples import row, written


@pytest.fixture
def run(tmp_path: Path) -> Path:
    good, bad = row(0, [9, 2]), replace(row(1, [9]), reward=0.0, completion="", answer="")
    written(tmp_path / "samples", 41, [good, bad])
    (tmp_path / "config.toml").touch()
    return tmp_path


def samples(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["samples", *map(str, arguments)])


def test_prompt_completion_and_numbers_are_shown(run: Path) -> None:
    shown = samples(run)
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines() == [
        f"{run}/samples/step_000041.parquet: 2 of 2 samples, mean reward 0.5",
        "",
        "── reward 1, 2 tokens, stop, staleness 2, trajectory 7/0",
        "prompt       2 + 3 = ?",
        "completion   5 ✓",
        "answer       5",
        "",
        "── reward 0, 1 token, stop, staleness 2, trajectory 7/1",
        "prompt       2 + 3 = ?",
        "completion   (empty)",
    ]


def test_the_worst_and_the_best_are_found(run: Path) -> None:
    assert [line for line in samples(run, "--worst", "-n", 1).output.splitlines() if "reward 0," in line]
    best = json.loads(samples(run, "--best", "-n", 1, "--json").output)
    assert [one["reward"] for one in best["rows"]] == [1.0]


def test_a_long_text_is_wrapped_and_shortened_in_its_middle() -> None:
    long = replace(text(7, 0, 0.0), prompt="p", completion="word " * 1000 + "\x1b[2J\n\n#### 391")
    lines = list(sample_lines(Samples("file", 1, 0.0, [long]), Path("run"), 80))
    assert max(map(len, lines)) <= 80
    assert len(lines) == 3 + 1 + 24
    assert lines[-1] == " " * 13 + "#### 391"
    assert sum("more lines" in line for line in lines) == 1
    assert not any("\x1b" in line for line in lines)


def test_an_episode_points_at_its_turns(tmp_path: Path) -> None:
    written(tmp_path / "samples", 41, [episode(7)])
    (tmp_path / "config.toml").touch()
    last = samples(tmp_path).output.splitlines()[-1]
    assert last == f"2 turns: asyncrl episode show {tmp_path} --step 41 --group 7 --index 0"


def test_held_out_samples_that_are_not_stored_say_how_to_store_them(run: Path) -> None:
    refused = samples(run, "--held-out")
    assert (refused.exit_code, "evaluation.answers is 0" in refused.output) == (78, True)
