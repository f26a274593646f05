"""
A short TCP transfer between two machines: proves that one can connect to the other, and measures the connection.

    sender: token ─▶ listener: acknowledgement ─▶ round trips of one byte ─▶ zeros for some seconds ─▶ bytes received

Every wait has a time limit. A connection without the token is closed, and counts for nothing.
"""

import hmac
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from asyncrl.node.machine.cluster.probe_messages import Listen, Send, Sent

STEP_S = 10.0
"""Time limit of each wait for the peer."""
STRANGER_S = 1.0
"""Time limit of a connection that has not shown the token."""
ROUND_TRIPS = 20
BLOCK = bytes(256 << 10)
ACKNOWLEDGED = b"+"
COUNT_BYTES = 8


def listen(request: Listen, ready: Callable[[int], None], until: int) -> None:
    """
    Accept connections until one transfer is complete, the time is over, or ``until`` is readable or at its end.

    Args:
        ready: Called with the port once connections are accepted.
        until: File descriptor.

    Raises:
        OSError: The address cannot be listened on.
    """
    family = socket.getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)[0][0]
    with socket.create_server((request.host, request.port), family=family) as server:
        ready(server.getsockname()[1])
        deadline_s = time.monotonic() + request.listen_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            readable, _, _ = select.select([server.fileno(), until], [], [], left_s)
            if until in readable:
                return
            if readable and _accepted(server, request.token.encode()):
                return


def send(request: Send) -> Sent:
    """Send zeros to a listener. Raises OSError if it cannot be reached, refuses the token, or stops answering."""
    token = request.token.encode()
    with socket.create_connection((request.host, request.port), timeout=STEP_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(token)
        if _exactly(connection, len(ACKNOWLEDGED)) != ACKNOWLEDGED:
            raise ConnectionRefusedError("the listener does not know the token")
        round_trip_s = min(_round_trip_s(connection) for _ in range(ROUND_TRIPS))
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + request.send_s:
            connection.sendall(BLOCK)
        connection.shutdown(socket.SHUT_WR)
        num_bytes = int.from_bytes(_exactly(connection, COUNT_BYTES), "big")
        return Sent(num_bytes=num_bytes, seconds=time.monotonic() - begin_s, round_trip_s=round_trip_s)


def _accepted(server: socket.socket, token: bytes) -> bool:
    """True if the next connection was a complete transfer."""
    connection, _ = server.accept()
    with connection, suppress(OSError):  # The sender reports what failed; a stranger is not waited for.
        connection.settimeout(STRANGER_S)
        if not hmac.compare_digest(_exactly(connection, len(token)), token):
            return False
        connection.settimeout(STEP_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(ACKNOWLEDGED)
        for _ in range(ROUND_TRIPS):
            connection.sendall(_exactly(connection, 1))
        connection.sendall(_count(connection).to_bytes(COUNT_BYTES, "big"))
        return True
    return False


def _count(connection: socket.socket) -> int:
    """Bytes until the sender has ended."""
    buffer, total = bytearray(1 << 20), 0
    while received := connection.recv_into(buffer):
        total += received
    return total


def _round_trip_s(connection: socket.socket) -> float:
    begin_s = time.monotonic()
    connection.sendall(b".")
    _exactly(connection, 1)
    return time.monotonic() - begin_s


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    """The next bytes; raises ConnectionError if the peer ends before them."""
    found = b""
    while len(found) < num_bytes:
        if not (part := connection.recv(num_bytes - len(found))):
            raise ConnectionError("the other end closed the connection")
        found += part
    return found
