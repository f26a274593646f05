import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from asyncrl.weights.groups.connections import shut_down


class Pair:
    """A listener of one rank, a connection to it, and the announcement of its address."""

    def __init__(self, stack: ExitStack, family: socket.AddressFamily, host: str) -> None:
        self.listener = stack.enter_context(socket.socket(family))
        self.listener.bind((host, 0))
        self.listener.listen()
        self.near = stack.enter_context(socket.create_connection(self.listener.getsockname()[:2]))
        self.far = stack.enter_context(self.listener.accept()[0])
        port = self.listener.getsockname()[1].to_bytes(2, "big")
        between = b"" if family == socket.AF_INET else bytes(4)
        self.announced = b"before" + port + between + socket.inet_pton(family, host) + b"after"

    @property
    def is_open(self) -> bool:
        self.near.setblocking(False)
        try:
            return self.near.recv(1) != b""
        except BlockingIOError:
            return True


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"])
def pairs(request: pytest.FixtureRequest) -> Iterator[list[Pair]]:
    with ExitStack() as stack:
        try:
            yield [Pair(stack, *request.param) for _ in range(2)]
        except OSError:
            pytest.skip("this machine does not have the address family")


def test_only_connections_of_the_group_are_shut_down(pairs: list[Pair]) -> None:
    ours, other = pairs
    assert shut_down([b"gloo", ours.announced]) == 2, "both ends are in this process"
    assert not ours.is_open
    assert other.is_open


def test_a_listener_stays_open(pairs: list[Pair]) -> None:
    ours, _ = pairs
    shut_down([ours.announced])
    with socket.create_connection(ours.listener.getsockname()[:2]):
        ours.listener.accept()[0].close()


def test_nothing_is_shut_down_twice_or_without_an_address(pairs: list[Pair]) -> None:
    ours, other = pairs
    assert shut_down([]) == 0
    shut_down([ours.announced])
    assert shut_down([ours.announced]) == 0
    assert other.is_open
