"""Failures are counted by cause, and told at once, rarely and in full."""

import pytest

from asyncrl.broker.failures import (
    EVENT,
    MAX_CAUSES,
    FailureBook,
    ProgressCheck,
    StepFailures,
    recorded,
    recorded_attempts,
)
from asyncrl.config.run_file import decode
from asyncrl.errors import RunFailed
from asyncrl.messages.codec import Message
from asyncrl.messages.trainer import Commit, Resumed, StepFailed, Stepped, Take
from asyncrl.messages.weights import Live, Publishing, Transferred, Uploaded
from asyncrl.records.failure_sentences import OTHERS


def test_reasons_that_differ_in_numbers_ids_and_values_are_one_cause() -> None:
    book = FailureBook()
    for number in range(5):
        book.count("reward", f"ValueError: no number in 'line {number}' at {number / 3} of 0x7f{number}a (score.py:12)")
        book.count("rollout", f"node {number:032x} is gone")
    book.count("reward", "TypeError: of another kind")

    assert list(book.counts.values()) == [5, 5, 1]
    assert next(iter(book.counts)) == "reward: ValueError: no number in 'line 0' at 0.0 of 0x7f0a (score.py:12)"
    assert book.total == 11


def test_exceptions_of_one_type_from_one_line_are_one_cause_whatever_they_say() -> None:
    book = FailureBook()
    for word in ("aifd", "qb", "word " * 99):
        book.count("reward", f"the function raised ValueError: cannot parse {word} (/home/me/raises.py:3)")
    book.count("reward", "the function raised ValueError: cannot parse aifd (/home/me/raises.py:9)")
    book.count("reward", "the function raised TypeError: cannot parse aifd (/home/me/raises.py:3)")
    assert list(book.counts.values()) == [3, 1, 1]

    events = [{"event": EVENT, **fields} for fields in book.events(0.0)]
    later = FailureBook()
    later.restore(recorded(events), recorded_attempts(events))
    later.count("reward", "the function raised ValueError: cannot parse zz (/home/me/raises.py:3)")
    assert (
        later.sentences()[0]
        == "ValueError at raises.py:3 in 4 of 6 attempts at a verdict (67 %), such as 'cannot parse aifd'"
    )


def test_the_place_of_a_long_exception_outlives_a_restart() -> None:
    book, later = FailureBook(), FailureBook()
    book.count("reward", f"the function raised ValueError: {'x' * 390} (/home/me/raises.py:3)")
    later.restore(book.counts, {})
    later.count("reward", "the function raised ValueError: short (/home/me/raises.py:3)")
    assert list(later.counts.values()) == [2]


def test_failures_are_told_as_a_part_of_all_attempts() -> None:
    book = FailureBook()
    book.attempted("reward", 47)
    book.count("reward", "the function raised KeyError: 'answer' (score.py:3)", 41)
    assert book.sentences() == ["KeyError at score.py:3 in 41 of 88 attempts at a verdict (47 %), such as 'answer'"]
    assert [event["of"] for event in book.events(0.0)] == [88]


def test_the_same_reason_in_two_stages_is_two_causes() -> None:
    book = FailureBook()
    book.count("rollout", "timed out")
    book.count("reward", "timed out", 2)
    assert book.counts == {"reward: timed out": 2, "rollout: timed out": 1}


def test_neither_many_causes_nor_a_long_one_take_memory() -> None:
    book = FailureBook()
    for first in "abcdefghij":
        for second in "klmnopqrst":
            book.count("reward", f"{first}{second} " + "x" * 100_000 + "\n")

    assert len(book.counts) == MAX_CAUSES + 1
    assert book.counts[OTHERS] == 100 - MAX_CAUSES
    assert max(map(len, book.counts)) < 200
    assert "\n" not in "".join(book.counts)


def test_a_new_cause_is_an_event_at_once_and_a_known_one_ever_more_rarely() -> None:
    book = FailureBook()
    told = []
    for now_s in range(2000):
        book.count("reward", "boom")
        told += [(now_s, event["count"]) for event in book.events(float(now_s))]

    assert [now_s for now_s, _ in told] == [0, 10, 30, 70, 150, 310, 630, 1230, 1830]
    assert all(count == now_s + 1 for now_s, count in told)
    assert book.events(2000.0, is_over=True) == [{"stage": "reward", "cause": "boom", "count": 2000, "of": 2000}]
    assert book.events(2000.0, is_over=True) == []


def test_without_a_new_failure_there_is_no_event() -> None:
    book = FailureBook()
    book.count("reward", "boom")
    assert len(book.events(0.0)) == 1
    assert book.events(1e9) == []


def test_the_screen_is_told_once_a_second_if_anything_changed() -> None:
    book = FailureBook()
    assert book.news(0.0) == {}
    book.count("reward", "boom")
    assert book.news(0.0) == {"reward: boom": 1}
    book.count("reward", "boom")
    assert book.news(0.5) == {}
    assert book.news(1.0) == {"reward: boom": 2}
    assert book.news(9.0) == {}


def test_each_step_has_the_failures_since_the_step_before() -> None:
    book = FailureBook()
    book.count("reward", "boom", 3)
    assert (book.since_last_step(), book.since_last_step()) == (3, 0)


