"""The states of children are those that they report themselves."""

import asyncio
import os
import socket

from asyncrl.node.process.child_states import ChildStates
from asyncrl.node.process.service_manager import ServiceManager

PID = os.getpid()


async def after(states: ChildStates, send: object, changed: asyncio.Event) -> bool:
    """Whether this process is ready after ``send``."""
    changed.clear()
    assert callable(send)
    send()
    async with asyncio.timeout(30):
        await changed.wait()
    return states.is_ready(PID)


def test_a_child_is_ready_while_it_says_so() -> None:
    async def scene() -> list[bool]:
        states, changed = ChildStates(), asyncio.Event()
        child = ServiceManager.from_environment(dict(states.environment()), PID)
        with states.received(changed.set):
            return [
                states.is_ready(PID),
                await after(states, lambda: child.waiting("loading"), changed),
                await after(states, lambda: child.ready(lambda: "v1"), changed),
                await after(states, lambda: child.waiting("waiting for the broker"), changed),
                await after(states, lambda: child.ready(lambda: "v1"), changed),
                states.is_ready(None),
                await after(states, lambda: child.stopping("ending"), changed),
            ]

    assert asyncio.run(scene()) == [False, False, True, False, True, False, False]


def test_what_is_no_report_is_passed_over() -> None:
    async def scene() -> bool:
        states, changed = ChildStates(), asyncio.Event()
        (address,) = states.environment().values()
        child = ServiceManager(address)

        def send() -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                for text in (b"", b"\xff", b"STATUS=v1", b"STATE=ready"):
                    out.sendto(text, "\0" + address[1:])
            child.ready(lambda: "v1")

        with states.received(changed.set):
            return await after(states, send, changed)

    assert asyncio.run(scene())
