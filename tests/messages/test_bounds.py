import math

import pytest

from asyncrl.messages.bounds import SHOWN_CHARS
from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Failed, Offer, StartedOver
from asyncrl.messages.session import Beat, Bye, ContainerCounts, Hello, ModelUse, Ready, StoreGet, StoreSet
from asyncrl.messages.spool import SpoolAddress
from asyncrl.messages.supervisor import Exited, Stacks
from asyncrl.messages.trainer import Commit, DamagedCheckpoint, Refusal, Resumed, StepFailed, Stepped, Take
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.weights import Live, Publishing, TransferFailed, Transferred, Uploaded

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "message",
    [
        Hello(4, "spool", "s", "1", spool=SpoolAddress("s", "ipc:///s")),
        Hello(3, "rollout", "rollout-0", "1-2"), Beat(0.1, {"idle": 2.0}, 3), Ready("h"), Offer(3), Live(0, 0.1, 0.2),
        Stepped(0, -1, {"loss": NAN}), StoreSet("1", "k", b"x"), StoreGet("1", "k"), Bye("done"), Take(0),
    ],
)  # fmt: skip
def test_a_sound_message_passes(message: Message) -> None:
    assert message.out_of_bounds() == ""


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Hello(3, "rollout", "", "1"), "node is ''"),
        (Hello(3, "rollout", "x" * 10_000, "1"), "node is 'xxxx"),
        (Hello(3, "rollout", "a\nb", "1"), r"node is 'a\nb'"),
        (Hello(3, "rollout", "a", "1", run_id="x" * 100), "run_id is too long"),
        (Hello(3, "trainer", "a", "1", host="a\nb"), r"host is 'a\nb'"),
        (Hello(4, "spool", "a", "1"), "a spool says where it serves, and other roles do not"),
        (Hello(4, "rollout", "a", "1", spool=SpoolAddress("a", "tcp://a:1")), "a spool says where it serves"),
        (Hello(4, "spool", "a", "1", spool=SpoolAddress("b", "tcp://a:1")), "spool is named 'b', expected the name"),
        (Hello(4, "spool", "a", "1", spool=SpoolAddress("a", "")), "address is ''"),
        (Hello(4, "spool", "a", "1", spool=SpoolAddress("a", "tcp://a:1", b"x" * 99)), "key has 99 bytes"),
        (Beat(lag_s=NAN), "lag_s is nan"),
        (Beat(seconds={"sampling": INF}), "sampling is inf"),
        (Beat(seconds={"idle": -1.0}), "idle is -1.0"),
        (Beat(tokens=-5), "tokens is -5"),
        (Beat(decode_steps=NAN), "decode_steps is nan"),
        (Beat(containers=ContainerCounts(warm=-1)), "warm is -1"),
        (Beat(containers=ContainerCounts(leased=1 << 41)), f"leased is {1 << 41}"),
        (Beat(containers=ContainerCounts(oldest_s=NAN)), "oldest_s is nan"),
        (Beat(models={"judge": ModelUse(tokens=-1)}), "tokens is -1"),
        (Beat(models={"judge": ModelUse(seconds=INF)}), "seconds is inf"),
        (Beat(models={"": ModelUse()}), "a name of models is '', expected up to 200 printable characters"),
        (Beat(models={str(n): ModelUse() for n in range(1001)}), "models has 1001 entries"),
        (Ready("h", 0), "ranks is 0"),
        (Ready("h" * 1000), "layout_hash has 1000 characters"),
        (Ready(ids_digest="d" * 1000), "ids_digest has 1000 characters"),
        (Ready(vocab_size=-1), "vocab_size is -1"),
        (Ready(num_sampled=-1), "num_sampled is -1"),
        (Offer(-1), "limit is -1"),
        (Offer(1 << 62), "limit is"),
        (Live(-2, 0.0, 0.0), "policy_version is -2"),
        (Live(1, NAN, 0.0), "pause_s is nan"),
        (Transferred(1, 1, 1.0, -1), "num_bytes is -1"),
        (Uploaded(-1, 1.0, 1), "policy_version is -1"),
        (Uploaded(1, math.inf, 1), "seconds is inf"),
        (Uploaded(1, 1.0, -1), "num_bytes is -1"),
        (Uploaded(1, 1.0, 1, "x" * 200_000), "the reason has 200000 characters"),
        (StepFailed(-1, "e"), "step is -1"),
        (StepFailed(1, "e" * 200_000), "the reason has 200000 characters"),
        (Resumed(-1, "c"), "steps is -1"),
        (Resumed(1, "c" * 200_000), "the reason has 200000 characters"),
        (Resumed(1, "c", [DamagedCheckpoint("c", "x" * 200_000)]), "the reason has 200000 characters"),
        (Resumed(1, "c", [DamagedCheckpoint("c", "x")] * 2000), "there are 2000 damaged checkpoints"),
        (Take(-1), "step is -1"),
        (Commit(-1, "c"), "step is -1"),
        (Publishing(-1, 0), "policy_version is -1"),
        (Stepped(-1, 0, {}), "step is -1"),
        (Stepped(0, -7, {}), "policy_version is -7"),
        (Stepped(0, 0, {str(n): 0.0 for n in range(2000)}), "there are 2000 metrics"),
        (Stepped(0, 0, {"n" * 999: 0.0}), "a metric's name has 999 characters"),
        (StoreSet("1", "k", b"x" * (2 << 20)), "the value has 2097152 bytes"),
        (StoreGet("", "k"), "group is ''"),
        (Bye("x" * 200_000), "the reason has 200000 characters"),
    ],
)
def test_an_impossible_value_is_named(message: Message, problem: str) -> None:
    assert message.out_of_bounds().startswith(problem)


# ── texts ─────────────────────────────────────────────────────────────────────────────────────
# Reasons of nodes are made fit to be shown where they enter, and nothing else of a message changes.

UNIT = Unit(0, 0)


def said(text: str) -> list[Message]:
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
    assert [message.as_shown() for message in said("\x1b[2J\n\u202e")] == said("\\x1b[2J\\n\\u202e")


def test_a_reason_that_is_fit_stays_as_it_is() -> None:
    reason = "ValueError: no number in '17' (score.py:12)"
    assert [message.as_shown() for message in said(reason)] == said(reason)


def test_a_reason_is_bounded() -> None:
    bye = Bye("x" * 90_000).as_shown()
    assert len(bye.reason) <= SHOWN_CHARS
    assert bye.reason.endswith("more characters)")


def test_stacks_keep_their_lines() -> None:
    assert Stacks("a", "File x\n  \x1b\n").as_shown() == Stacks("a", "File x\n  \\x1b\n")


@pytest.mark.parametrize("message", [Offer(3), Beat()])
def test_a_message_without_such_texts_is_passed_on(message: Message) -> None:
    assert message.as_shown() is message
