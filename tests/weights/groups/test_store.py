import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from asyncrl.errors import LinkClosed, TransferError
from asyncrl.messages.codec import Message
from asyncrl.messages.session import StoreGet, StoreSet, StoreValue
from asyncrl.weights.groups.network_interface import Deadline
from asyncrl.weights.groups.store import LinkStore, shut_down
from tests.weights.party import LONG_S, SHORT_S


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


# ── test store ────────────────────────────────────────────────────────────────────────────────


def use(work: Callable[[LinkStore], object], *, answer: bool = True, deadline_s: float = LONG_S) -> list[Message]:
    """Call a store from a thread, with a broker that answers gets; returns the messages to the broker."""
    received: list[Message] = []

    async def main() -> None:
        async def send(message: Message) -> None:
            received.append(message)
            match message:
                case StoreGet(group, key) if answer:
                    values = [m.value for m in received if isinstance(m, StoreSet) and m.key == key]
                    store.deliver(StoreValue(group, key, values[-1]))

        store = LinkStore("7", ["trainer", "rollout-1"], send, asyncio.get_running_loop(), Deadline(deadline_s))
        await asyncio.to_thread(work, store)

    asyncio.run(main())
    return received


def test_sets_and_gets_travel_on_the_link_under_the_groups_name() -> None:
    def work(store: LinkStore) -> None:
        store.set("0/0", b"address")
        store.wait(["0/0"])

        assert store.get("0/0") == b"address"
        assert store.check(["0/0"])
        assert not store.check(["0/0", "0/1"])

    assert use(work) == [StoreSet("7", "0/0", b"address"), StoreGet("7", "0/0")]


def test_a_key_that_is_never_set_names_its_rank() -> None:
    with pytest.raises(TransferError, match=r"rollout-1 \(rank 1\) did not join the rendezvous within 0.3 s"):
        use(lambda store: store.wait(["0/1"]), answer=False, deadline_s=SHORT_S)


def test_a_key_without_a_rank_is_named_itself() -> None:
    with pytest.raises(TransferError, match="key 'unique-id'"):
        use(lambda store: store.get("unique-id"), answer=False, deadline_s=SHORT_S)


def test_an_abandoned_store_raises_at_once_and_for_ever() -> None:
    def work(store: LinkStore) -> None:
        store.abandon("this node is closing")
        for _ in range(2):
            with pytest.raises(TransferError, match="this node is closing"):
                store.get("0/1")

    use(work, answer=False)


def test_a_broken_link_ends_the_wait() -> None:
    async def main() -> None:
        async def send(_: Message) -> None:
            raise LinkClosed("this link was closed")

        store = LinkStore("7", [], send, asyncio.get_running_loop(), Deadline(LONG_S))
        with pytest.raises(TransferError, match="failed during the rendezvous: this link was closed"):
            await asyncio.to_thread(store.get, "0/1")

    asyncio.run(main())


def test_other_methods_of_a_store_are_not_implemented() -> None:
    def work(store: LinkStore) -> None:
        for call in (lambda: store.add("counter", 1), lambda: store.delete_key("a")):
            with pytest.raises(RuntimeError, match="pure virtual"):
                call()

    use(work)
