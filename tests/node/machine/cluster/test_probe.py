import os
import socket
import subprocess
import sys
from io import BytesIO

import msgspec
import pytest

from asyncrl.node.machine.cluster.probe import answer
from asyncrl.node.machine.cluster.probe_messages import Answer, Facts, Listen, Listening, Look, Question, Send, Unable


def answered(line: bytes) -> Answer:
    answers = BytesIO()
    read_end, write_end = os.pipe()
    os.write(write_end, line)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as questions:
        answer(questions, answers)
    found: Answer = msgspec.json.decode(answers.getvalue(), type=Answer)
    return found


def asked(question: Question) -> Answer:
    return answered(msgspec.json.encode(question) + b"\n")


def test_facts_are_one_line_of_json() -> None:
    assert isinstance(asked(Look(broker_host="127.0.0.1", broker_port=1)), Facts)


def test_an_error_is_an_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        taken = asked(Listen(host="127.0.0.1", port=port, token="t", listen_s=1.0))
    assert taken == Unable(reason="Address already in use", address_in_use=True)
    assert asked(Send(host="127.0.0.1", port=port, token="t", send_s=1.0)) == Unable(reason="Connection refused")


@pytest.mark.parametrize("line", [b"", b"\n", b'{"type": "Reboot"}\n', b'{"type": "Send"}\n'])
def test_a_question_of_another_version_is_an_answer_too(line: bytes) -> None:
    found = answered(line)
    assert isinstance(found, Unable)
    assert "does not understand the question" in found.reason


def test_a_listener_ends_when_its_input_ends() -> None:
    """Otherwise it would hold the broker's port after the doctor was killed."""
    command = [sys.executable, "-m", "asyncrl", "doctor", "--probe"]
    question = msgspec.json.encode(Listen(host="127.0.0.1", token="t", listen_s=100.0))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(question + b"\n")
        process.stdin.flush()
        assert isinstance(msgspec.json.decode(process.stdout.readline(), type=Answer), Listening)
        process.stdin.close()
        assert process.wait(30) == 0
