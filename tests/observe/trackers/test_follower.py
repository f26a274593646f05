import pytest

from asyncrl.errors import LedgerError, TrackerError
from asyncrl.observe.run_directory import RunDirectory
from tests.observe.trackers.conftest import Diary


def steps(diary: Diary) -> list[int]:
    return [entry[1] for entry in diary.said if entry[0] == "log"]


def test_all_that_is_there_is_handed_over_then_what_is_added_then_how_it_ended(run, follow, ended) -> None:
    run.append_metrics({"step": 0, "reward": 0.25, "time_s": 1.0})
    diary = Diary()
    follower = follow(diary)
    assert not follower.advance()
    assert diary.said == [("start", "tiny"), ("log", 1, {"train/reward": 0.25, "train/time_s": 1.0})]
    run.append_metrics({"step": 1, "reward": 0.5})
    assert not follower.advance()
    assert not follower.advance()
    run.write_summary(ended)
    assert follower.advance()
    assert diary.said[2:] == [("log", 2, {"train/reward": 0.5}), ("finish", "finished")]


def test_who_starts_again_neither_repeats_nor_skips_a_step(run, follow) -> None:
    seen: list[int] = []
    for step in range(6):
        run.append_metrics({"step": step, "reward": 0.0})
        if step % 2:
            diary = Diary()
            follow(diary).advance()  # And is killed.
            seen += steps(diary)
    assert seen == [1, 2, 3, 4, 5, 6]


def test_a_step_at_which_it_raised_is_handed_over_again(run, follow) -> None:
    run.append_metrics({"step": 0, "reward": 0.0})
    diary = Diary()
    follower = follow(diary)
    diary.breaks = "log"
    with pytest.raises(TrackerError, match=r"^diary\.log: OSError: no network \(.*conftest\.py:\d+\)$"):
        follower.advance()
    diary = Diary()
    follow(diary).advance()
    assert steps(diary) == [1]


def test_half_a_line_is_left_until_it_is_whole(run, follow) -> None:
    run.metrics.write_bytes(b'{"step":0,"reward":1.0}\n{"step":1,"rew')
    diary = Diary()
    follower = follow(diary)
    follower.advance()
    assert steps(diary) == [1]
    with run.metrics.open("ab") as file:
        file.write(b'ard":2.0}\n')
    follower.advance()
    assert diary.said[-1] == ("log", 2, {"train/reward": 2.0})


def test_what_is_not_finite_or_no_number_is_on_no_curve(run, follow) -> None:
    run.append_metrics({"step": 0, "reward": float("nan"), "loss": 1.0})
    diary = Diary()
    follow(diary).advance()
    assert diary.said[-1] == ("log", 1, {"train/loss": 1.0})


def test_an_evaluation_stands_at_the_steps_that_made_its_version(run, follow) -> None:
    for version in (0, 1, 2, 3):
        run.append_event("eval.finished", policy_version=version, accuracy=0.5, num_prompts=8, time_s=1.0)
    diary = Diary()
    follow(diary).advance()
    assert steps(diary) == [0, 2, 4, 4], "two steps a version, of which there are four"
    assert diary.said[-1][2] == {"eval/accuracy": 0.5, "eval/num_prompts": 8.0}


def test_events_are_told_and_counted_also_by_who_starts_again(run, follow) -> None:
    run.append_event("node.lost", node="r-0")
    diary = Diary()
    follow(diary).advance()
    assert diary.said[1:] == [("event", 0, "node.lost"), ("log", 0, {"events/node.lost": 1.0})]
    run.append_metrics({"step": 2, "reward": 0.0})
    run.append_event("node.lost", node="r-1")
    diary = Diary()
    follow(diary).advance()
    assert diary.said[2:] == [("event", 3, "node.lost"), ("log", 3, {"events/node.lost": 2.0})]


def test_it_is_told_the_configuration_without_secrets(follow) -> None:
    diary = Diary()
    follow(diary)
    assert diary.run.config == {
        "run.steps": 4,
        "schedule.steps_per_publish": 2,
        "reward.options.url": "http://verifier",
    }


def test_it_may_leave_before_the_run_has_ended(follow) -> None:
    diary = Diary()
    follower = follow(diary)
    follower.leave()
    assert diary.said[-1] == ("finish", None)


def test_a_file_that_is_another_one_now_is_not_gone_on_with(run: RunDirectory, follow) -> None:
    run.append_metrics({"step": 0, "reward": 0.0})
    follow(Diary()).advance()
    run.metrics.write_bytes(b"{}\n")
    with pytest.raises(LedgerError, match=r"metrics\.jsonl has lost what lay before byte"):
        follow(Diary()).advance()


def test_a_damaged_cursor_is_named(run: RunDirectory, follow) -> None:
    follow(Diary())
    (run.trackers / "diary" / "cursor.json").write_text("{")
    with pytest.raises(LedgerError, match=r"cursor\.json is damaged"):
        follow(Diary())
