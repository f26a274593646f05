from collections.abc import Callable
from pathlib import Path

from asyncrl.observe.report.headline import headline
from asyncrl.observe.run_directory import RunDirectory, RunSummary
from asyncrl.observe.run_record import read_run

MakeRun = Callable[..., RunDirectory]

EXPECTED = {
    "steps": "10 of 10",
    "wall time": "20.0 s",
    "held-out accuracy before": "25.0 %",
    "held-out accuracy after": "75.0 %",
    "held-out, of several completions": "–",
    "held-out, by data source": "–",
    "held-out prompts": "64",
    "reward, first 10 steps": "0.45",
    "reward, last 10 steps": "0.45",
    "trained tokens": "10.0k",
    "trained tokens / s": "500",
    "staleness, mean": "0.5",
    "staleness, max": "1",
    "trainer waiting": "25.0 %",
    "rollouts waiting": "50.0 %",
    "pause per publish": "4 ms",
    "log-prob gap, mean": "2e-06",
    "log-prob gap, max": "1e-05",
    "nodes lost": "0",
    "processes that died": "0",
    "groups dropped": "0",
}


def test_a_finished_run_in_numbers(make_run: MakeRun, summary: Callable[..., RunSummary]) -> None:
    directory = make_run()
    directory.write_summary(summary())

    assert headline(read_run(directory.path)) == EXPECTED


def test_the_same_numbers_come_out_of_the_steps_alone(make_run: MakeRun) -> None:
    assert headline(read_run(make_run().path)) == EXPECTED


def test_failures_are_counted(make_run: MakeRun) -> None:
    directory = make_run()
    directory.append_event("node.lost", node="rollout-0", cause="no beat")
    directory.append_event("node.exited", node="rollout-0", cause="signal 9", restarting=True)
    for group_id in range(3):
        directory.append_event("group.dropped", group_id=group_id, reason="too many failures")
    numbers = headline(read_run(directory.path))

    assert (numbers["nodes lost"], numbers["processes that died"], numbers["groups dropped"]) == ("1", "1", "3")


def test_a_run_that_did_nothing_has_the_same_labels(tmp_path: Path) -> None:
    numbers = headline(read_run(tmp_path))

    assert list(numbers) == list(EXPECTED)
    assert set(numbers.values()) == {"0", "–"}