def test_counts_continue_from_the_events_of_an_earlier_broker() -> None:
    book = FailureBook()
    book.count("reward", "no number in 17", 4)
    events = [{"event": EVENT, **fields} for fields in book.events(0.0)]
    book.count("reward", "no number in 18", 3)
    events += [{"event": EVENT, **fields} for fields in book.events(0.0, is_over=True)]

    assert recorded([{"event": "run.started"}, *events]) == {"reward: no number in 17": 7}
    later = FailureBook()
    later.restore(recorded(events), recorded_attempts(events))
    assert later.attempts == {"reward": 7}
    assert (later.total, later.since_last_step(), later.events(0.0)) == (7, 0, [])
    later.count("reward", "no number in 19")
    assert later.counts == {"reward: no number in 17": 8}


@pytest.mark.parametrize("reason", ["", ": ", "a: b: c", "'", "\ud800"])
def test_any_reason_can_be_counted_and_read_back(reason: str) -> None:
    book = FailureBook()
    book.count("reward", reason)
    assert recorded([{"event": EVENT, **fields} for fields in book.events(0.0)]) == book.counts


def test_failures_of_a_stage_whose_successes_nobody_counts_are_no_part_of_anything() -> None:
    book = FailureBook()
    book.count("payload", "lost", 3)
    book.count("reward", "lost", 3)
    assert book.attempts == {"reward": 3}


# ── test progress check ───────────────────────────────────────────────────────────────────────

CHECK = ProgressCheck(
    decode({"model": {"path": "m"}, "data": {"train": "t"}, "run": {"steps": 20}, "schedule": {"steps_per_publish": 4}})
)


def problem(message: Message, next_step: int = 8, newest_version: int = 2) -> str:
    return CHECK.problem_of(message, next_step=next_step, newest_version=newest_version)


@pytest.mark.parametrize(
    "message",
    [
        Resumed(8, "c"), StepFailed(7, "e"), Take(8), Take(3), Commit(7, "c"), Stepped(7, 1, {}), Publishing(2, 8),
        Publishing(1, 6), Publishing(2, 6), Publishing(0, 0), Live(2, 0.0, 0.0), Transferred(1, 2, 1.0, 5),
    ],
)  # fmt: skip
def test_what_can_be_true_passes(message: Message) -> None:
    assert problem(message) == ""


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (StepFailed(8, "e"), "step 9 cannot be done: the batch of step 9 was not taken yet"),
        (Resumed(9, "c"), "9 steps cannot be done: the batch of step 9 was not taken yet"),
        (Take(9), "step 10 cannot be next: the batch of step 9 was not taken yet"),
        (Commit(8, "c"), "step 9 cannot be done: the batch of step 9 was not taken yet"),
        (Commit(10**6, "c"), "step 1000001 cannot be done"),
        (Stepped(10**7, 1, {}), "step 10000001 cannot be done"),
        (Publishing(3, 12), "version 3 cannot contain 12 steps"),
        (Publishing(7, 8), "version 7 cannot be the one after 8 steps"),
        (Publishing(1, 8), "version 1 cannot be the one after 8 steps"),
        (Live(3, 0.0, 0.0), "version 3 does not exist: the newest is 2"),
        (Transferred(1, 10**9, 1.0, 5), "version 1000000000 does not exist"),
        (Uploaded(10**9, 1.0, 5), "version 1000000000 does not exist"),
    ],
)
def test_what_cannot_be_true_is_named(message: Message, sentence: str) -> None:
    assert problem(message).startswith(sentence)


def test_no_batch_is_taken_beyond_the_end() -> None:
    assert problem(Take(20), next_step=20)


def test_the_last_version_may_contain_fewer_steps() -> None:
    check = ProgressCheck(
        decode(
            {"model": {"path": "m"}, "data": {"train": "t"}, "run": {"steps": 18}, "schedule": {"steps_per_publish": 4}}
        )
    )
    assert not check.problem_of(Publishing(5, 18), next_step=18, newest_version=4)


# ── test step failures ────────────────────────────────────────────────────────────────────────
# A trainer that fails twice at one step for one reason ends the run; anything else is tried again.

OOM = "OutOfMemoryError: tried to allocate 2.5 GiB, 1.1 GiB free"


def test_the_second_failure_for_the_same_reason_ends_the_run_in_one_sentence() -> None:
    failures = StepFailures()
    failures.failed(12, OOM)
    with pytest.raises(RunFailed) as raised:
        failures.failed(12, OOM)
    assert str(raised.value) == (
        f"the trainer failed twice at step 13 for the same reason: {OOM}; mend the cause and resume the run, or have "
        f"it leave out the batch of that step: asyncrl resume RUN --skip-step 13"
    )


def test_reasons_that_differ_in_numbers_alone_are_the_same() -> None:
    failures = StepFailures()
    failures.failed(12, OOM)
    with pytest.raises(RunFailed):
        failures.failed(12, OOM.replace("1.1", "0.9"))


@pytest.mark.parametrize(("step", "reason"), [(12, "ValueError: no tokens"), (13, OOM)])
def test_another_reason_and_another_step_are_tried_again(step: int, reason: str) -> None:
    failures = StepFailures()
    failures.failed(12, OOM)
    failures.failed(step, reason)
    with pytest.raises(RunFailed):
        failures.failed(12, OOM)


def test_a_step_that_was_done_since_has_not_failed() -> None:
    failures = StepFailures()
    failures.failed(12, OOM)
    failures.done(12)
    failures.failed(12, OOM)
