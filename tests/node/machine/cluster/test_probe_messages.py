import msgspec
import pytest

from asyncrl.node.machine.cluster.probe_messages import Answer, Listen, Look, Question, Send, Sent, Unable


@pytest.mark.parametrize(
    "question",
    [
        Look(broker_host="::1", broker_port=1, model="/m"),
        Listen(host="10.0.0.1", token="t", listen_s=1.0),
        Send(host="h", port=1, token="t", send_s=2.0),
    ],
)
def test_a_question_is_one_line(question: Question) -> None:
    line = msgspec.json.encode(question)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=Question) == question


def test_answers_of_a_later_version_may_have_more_fields() -> None:
    line = b'{"type": "Unable", "reason": "no route", "hint": "none"}'
    assert msgspec.json.decode(line, type=Answer) == Unable(reason="no route")


def test_a_bandwidth_is_in_bits() -> None:
    assert Sent(num_bytes=1000, seconds=2.0, round_trip_s=0.1).bits_per_s == 4000
