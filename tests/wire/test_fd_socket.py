"""`FdSocket`: received messages never block other tasks, and sending never loses a wakeup."""

import asyncio
from collections.abc import Iterator

import pytest
import zmq

from asyncrl.wire import sockets
from asyncrl.wire.sockets import FdSocket

DEADLINE_S = 30.0
Pair = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two connected sockets without high-water marks; the first is for the loop."""
    context = zmq.Context()
    ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    for socket in (ours, theirs):
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
    port = ours.bind_to_random_port("tcp://127.0.0.1")
    theirs.connect(f"tcp://127.0.0.1:{port}")
    theirs.send(b"connected")
    ours.recv()
    yield ours, theirs
    for socket in (ours, theirs):
        socket.close()
    context.term()


@pytest.fixture(autouse=True)
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable ticks, which would hide a lost wakeup."""
    monkeypatch.setattr(sockets, "TICK_S", 3600.0)


def iterations_of_a_flood(pair: Pair, num: int) -> int:
    """Number of loop iterations that received ``num`` messages, while another task ran in every iteration."""
    ours, theirs = pair
    for _ in range(num):
        theirs.send(b"flood")

    async def scene() -> int:
        iteration = 0
        received: list[int] = []
        done = asyncio.Event()

        def on_message(frames: list[zmq.Frame]) -> None:
            received.append(iteration)
            if len(received) == num:
                done.set()

        async def ticker() -> None:
            nonlocal iteration
            while True:
                iteration += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(ticker())
        socket = FdSocket(ours, on_message, lambda: None)
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
        ticking.cancel()
        socket.close()
        return len(set(received))

    return asyncio.run(scene())


def test_other_tasks_run_during_a_flood_once_the_budget_is_spent(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "DRAIN_S", -1.0)  # One message spends the budget.
    # Two messages share an iteration only if the callbacks of the descriptor and of the budget both run in it.
    assert iterations_of_a_flood(pair, 2000) >= 1000


def test_within_the_budget_many_messages_share_an_iteration(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "DRAIN_S", 3600.0)
    assert iterations_of_a_flood(pair, 2000) < 1000


def test_sending_never_loses_the_wakeup_of_a_received_message(pair: Pair) -> None:
    ours, theirs = pair

    async def scene() -> None:
        answers: asyncio.Queue[bytes] = asyncio.Queue()

        def answer(frames: list[zmq.Frame]) -> None:
            echo.send([frames[0].bytes])

        echo = FdSocket(theirs, answer, lambda: None)
        asking = FdSocket(ours, lambda frames: answers.put_nowait(frames[0].bytes), lambda: None)
        async with asyncio.timeout(DEADLINE_S):
            for number in range(1000):
                # Several sends in one iteration: each may consume the edge-triggered event of an answer.
                for part in range(number % 4 + 1):
                    assert asking.send([b"%d.%d" % (number, part)])
                for part in range(number % 4 + 1):
                    assert await answers.get() == b"%d.%d" % (number, part)
        asking.close()
        echo.close()

    asyncio.run(scene())


def test_a_paused_socket_receives_nothing_until_it_is_resumed(pair: Pair) -> None:
    ours, theirs = pair

    async def scene() -> None:
        heard: asyncio.Queue[bytes] = asyncio.Queue()

        def one_then_pause(frames: list[zmq.Frame]) -> None:
            heard.put_nowait(frames[0].bytes)
            socket.pause()

        socket = FdSocket(ours, one_then_pause, lambda: None)
        for number in range(50):
            theirs.send(b"%d" % number)
        async with asyncio.timeout(DEADLINE_S):
            for number in range(50):
                assert await heard.get() == b"%d" % number
                for _ in range(5):
                    await asyncio.sleep(0)
                assert heard.empty()
                socket.resume()
        socket.close()

    asyncio.run(scene())


def test_send_returns_false_if_zeromq_refuses_the_message() -> None:
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.SNDHWM, 3)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect("tcp://127.0.0.1:9")
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)

    async def scene() -> None:
        socket, unrouted = (FdSocket(kind, lambda frames: None, lambda: None) for kind in (dealer, router))
        assert [socket.send([b"x"]) for _ in range(5)] == [True, True, True, False, False]
        assert not unrouted.send([b"nobody", b"x"])
        socket.close()
        unrouted.close()
        assert not socket.send([b"x"])
        socket.close()

    asyncio.run(scene())
    context.term()


def test_ticks_continue_without_messages(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "TICK_S", 0.0)

    async def scene() -> None:
        ticks = 0
        enough = asyncio.Event()

        def on_tick() -> None:
            nonlocal ticks
            ticks += 1
            if ticks == 3:
                enough.set()

        socket = FdSocket(pair[0], lambda frames: None, on_tick)
        async with asyncio.timeout(DEADLINE_S):
            await enough.wait()
        socket.close()

    asyncio.run(scene())
