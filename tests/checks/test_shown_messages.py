"""Reasons of nodes are made fit to be shown where they enter, and nothing else of a message changes."""

import pytest

from asyncrl.checks.shown_messages import REASON_CHARS, shown_message
from asyncrl.messages.rollout import Failed, Offer, StartedOver
from asyncrl.messages.session import Beat, Bye
from asyncrl.messages.supervisor import Exited, Stacks
from asyncrl.messages.trainer import DamagedCheckpoint, Refusal, Resumed, StepFailed, Stepped
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.weights import TransferFailed, Uploaded
from asyncrl.messages.wire import ToBroker

UNIT = Unit(0, 0)


def said(text: str) -> list[ToBroker]:
    return [
        Bye(text),
        Failed(UNIT, 1, "reward", text, retryable=True),
        StartedOver(UNIT, 1, 5, text),
        StepFailed(3, text),
        TransferFailed(1, 2, text),
        Exited("rollout-0", text, restarting=True),
        Uploaded(1, 0.5, 9, text),
        Resumed(2, "/runs/a", [DamagedCheckpoint("/runs/a/step_000003", text)]),
        Stepped(3, 2, {text: 1.0}, [Refusal(UNIT, text)]),
        Stacks("rollout-0", "", text),
    ]


def test_a_reason_is_one_line_without_what_a_terminal_obeys() -> None:
    assert list(map(shown_message, said("\x1b[2J\n\u202e"))) == said("\\x1b[2J\\n\\u202e")


def test_a_reason_that_is_fit_stays_as_it_is() -> None:
    reason = "ValueError: no number in '17' (score.py:12)"
    assert list(map(shown_message, said(reason))) == said(reason)


def test_a_reason_is_bounded() -> None:
    bye = shown_message(Bye("x" * 90_000))
    assert isinstance(bye, Bye)
    assert len(bye.reason) <= REASON_CHARS
    assert bye.reason.endswith("more characters)")


def test_stacks_keep_their_lines() -> None:
    assert shown_message(Stacks("a", "File x\n  \x1b\n")) == Stacks("a", "File x\n  \\x1b\n")


@pytest.mark.parametrize("message", [Offer(3), Beat()])
def test_a_message_without_such_texts_is_passed_on(message: ToBroker) -> None:
    assert shown_message(message) is message
