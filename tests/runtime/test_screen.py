"""Terminal output of a run: short lines, with a progress bar on a terminal only; where it goes on and how it ended."""

import io
import re
import shlex
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.messages.supervisor import Evaluated, Paused, Progress, Returned, SettingsChanged
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.origin import settle
from asyncrl.runtime.screen import (
    LEGEND,
    LEGEND_OF_TURNS,
    RunConsole,
    Screen,
    continuation_lines,
    outcome_lines,
    step_line,
    time_so_far,
)
from asyncrl.terminal import say
from tests.files.test_checkpoints import write_checkpoint
from tests.runtime.test_run import METRICS as LINE
from tests.runtime.test_run import SUMMARY

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
        for step in range(3):
            screen.step(progress(step, step_recent_s=1.0))
    first, second, third = [line for line in written.getvalue().splitlines() if line.startswith("step ")]
    assert "eta" not in first + second
    assert third.endswith("eta 0:57")


def test_a_step_of_which_nothing_can_be_learned_says_so():
    assert " (no signal) len 38 " in step_line(progress(40, zero_advantage_fraction=1.0), eta_s=None)
    assert "no signal" not in step_line(progress(40, zero_advantage_fraction=0.9), eta_s=None)


def test_a_node_that_is_back_is_said():
    screen, written = screen_on(is_terminal=False)
    screen.returned(Returned("trainer-0", 30.2, 250))
    screen.returned(Returned("reward-0", 3.0))
    assert written.getvalue().splitlines() == [
        "trainer-0 is back after 30 s, from step 251",
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
        f"failed: {count} of 20 attempts at a verdict ({5 * count} %) failed: boom" for count in (1, 2, 4, 8)
    ]


def test_on_a_terminal_failures_are_one_line_under_the_bar():
    screen, written = screen_on(is_terminal=True)
    with screen:
        screen.failures({"reward: boom [bold]": 3}, {})
        screen._bar.refresh()
        shown = written.getvalue().rpartition("training")[2]
        assert "3 attempts at a verdict failed: boom [bold]" in shown
        screen.failures({"reward: ValueError: no number": 1200, "rollout: closed": 3}, {"reward": 5000})
        screen._bar.refresh()
        assert "ValueError in 1,200 of 5,000 attempts at a verdict" in written.getvalue().rpartition("training")[2]


def test_a_line_that_is_pinned_is_printed_and_stays_under_the_bar():
    console = RunConsole(stream := io.StringIO())
    console.pin("dashboard http://127.0.0.1:8460/")
    assert stream.getvalue() == "dashboard http://127.0.0.1:8460/\n"
    bar = Screen(console, 10)._bar
    assert "dashboard http://127.0.0.1:8460/" in [str(line) for line in bar.get_renderables()]


def test_the_time_left_is_at_the_pace_of_the_last_steps_once_three_are_seen():
    """Resumed at step 17 of 60: 40 and 39 more at 1 s each."""
    screen, written = screen_on(is_terminal=False)
    for step in range(17, 21):
        screen.step(progress(step, step_recent_s=1.0))
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
    assert lines[0] == "paused by alice-7: no new leases; `asyncrl unpause` lets sampling go on"
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


# ── continuation ────────────────────────────────────────────────────────────────────────────
# A resumed run tells from which step it goes on, and with which settings.


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "run")


def continued(directory: RunDirectory) -> list[str]:
    return list(continuation_lines(directory))


def test_a_new_run_is_not_resumed(directory: RunDirectory) -> None:
    assert continued(directory) == []


def test_steps_after_the_checkpoint_are_computed_again(directory: RunDirectory) -> None:
    directory.config.write_text("[checkpoint]\nevery_steps = 10\n")
    for step in range(7):
        directory.append_metrics(LINE | {"step": step})
    assert continued(directory) == [
        "resuming from the beginning, without a checkpoint; steps 1 to 7 are computed again, with the same batches",
        "checkpoint: none yet: the first one comes after step 10 (checkpoint.every_steps = 10), or with `asyncrl "
        "stop`; until then a resume begins from the base model, with the same batches",
    ]
    folder = write_checkpoint(directory.checkpoints, 5)
    assert continued(directory) == [
        f"resuming from checkpoint {folder}, if it is intact; steps 6 to 7 are computed again, with the same batches"
    ]
    write_checkpoint(directory.checkpoints, 6)
    assert continued(directory)[0].endswith("; step 7 is computed again, with the same batches")
    folder = write_checkpoint(directory.checkpoints, 7)
    assert continued(directory) == [f"resuming from checkpoint {folder}, if it is intact"]


def test_settings_that_were_changed_meanwhile_are_named(directory: RunDirectory) -> None:
    for value in (3, 2):
        directory.append_event("setting.changed", key="schedule.staleness", value=value, before=1, by="operator")
    assert continued(directory) == ["changed by `asyncrl set`: schedule.staleness = 2"]


