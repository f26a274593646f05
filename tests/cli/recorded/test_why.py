"""Output and exit codes of `asyncrl why`."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from asyncrl.cli.main import main
from asyncrl.cli.recorded.why import Why, possible, why_text
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.times import NodeTimes, TimesLine
from asyncrl.observe.why.diagnosis import Bottleneck, Diagnosis
from asyncrl.observe.why.explanation import Explanation
from asyncrl.plan.forecast import ONE_MORE, Forecast, Gain


def why(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["why", *map(str, arguments), "--no-predict"])


def a_run(parent: Path) -> RunDirectory:
    directory = RunDirectory.create(parent, "mine")
    directory.write_config("[schedule]\nstaleness = 1.0\n")
    for step in range(2):
        directory.append_metrics({"step": step})
        nodes = {
            "trainer-0": NodeTimes("trainer", {"training": 0.9, "waiting for sampling": 0.096, "fetching": 0.004}),
            "rollout-0": NodeTimes("rollout", {"sampling": 0.25, "waiting for the trainer": 0.75}, 10),
        }
        directory.append_times(TimesLine(step, step + 1.0, 1.0, nodes))
    return directory


def test_each_role_has_its_shares_and_the_last_lines_name_the_bottleneck(tmp_path: Path) -> None:
    result = why(a_run(tmp_path).path)

    assert result.exit_code == 0
    assert result.output == (
        "mine: 1.0 s of 2 steps, without loading and the end of the run\n"
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
        "To change it: give it more devices (trainer.ranks, trainer.nodes), or fewer tokens (sampling.max_tokens).\n"
    )


def test_json_has_the_same_numbers(tmp_path: Path) -> None:
    found = json.loads(why(a_run(tmp_path).path, "--json").output)
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
        "What a change would bring, by a plan fitted to this run (steps of 1.95 s, measured 2 s):",
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
    assert text.endswith("No prediction: a step of this run takes 2 s, and one of a plan fitted to it 3 s.")


def test_alarms_about_learning_come_last_with_what_to_change(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run.append_event("clip.high", step=1, clip_fraction=0.2, bound=0.1, advice="lower trainer.lr (now 0.1)")

    assert why(run.path).output.endswith(
        "\n\nAt step 1 the loss clipped 20% of the tokens: lower trainer.lr (now 0.1).\n"
    )
    (alarm,) = json.loads(why(run.path, "--json").output)["explanation"]["alarms"]
    assert alarm["advice"] == "lower trainer.lr (now 0.1)"
