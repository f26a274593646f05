import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from queue import Queue
from typing import BinaryIO

import msgspec
import pytest

from asyncrl.messages.wire import PROTOCOL
from asyncrl.tools.cluster import probe
from asyncrl.tools.cluster.probe import (
    Answer,
    Facts,
    KeyState,
    Listen,
    Listening,
    Look,
    Question,
    Send,
    Sent,
    Unable,
    answer,
    connection_problem,
    listen,
    look,
    read_key_state,
    read_state,
    send,
    source_address,
)
from asyncrl.wire.keys.key import create_key, new_key


def test_the_facts_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "nvidia0").touch()
    with socket.create_server(("127.0.0.1", 0)) as broker:
        port = broker.getsockname()[1]
        question = Look(broker_host="127.0.0.1", broker_port=port, model=str(tmp_path), dir=str(tmp_path / "later"))
        found = look(question, {}, tmp_path)
    assert (found.broker_problem, found.address, found.interface) == ("", "127.0.0.1", "lo")
    assert found.protocol == PROTOCOL
    assert {"python", "asyncrl", "pyzmq", "torch"} <= found.versions.keys()
    assert found.devices == "cuda 0"
    assert found.free_bytes > 0
    assert found.key is None
    assert found.model_config is not None
    assert found.model_config.digest == hashlib.sha256(b"{}").hexdigest()
    assert not found.lacks_model


def test_an_address_that_no_interface_has_is_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "connection_problem", lambda host, port: "")
    found = look(Look(broker_host="127.0.0.1", broker_port=1, address="203.0.113.9"))
    assert (found.address, found.interface) == ("203.0.113.9", "")


def test_a_directory_of_a_model_that_does_not_exist_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    for model, is_missing in ((tmp_path / "none", True), (tmp_path, False)):
        found = look(Look(broker_host="127.0.0.1", broker_port=1, model=str(model)))
        assert found.model_config is not None
        assert found.model_config.problem == "No such file or directory"
        assert found.lacks_model == is_missing


def test_a_file_has_the_reason_why_it_cannot_be_read(tmp_path: Path) -> None:
    assert read_state(tmp_path / "none").problem == "No such file or directory"
    assert read_state(tmp_path).problem == "Is a directory"


def test_a_port_that_nobody_listens_on_is_a_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connection_problem("127.0.0.1", port) == ""
    assert connection_problem("127.0.0.1", port) == "Connection refused"


def test_a_name_that_does_not_exist_has_no_route() -> None:
    assert source_address("host.invalid") == ""
    assert connection_problem("host.invalid", 1) != ""


# ── test key state ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    create_key(tmp_path / "node.key", new_key("gpu1", ("rollout",), bytes(32)))
    return tmp_path / "node.key"


def test_name_and_roles_are_told_and_the_private_key_is_not(key_file: Path) -> None:
    assert read_key_state(key_file) == KeyState(name="gpu1", roles=["rollout"], broker="0" * 16)


def test_a_file_that_no_node_could_use_is_a_problem(key_file: Path) -> None:
    key_file.chmod(0o640)
    assert f"other users can read the key file {key_file} (mode 0640)" in read_key_state(key_file).problem
    key_file.unlink()
    assert "no such key file" in read_key_state(key_file).problem


def test_roles_that_a_key_is_not_for_are_named() -> None:
    key = KeyState(name="gpu1", roles=["rollout"])
    assert key.others(["broker", "rollout", "trainer"]) == ["trainer"]
    assert KeyState(name="gpu1").others(["trainer"]) == [], "the file does not tell"


# ── test probe ────────────────────────────────────────────────────────────────────────────────


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


# ── test probe messages ───────────────────────────────────────────────────────────────────────


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


# ── test transfer ─────────────────────────────────────────────────────────────────────────────

TOKEN = "0" * 64
PATIENCE_S = 30.0


@contextmanager
def listener(listen_s: float = PATIENCE_S) -> Iterator[tuple[int, threading.Thread, BinaryIO]]:
    """Port of a listener, its thread, and a file: closing it ends the listener."""
    ports: Queue[int] = Queue()
    until, write_end = os.pipe()
    asker = os.fdopen(write_end, "wb")
    request = Listen(host="127.0.0.1", token=TOKEN, listen_s=listen_s)
    thread = threading.Thread(target=listen, args=(request, ports.put, until))
    thread.start()
    try:
        yield ports.get(timeout=PATIENCE_S), thread, asker
    finally:
        asker.close()
        thread.join(PATIENCE_S)
        os.close(until)


def sent(port: int, token: str = TOKEN) -> Sent:
    return send(Send(host="127.0.0.1", port=port, token=token, send_s=0.02))


def test_a_transfer_is_measured_and_ends_the_listener() -> None:
    with listener() as (port, thread, _):
        result = sent(port)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert result.num_bytes >= 256 << 10
    assert result.seconds > 0
    assert result.round_trip_s > 0


def test_a_stranger_is_dropped_and_the_next_sender_served() -> None:
    with listener() as (port, _, _):
        with pytest.raises(OSError, match="closed the connection"):
            sent(port, token="1" * 64)
        with socket.create_connection(("127.0.0.1", port)):
            pass  # connects only, as a check of reachability does
        assert sent(port).num_bytes > 0


def test_a_listener_ends_with_its_asker() -> None:
    with listener() as (_, thread, asker):
        asker.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_listener_that_nobody_calls_ends_after_its_time() -> None:
    with listener(listen_s=0.01) as (_, thread, _):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_port_that_is_taken_is_an_error() -> None:
    with listener() as (port, _, _), pytest.raises(OSError, match="in use"):
        listen(Listen(host="127.0.0.1", port=port, token=TOKEN, listen_s=1.0), lambda port: None, 0)


def test_a_listener_that_has_gone_is_an_error() -> None:
    with listener() as (port, _, _):
        pass
    with pytest.raises(OSError, match="refused"):
        sent(port)
