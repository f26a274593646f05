"""Commands that read a run: which run is missing, and reports."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
from click.testing import Result
from msgspec.structs import replace

from asyncrl.cli.recorded import COMMANDS
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.times import NodeTimes, TimesLine
from asyncrl.tools.plan.fit import ONE_MORE, Forecast, Gain
from asyncrl.tools.sample_texts import Samples, sample_lines
from asyncrl.tools.why import Bottleneck, Diagnosis, Explanation
from asyncrl.tools.why_lines import Why, possible, why_text
from tests.cli.invoke import asyncrl
from tests.records.test_sampled_episodes import episode
from tests.records.test_samples import samples_row, written
from tests.tools.test_sample_texts import text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_run_that_does_not_exist_is_named(command: click.Command, tmp_path: Path) -> None:
    others = ["tensorboard"] if command.name == "track" else []
    found = asyncrl(command.name, tmp_path / "none", *others)
    assert found.exit_code == 78
    assert f"{tmp_path / 'none'}" in found.output
    assert len(found.output.splitlines()) == 1


def a_run(folder: Path, name: str) -> RunDirectory:
    directory = RunDirectory.create(folder, name)
    directory.config.write_text('[model]\npath = "m"\n[data]\ntrain = "t"\n')
    directory.append_event("run.started", seed=0)
    directory.append_metrics({"step": 0, "time_s": 1.0, "reward": 0.5, "tokens": 10})
    return directory


def test_report_writes_one_page_beside_the_run(tmp_path):
    run = a_run(tmp_path, "one")
    result = asyncrl("report", run.path)
    assert (result.exit_code, result.output) == (0, f"{run.report}\n")
    assert run.report.read_text().startswith("<!")


def test_report_of_several_runs_is_written_to_the_given_file(tmp_path):
    runs = [a_run(tmp_path, name).path for name in ("one", "two")]
    result = asyncrl("report", *runs, "-o", tmp_path / "both.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "both.html").read_text()
    assert "one" in page
    assert "two" in page


def test_a_report_goes_into_a_fifo_and_leaves_it_one(tmp_path):
    run, fifo = a_run(tmp_path, "one"), tmp_path / "fifo"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(fifo.read_text)
        result = asyncrl("report", run.path, "-o", fifo)
        assert result.exit_code == 0, result.output
        assert read.result(timeout=30).startswith("<!")
    assert fifo.is_fifo()


@pytest.mark.parametrize(("folder", "expected"), [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644)])
def test_a_report_withholds_what_its_folder_withholds(folder: int, expected: int, tmp_path: Path) -> None:
    run, place = a_run(tmp_path, "one"), tmp_path / "place"
    place.mkdir()
    place.chmod(folder)
    before = os.umask(0o022)
    try:
        assert asyncrl("report", run.path, "-o", place / "out.html").exit_code == 0
    finally:
        os.umask(before)
    assert (place / "out.html").stat().st_mode & 0o777 == expected


def test_a_report_about_no_run_is_refused(tmp_path):
    result = asyncrl("report", tmp_path / "nowhere")
    assert result.exit_code not in (0, 1)
    assert len(result.stderr.splitlines()) == 1


# ── test samples ──────────────────────────────────────────────────────────────────────────────
# `asyncrl samples` shows what the policy writes.


@pytest.fixture
def run(tmp_path: Path) -> Path:
    good, bad = samples_row(0, [9, 2]), replace(samples_row(1, [9]), reward=0.0, completion="", answer="")
    written(tmp_path / "samples", 41, [good, bad])
    (tmp_path / "config.toml").touch()
    return tmp_path


def samples(*arguments: object) -> Result:
    return asyncrl("samples", *arguments)


def test_prompt_completion_and_numbers_are_shown(run: Path) -> None:
    shown = samples(run)
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines() == [
        f"{run}/samples/step_000041.parquet: 2 of 2 samples of step 42, mean reward 0.5",
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
    lines = list(sample_lines(Samples("file", False, 1, 0.0, [long]), Path("run"), 80))
    assert max(map(len, lines)) <= 80
    assert len(lines) == 3 + 1 + 24
    assert lines[-1] == " " * 13 + "#### 391"
    assert sum("more lines" in line for line in lines) == 1
    assert not any("\x1b" in line for line in lines)


def test_an_episode_points_at_its_turns(tmp_path: Path) -> None:
    written(tmp_path / "samples", 41, [episode(7)])
    (tmp_path / "config.toml").touch()
    last = samples(tmp_path).output.splitlines()[-1]
    assert last == f"2 turns: asyncrl episode show {tmp_path} --step 42 --group 7 --index 0"


def test_held_out_samples_that_are_not_stored_say_why_and_how_to_store_them(run: Path) -> None:
    def refusal(answers: int) -> str:
        (run / "config.toml").write_text(f"[evaluation]\nanswers = {answers}\n")
        refused = samples(run, "--held-out")
        assert refused.exit_code == 78
        return refused.output.partition("samples: ")[2]

    assert refusal(16).startswith("no evaluation is done yet; see evaluation.at_start")
    RunDirectory(run).append_event("eval.finished", policy_version=0, accuracy=0.5, num_prompts=32)
    assert refusal(0).startswith("evaluation.answers is 0, so none of 1 evaluation has kept completions; set it")
    assert f"in {run}/config.toml, or in the run file of the broker's service" in refusal(0)
    assert refusal(16) == "evaluation.answers was 0 in the 1 evaluation so far; the next one keeps its completions\n"


# ── test why ──────────────────────────────────────────────────────────────────────────────────
# Output and exit codes of `asyncrl why`.


def why(*arguments: object) -> Result:
    return asyncrl("why", *arguments, "--no-predict")


def why_a_run(parent: Path) -> RunDirectory:
    directory = RunDirectory.create(parent, "mine")
    directory.write_config("[schedule]\nstaleness = 1.0\n")
    for step in range(2):
        pace = {"step_s": 1.0, "wait_s": 0.1, "wait_rollout_s": 0.75, "tokens": 500}
        directory.append_metrics({"step": step, "time_s": step + 1.0, **pace})
        nodes = {
            "trainer-0": NodeTimes("trainer", {"training": 0.9, "waiting for sampling": 0.096, "fetching": 0.004}),
            "rollout-0": NodeTimes("rollout", {"sampling": 0.25, "waiting for the trainer": 0.75}, 10),
        }
        directory.append_times(TimesLine(step, step + 1.0, 1.0, nodes))
    return directory


def test_each_role_has_its_shares_and_the_last_lines_name_the_bottleneck(tmp_path: Path) -> None:
    result = why(why_a_run(tmp_path).path)

    assert result.exit_code == 0
    assert result.output == (
        "mine: 2 steps in 2.0 s, 1 s a step, 500 trained tokens / s, trainer waits 10.0 %, rollouts wait 75.0 %\n"
        "What each did in 1.0 s, without loading and the first step after it, pauses and the end of the run:\n"
        "\n"
        "trainer\n"
        "  90%  ██████████████████  training\n"
        "  10%  ██                  waiting for sampling\n"
        "\n"
        "rollouts\n"
        "  75%  ███████████████  waiting for the trainer\n"
        "  25%  █████            sampling\n"
        "\n"
        "nodes\n"
        "  rollout-0  waiting for the trainer 75%, sampling 25%\n"
        "  trainer-0  training 90%, waiting for sampling 10%, fetching 0%\n"
        "\n"
        "Bottleneck: trainer. The trainer trains 90% of the time, and rollouts wait for it 75% of theirs.\n"
        "To change it: give it more devices (trainer.ranks, trainer.nodes), or fewer tokens (a lower "
        "sampling.max_tokens, if completions reach it).\n"
    )


def test_json_has_the_same_numbers(tmp_path: Path) -> None:
    found = json.loads(why(why_a_run(tmp_path).path, "--json").output)
    assert found["explanation"]["roles"]["rollout"] == {"waiting for the trainer": 0.75, "sampling": 0.25}
    assert found["explanation"]["diagnosis"]["bottleneck"] == "trainer"


def test_a_failed_run_begins_with_its_cause_and_one_without_a_step_names_no_bottleneck(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "mine")
    directory.append_times(TimesLine(-1, 1.0, 1.0, {"trainer-0": NodeTimes("trainer", {"publishing": 1.0})}))
    directory.append_event("run.finished", status="failed", cause="33 groups in a row were dropped")
    lines = why(directory.path).output.splitlines()
    assert lines[0] == "mine failed after 0 steps: 33 groups in a row were dropped"
    assert lines[-1] == "No step was trained, so there is no bottleneck to name."


def test_a_run_without_times_ends_with_74_and_a_sentence(tmp_path: Path) -> None:
    result = why(RunDirectory.create(tmp_path, "new").path)
    assert result.exit_code == 74
    assert "the run new has no times.jsonl" in result.output


def test_no_run_is_refused(tmp_path: Path) -> None:
    result = why(tmp_path / "none")
    assert result.exit_code == 78
    assert "no such run" in result.output


def test_changes_are_listed_with_what_they_would_bring() -> None:
    gains = [Gain("schedule.staleness = 2", 1.339), Gain("one more rollout", 1.0)]
    lines = why_text(
        "mine", Why(Explanation("finished", "", 2, 1.0, {}, {}, None), Forecast(2.0, 1.95, is_close=True, gains=gains))
    ).splitlines()
    assert lines[-3:] == [
        "What a change would bring, by a plan fitted to this run (steps of 1.95 s, measured 2 s without starts):",
        "  1.34x  schedule.staleness = 2",
        "  1.00x  one more rollout",
    ]


def test_one_more_process_is_not_offered_to_a_machine_whose_cores_are_busy() -> None:
    gains = [Gain("schedule.staleness = 2", 1.3), Gain(ONE_MORE, 1.2)]
    predicted = Forecast(2.0, 1.95, is_close=True, gains=gains)

    def offered(bottleneck: Bottleneck) -> list[str]:
        explanation = Explanation("finished", "", 2, 1.0, {}, {}, Diagnosis(bottleneck, 0.5, "", ""))
        kept = possible(Why(explanation, predicted)).forecast
        assert kept is not None
        return [gain.change for gain in kept.gains]

    assert offered("processor") == ["schedule.staleness = 2"]
    assert offered("sampling") == ["schedule.staleness = 2", "one more rollout"]


def test_a_plan_that_does_not_describe_the_run_predicts_nothing() -> None:
    text = why_text(
        "mine", Why(Explanation("finished", "", 2, 1.0, {}, {}, None), Forecast(2.0, 3.0, is_close=False, gains=[]))
    )
    assert text.endswith(
        "No prediction of changes: a step takes 2 s without starts, and one of a plan fitted to it 3 s, more than "
        "15% away: a plan knows nothing of slow disks or busy cores."
    )


def test_alarms_about_learning_come_last_with_what_to_change(tmp_path: Path) -> None:
    run = why_a_run(tmp_path)
    run.append_event("clip.high", step=1, clip_fraction=0.2, bound=0.1, advice="lower trainer.lr (now 0.1)")

    assert why(run.path).output.endswith(
        "\n\nAt step 2 the loss clipped 20 % of the tokens: lower trainer.lr (now 0.1).\n"
    )
    (alarm,) = json.loads(why(run.path, "--json").output)["explanation"]["alarms"]
    assert alarm["advice"] == "lower trainer.lr (now 0.1)"
