from collections.abc import Iterator

import pytest
import zmq


@pytest.fixture
def stranger() -> Iterator["zmq.Socket[bytes]"]:
    """A ZeroMQ peer that does not speak asyncrl's protocol."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTING_ID, b"stranger.1")
    socket.setsockopt(zmq.RCVHWM, 1)
    yield socket
    context.destroy(linger=0)
