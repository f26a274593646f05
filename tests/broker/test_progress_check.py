import pytest

from asyncrl.actor.message import Message
from asyncrl.broker.progress_check import ProgressCheck
from asyncrl.config.run_file import decode
from asyncrl.messages.trainer import Commit, Resumed, StepFailed, Stepped, Take
from asyncrl.messages.weights import Live, Publishing, Transferred, Uploaded

CHECK = ProgressCheck(
    decode({"model": {"path": "m"}, "data": {"train": "t"}, "run": {"steps": 20}, "schedule": {"steps_per_publish": 4}})
)


def problem(message: Message, next_step: int = 8, newest_version: int = 2) -> str:
    return CHECK.problem_of(message, next_step=next_step, newest_version=newest_version)  # type: ignore[arg-type]


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
        (StepFailed(8, "e"), "step 8 cannot be done: the batch of step 8 was not taken yet"),
        (Resumed(9, "c"), "9 steps cannot be done: the batch of step 8 was not taken yet"),
        (Take(9), "step 9 cannot be next: the batch of step 8 was not taken yet"),
        (Commit(8, "c"), "step 8 cannot be done: the batch of step 8 was not taken yet"),
        (Commit(10**6, "c"), "step 1000000 cannot be done"),
        (Stepped(10**7, 1, {}), "step 10000000 cannot be done"),
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
