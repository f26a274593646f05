"""A follower passes each record on once, and a call that hangs ends its process."""

import subprocess
import sys
import threading

import pytest

from asyncrl.errors import LedgerError, TrackerError
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.tools.track import call_limit
from tests.tools.track.conftest import Follow, RecordingTracker


def steps(tracker: RecordingTracker) -> list[int]:
    return [entry[1] for entry in tracker.calls if entry[0] == "log"]


def test_existing_records_are_passed_on_then_new_ones_then_the_summary(
    run: RunDirectory, follow: Follow, ended: RunSummary
) -> None:
    run.append_metrics({"step": 0, "reward": 0.25, "time_s": 1.0})
    tracker = RecordingTracker()
    follower = follow(tracker)
    assert not follower.advance()
    assert tracker.calls == [("start", "tiny"), ("log", 1, {"train/reward": 0.25, "train/time_s": 1.0})]
    run.append_metrics({"step": 1, "reward": 0.5})
    assert not follower.advance()
    assert not follower.advance()
    run.write_summary(ended)
    assert follower.advance()
    assert tracker.calls[2:] == [("log", 2, {"train/reward": 0.5}), ("finish", "finished")]


def test_a_restarted_follower_neither_repeats_nor_skips_a_step(run: RunDirectory, follow: Follow) -> None:
    seen: list[int] = []
    for step in range(6):
        run.append_metrics({"step": step, "reward": 0.0})
        if step % 2:
            tracker = RecordingTracker()
            follow(tracker).advance()  # And is killed.
            seen += steps(tracker)
    assert seen == [1, 2, 3, 4, 5, 6]


def test_a_step_at_which_the_tracker_raised_is_passed_on_again(run: RunDirectory, follow: Follow) -> None:
    run.append_metrics({"step": 0, "reward": 0.0})
    tracker = RecordingTracker()
    follower = follow(tracker)
    tracker.breaks = "log"
    with pytest.raises(TrackerError, match=r"^tracker\.log: OSError: no network \(.*conftest\.py:\d+\)$"):
        follower.advance()
    tracker = RecordingTracker()
    follow(tracker).advance()
    assert steps(tracker) == [1]


def test_an_incomplete_line_is_left_until_it_is_complete(run: RunDirectory, follow: Follow) -> None:
    run.metrics.write_bytes(b'{"step":0,"reward":1.0}\n{"step":1,"rew')
    tracker = RecordingTracker()
    follower = follow(tracker)
    follower.advance()
    assert steps(tracker) == [1]
    with run.metrics.open("ab") as file:
        file.write(b'ard":2.0}\n')
    follower.advance()
    assert tracker.calls[-1] == ("log", 2, {"train/reward": 2.0})


def test_only_finite_numbers_are_logged(run: RunDirectory, follow: Follow) -> None:
    run.append_metrics({"step": 0, "reward": float("nan"), "loss": 1.0})
    tracker = RecordingTracker()
    follow(tracker).advance()
    assert tracker.calls[-1] == ("log", 1, {"train/loss": 1.0})


def test_an_evaluation_is_logged_at_the_steps_behind_its_version(run: RunDirectory, follow: Follow) -> None:
    for version in (0, 1, 2, 3):
        run.append_event("eval.finished", policy_version=version, accuracy=0.5, num_prompts=8, time_s=1.0)
    tracker = RecordingTracker()
    follow(tracker).advance()
    assert steps(tracker) == [0, 2, 4, 4], "two steps a version, of which there are four"
    assert tracker.calls[-1][2] == {"eval/accuracy": 0.5, "eval/num_prompts": 8.0}


def test_events_are_counted_across_restarts(run: RunDirectory, follow: Follow) -> None:
    run.append_event("node.lost", node="r-0")
    tracker = RecordingTracker()
    follow(tracker).advance()
    assert tracker.calls[1:] == [("event", 0, "node.lost"), ("log", 0, {"events/node.lost": 1.0})]
    run.append_metrics({"step": 2, "reward": 0.0})
    run.append_event("node.lost", node="r-1")
    tracker = RecordingTracker()
    follow(tracker).advance()
    assert tracker.calls[2:] == [("event", 3, "node.lost"), ("log", 3, {"events/node.lost": 2.0})]


def test_the_configuration_is_passed_without_secrets(follow: Follow) -> None:
    tracker = RecordingTracker()
    follow(tracker)
    assert tracker.run.config == {
        "run.steps": 4,
        "schedule.steps_per_publish": 2,
        "reward.options.url": "http://verifier",
    }


def test_a_follower_can_leave_before_the_run_has_ended(follow: Follow) -> None:
    tracker = RecordingTracker()
    follower = follow(tracker)
    follower.leave()
    assert tracker.calls[-1] == ("finish", None)


def test_a_file_that_has_become_shorter_is_refused(run: RunDirectory, follow: Follow) -> None:
    run.append_metrics({"step": 0, "reward": 0.0})
    follow(RecordingTracker()).advance()
    run.metrics.write_bytes(b"{}\n")
    with pytest.raises(LedgerError, match=r"metrics\.jsonl has fewer than the .* bytes already read"):
        follow(RecordingTracker()).advance()


def test_a_damaged_cursor_is_named(run: RunDirectory, follow: Follow) -> None:
    follow(RecordingTracker())
    (run.trackers / "tracker" / "cursor.json").write_text("{")
    with pytest.raises(LedgerError, match=r"cursor\.json is damaged"):
        follow(RecordingTracker())


def timers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_call_that_returns_in_time_does_not_expire() -> None:
    expired: list[str] = []
    with call_limit("wandb.log", 60.0, expired.append):
        pass
    assert expired == []
    assert not timers()


def test_a_call_that_hangs_is_named() -> None:
    expired: list[str] = []
    told = threading.Event()

    def tell(why: str) -> None:
        expired.append(why)
        told.set()

    with call_limit("wandb.log", 0.01, tell):
        assert told.wait(10)
    assert expired == ["wandb.log took more than 0.01 s"]


def test_its_timer_ends_with_a_call_that_raised() -> None:
    with pytest.raises(ValueError, match="bad"), call_limit("wandb.log", 60.0):
        raise ValueError("bad")
    assert not timers()


def test_a_process_that_hangs_ends_with_one_sentence() -> None:
    code = (
        "import threading\n"
        "from asyncrl.tools.track import call_limit\n"
        "with call_limit('wandb.log', 0.05):\n"
        "    threading.Event().wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (TrackerError.exit_code, "asyncrl: wandb.log took more than 0.05 s\n")
