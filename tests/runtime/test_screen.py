"""Terminal output of a run: short lines, with a progress bar on a terminal only."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from asyncrl.messages.supervisor import Evaluated, Paused, Progress, Returned, SettingsChanged
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.screen import LEGEND, LEGEND_OF_TURNS, RunConsole, Screen, step_line
from asyncrl.terminal import say

METRICS = {
    "version": 40,
    "reward": 0.512,
    "accuracy": 0.51,
    "length_mean": 38.2,
    "staleness_mean": 0.8,
    "staleness_max": 1,
    "kl": 0.0031,
    "tokens_per_s": 21_400,
    "wait_trainer": 0.03,
    "wait_rollout": 0.11,
    "time_s": 10.0,
}


def progress(step: int, **changes: float) -> Progress:
    return Progress(step, 60, METRICS | changes)


def screen_on(*, is_terminal: bool) -> tuple[Screen, io.StringIO]:
    written = io.StringIO()
    console = Console(file=written, force_terminal=is_terminal, width=60)
    return Screen(console, steps=60), written


def test_a_step_line_equals_the_example():
    trained = progress(40, loss=-0.0123, grad_norm=0.41)
    line = step_line(trained, eta_s=4.9)
    assert line.partition(" t/r")[0] in (step_line.__doc__ or "")
    assert line.endswith("wait t/r 3%/11% eta 0:04")
    assert step_line(trained, 4.9, 80) in (step_line.__doc__ or "").splitlines()[-2]


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 40, 10])
def test_a_step_line_fits_the_width_and_keeps_what_matters_most(width: int):
    trained = progress(40, loss=-0.0123, grad_norm=0.41, turns_mean=4.2)
    line = step_line(trained, 4.9, width)
    assert len(line) <= max(width, len("step  41/60 reward .512"))
    assert line.startswith("step  41/60 ")
    assert ("loss -0.0123 grad 0.41" in line) == (width >= 60)


def test_the_time_left_is_shown_once_it_is_known():
    screen, written = screen_on(is_terminal=False)
    with screen:
        screen.step(progress(0))
        screen.step(progress(1, time_s=10.1))
        screen.step(progress(2, time_s=12.0))
    first, second, third = [line for line in written.getvalue().splitlines() if line.startswith("step ")]
    assert "eta" not in first + second
    assert third.endswith("eta 0:57")


def test_a_node_that_is_back_is_said():
    screen, written = screen_on(is_terminal=False)
    screen.returned(Returned("trainer-0", 30.2, 250))
    screen.returned(Returned("reward-0", 3.0))
    assert written.getvalue().splitlines() == [
        "trainer-0 is back after 30 s, from step 250",
        "reward-0 is back after 3 s",
    ]


def test_a_step_of_episodes_shows_their_turns_and_says_so_in_the_legend():
    shown = step_line(progress(40, turns_mean=4.21, environment_s_mean=0.3), eta_s=4.9)
    assert " len 38 turns 4.2 stale 0.8/1 " in shown
    screen, written = screen_on(is_terminal=False)
    with screen:
        screen.step(progress(0, turns_mean=4.2, environment_s_mean=0.3))
    assert LEGEND_OF_TURNS in written.getvalue()


def test_zero_has_no_sign():
    line = step_line(progress(40, kl=-1e-6, loss=-1e-6), None)
    assert " loss 0.0000 " in line
    assert " kl 0.0000 " in line


def test_large_numbers_are_shortened():
    large = {
        "version": 999,
        "reward": -12.345,
        "accuracy": 1.0,
        "length_mean": 32_768,
        "staleness_mean": 12.5,
        "staleness_max": 30,
        "kl": 0.98765,
        "tokens_per_s": 999_900,
        "wait_trainer": 1.0,
        "wait_rollout": 1.0,
    }
    line = step_line(Progress(998, 999, large), eta_s=99 * 3600 + 59 * 60 + 59)
    assert "tok/s 999.9k" in line
    assert line.endswith("eta 99:59:59")


def test_numbers_are_short_and_correct():
    def reward(value: float) -> str:
        return step_line(progress(0, reward=value), 0.0).split()[4]

    assert [reward(v) for v in (0.0, 0.5, 0.9996, 1.0, 10.5, -0.25, float("nan"))] == [
        ".000",
        ".500",
        "1.000",
        "1.00",
        "10.50",
        "-0.25",
        "nan",
    ]


def test_without_a_terminal_there_are_plain_lines_only():
    screen, written = screen_on(is_terminal=False)
    with screen:
        screen.step(progress(0))
        screen.evaluated(Evaluated(10, 0.25, 64, {"length_mean": 12.0}))
        screen.evaluated(Evaluated(15, 0.25, 58, {"length_mean": 12.0, "failed": 6.0}))
        screen.evaluated(Evaluated(20, 0.41, 64, {"length_mean": 9, "avg@4": 0.41, "pass@4": 0.8, "maj@4": 0.5}))
        screen.evaluated(Evaluated(22, 0.05, 64, {"length_mean": 9, "reward": 0.178}))
        screen.evaluated(Evaluated(25, 0.0, 0, {"length_mean": 0.0, "failed": 50.0}))
        screen.exited("rollout-0", "was killed by SIGKILL", restarting=True)
        screen.exited("trainer-0", "exited with 1: [bold] no markup", restarting=False)
    assert written.getvalue().splitlines() == [
        *LEGEND.splitlines(),
        step_line(progress(0), None),
        "eval v10  held-out accuracy 25.0% of 64  len 12",
        "eval v15  held-out accuracy 25.0% of 58 (6 failed)  len 12",
        "eval v20  held-out accuracy 41.0% of 64  maj@4 50.0%  pass@4 80.0%  len 9",
        "eval v22  held-out accuracy 5.0% of 64  reward .178  len 9",
        "eval v25  held-out accuracy: none of 50 judged",
        "rollout-0 was killed by SIGKILL; starting it again",
        "trainer-0 exited with 1: [bold] no markup",
    ]


def test_on_a_terminal_a_bar_shows_progress():
    screen, written = screen_on(is_terminal=True)
    with screen:
        screen.step(progress(29))
        screen._bar.refresh()
        assert "30/60" in written.getvalue()


def test_without_a_terminal_failures_are_a_line_whenever_they_have_doubled():
    screen, written = screen_on(is_terminal=False)
    with screen:
        for count in range(1, 10):
            screen.failures({"reward: boom": count}, {"reward": 20})
    assert written.getvalue().splitlines() == [
        f"failed: {count} of 20 verdicts ({5 * count} %) failed: boom" for count in (1, 2, 4, 8)
    ]


def test_on_a_terminal_failures_are_one_line_under_the_bar():
    screen, written = screen_on(is_terminal=True)
    with screen:
        screen.failures({"reward: boom [bold]": 3}, {})
        screen._bar.refresh()
        shown = written.getvalue().rpartition("training")[2]
        assert "3 verdicts failed: boom [bold]" in shown
        screen.failures({"reward: ValueError: no number": 1200, "rollout: closed": 3}, {"reward": 5000})
        screen._bar.refresh()
        assert "ValueError in 1,200 of 5,000 verdicts" in written.getvalue().rpartition("training")[2]


def test_the_time_left_is_estimated_from_the_pace_since_the_first_step_of_this_start():
    """Resumed at step 17 of 60: steps at 10 s, 10.1 s, 12 s and 13 s; 40 and 39 more at 1 s each."""
    screen, written = screen_on(is_terminal=False)
    for step, time_s in enumerate((10.0, 10.1, 12.0, 13.0), start=17):
        screen.step(progress(step, time_s=time_s))
    assert [line.rpartition(" ")[2] for line in written.getvalue().splitlines()[len(LEGEND.splitlines()) :]] == [
        "3%/11%",
        "3%/11%",
        "0:40",
        "0:39",
    ]


def test_a_setting_that_is_changed_is_told_with_its_operator():
    screen, written = screen_on(is_terminal=False)
    screen.changed(SettingsChanged({"trainer.lr": 0.5}, "alice-7"))
    assert written.getvalue() == "trainer.lr = 0.5 from now on, set by alice-7\n"


def test_a_pause_is_told_and_marks_the_steps_that_what_is_in_hand_completes():
    screen, written = screen_on(is_terminal=False)
    with screen:
        screen.paused(Paused(True, "alice-7"))
        screen.step(progress(3))
        screen.paused(Paused(False, "bob-8"))
        screen.step(progress(4))
    lines = written.getvalue().splitlines()
    assert lines[0] == "paused by alice-7: no new leases; `asyncrl resume-sampling` lets sampling go on"
    assert [line.endswith("(paused)") for line in lines if line.startswith("step")] == [True, False]
    assert "sampling goes on: bob-8 ended the pause" in lines


class ClosedPipe(io.StringIO):
    """A pipe whose reader leaves after so many writes."""

    left = 0

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise BrokenPipeError
        return super().write(text)


def test_what_is_printed_before_and_after_a_run_has_its_directory_is_kept_there(tmp_path: Path) -> None:
    directory, written = RunDirectory.create(tmp_path, "run"), io.StringIO()
    console = RunConsole(written, width=20)
    say(console, "note: before")
    console.keep(directory)
    say(console, "[1/2] " + "after " * 9)
    assert directory.screen.read_text() == "note: before\n[1/2] " + "after " * 9 + "\n"
    assert written.getvalue().startswith("note: before\n[1/2] after")


def test_a_run_outlives_the_reader_of_its_output_and_tells_it_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, pipe, told = RunDirectory.create(tmp_path, "a run"), ClosedPipe(), io.StringIO()
    monkeypatch.setattr("sys.__stderr__", told)
    pipe.left = 1
    console = RunConsole(pipe, width=200)
    console.keep(directory)
    with Screen(console, steps=60) as screen:
        for number in range(3):
            screen.say(f"line {number}")
    assert pipe.getvalue() == "line 0\n"
    assert directory.screen.read_text() == "line 0\nline 1\nline 2\n"
    assert told.getvalue() == (
        f"asyncrl: nobody reads this output any more: asyncrl attach '{directory.path}' shows the run\n"
    )


def test_functions_of_the_caller_get_steps_and_evaluations_and_are_named_if_they_raise():
    seen: list[object] = []
    screen = Screen(RunConsole(io.StringIO()), steps=60, on_step=seen.append, on_evaluation=seen.append)
    evaluated = Evaluated(policy_version=3, accuracy=0.5, num_prompts=8, metrics={})
    screen.step(progress(0))
    screen.evaluated(evaluated)
    assert seen == [progress(0), evaluated]

    def plotted(_: object) -> None:
        raise ValueError("no figure")

    failing = Screen(RunConsole(io.StringIO()), steps=60, on_step=plotted, on_evaluation=seen.append)
    failing.step(progress(0))
    failing.evaluated(evaluated)
    assert re.fullmatch(r"on_step raised ValueError: no figure \(.*test_screen.py:\d+\)", str(failing.failure))
    assert len(seen) == 2, "none is called after one has failed"
