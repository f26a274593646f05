import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from typing import BinaryIO

import pytest

from asyncrl.node.machine.cluster.probe_messages import Listen, Send, Sent
from asyncrl.node.machine.cluster.transfer import listen, send

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
