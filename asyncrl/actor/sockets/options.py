"""Options of every ZeroMQ socket, set before bind or connect, because ZeroMQ ignores some of them afterwards."""

import zmq

VANISHED_MS = 15_000
"""Time without an answer of the other machine's kernel after which a TCP connection is made again."""


def new_socket(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, max_frame_bytes: int) -> "zmq.Socket[bytes]":
    """A socket of this kind, which refuses larger frames: ZeroMQ closes a connection before reading one."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 1000)
    socket.setsockopt(zmq.RCVHWM, 1000)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    # The kernel looks for peers that vanished. ZeroMQ's own heartbeat aborts the process when it is due on a broken
    # connection of which frames wait to be read (assertion in stream_engine_base.cpp of libzmq 4.3.5).
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 2)
    socket.setsockopt(zmq.TCP_MAXRT, VANISHED_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.setsockopt(zmq.BACKLOG, 4096)
    return socket