def test_records_that_are_damaged_are_left_to_the_broker(directory: RunDirectory) -> None:
    directory.metrics.write_text("?\n")
    assert continued(directory) == []


def test_a_copy_says_that_it_is_one(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "a")
    with closing(Ledger(directory.ledger)) as ledger:
        settle(directory, ledger)
    shutil.copytree(directory.path, tmp_path / "b")
    assert continued(RunDirectory(tmp_path / "b")) == [
        f"{tmp_path}/b is a copy of the run in {tmp_path}/a: it goes on as a run of its own, with another identity and "
        f"secret; nodes and spools of the original are not taken"
    ]


# ── outcome ──────────────────────────────────────────────────────────────────────────────
# The last lines of a run say what to look at.

ZERO = "every reward was 0: look at the samples: asyncrl samples "


def test_a_run_that_was_resumed_tells_both_times(directory: RunDirectory) -> None:
    assert next(outcome_lines(directory, SUMMARY, 0.0, can_resume=True)).startswith("finished: 3 of 3 steps in 6.0 s, ")
    first = next(outcome_lines(directory, SUMMARY, 2.5, can_resume=True))
    assert first.startswith("finished: 3 of 3 steps in 6.0 s (3.5 s since it was resumed), held-out accuracy 25.0%")
    unheard = next(outcome_lines(directory, SUMMARY, 6.5, can_resume=True))
    assert unheard.startswith("finished: 3 of 3 steps in 6.0 s, "), "it failed before it recorded anything"


def test_completions_that_failed_are_told_beside_the_accuracy(directory: RunDirectory) -> None:
    first = next(outcome_lines(directory, replace(SUMMARY, held_out_failed=6), 0.0, can_resume=True))
    assert ", held-out accuracy 25.0% -> 75.0% (6 failed), mean staleness" in first


def test_prompts_that_failures_cost_are_told_below_the_failures(directory: RunDirectory) -> None:
    sentence = "KeyError at bad.py:4 in 1,889 of 3,495 attempts at a verdict (54 %)"
    summary = replace(SUMMARY, failures=[sentence], groups_issued=298, groups_failed=106)
    lines = list(outcome_lines(directory, summary, 0.0, can_resume=True))
    assert lines[1:3] == [
        f"failed      {sentence}",
        "dropped     106 of 298 prompts (35.6 %), because a completion of each failed for good: "
        f"asyncrl dead-letters {directory.path}",
    ]


def test_the_time_so_far_is_that_of_the_last_record(directory: RunDirectory) -> None:
    assert time_so_far(directory) == 0.0
    directory.append_metrics(LINE)
    directory.append_event("run.finished", time_s=3.5)
    assert time_so_far(directory) == 3.5
    directory.metrics.write_text("?\n")
    assert time_so_far(directory) == 0.0


@pytest.mark.parametrize(
    ("rewards", "accuracy", "is_said"), [([0, 0], 0.0, True), ([0], None, True), ([0, 0.1], 0.0, False),
                                        ([0], 0.5, False), ([], None, False), ([None], None, False)]
)  # fmt: skip
def test_a_run_without_any_reward_points_at_its_samples(
    directory: RunDirectory, rewards: list[float | None], accuracy: float | None, is_said: bool
) -> None:
    for step, reward in enumerate(rewards):
        directory.append_metrics({**LINE, "step": step, "reward": reward})  # type: ignore[dict-item]
    lines = list(outcome_lines(directory, replace(SUMMARY, held_out_accuracy=accuracy), 0.0, can_resume=True))
    assert (f"{ZERO}{directory.path}" in lines) is is_said


def test_samples_are_offered_once_a_step_has_some(directory: RunDirectory) -> None:
    offer = f"samples     asyncrl samples {directory.path}"
    assert offer not in outcome_lines(directory, SUMMARY, 0.0, can_resume=True)
    (directory.samples / "step_000000.parquet").touch()
    assert offer in outcome_lines(directory, SUMMARY, 0.0, can_resume=True)


def test_a_run_that_ended_while_it_was_paused_says_so_where_it_says_how_to_resume_it(directory: RunDirectory) -> None:
    directory.append_event("sampling.paused", by="ann")
    *_, resume, paused = outcome_lines(directory, replace(SUMMARY, status="interrupted"), 0.0, can_resume=True)
    assert resume.startswith("resume      asyncrl resume")
    assert paused.startswith("paused      ann paused sampling, which a resume does not end")


def test_commands_of_a_run_with_a_space_in_its_name_can_be_copied_into_a_shell(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "a run")
    summary = replace(SUMMARY, status="failed")
    commands = [line for line in outcome_lines(directory, summary, 0.0, can_resume=True) if "asyncrl " in line]
    assert len(commands) >= 2
    assert all(shlex.split(line.partition("asyncrl ")[2])[1] == str(directory.path) for line in commands)
