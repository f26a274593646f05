"""What a child says reaches standard error as it is, and its end is kept."""

import asyncio
import os

import pytest

from asyncrl.actor.relay import Relay


def test_all_is_passed_on_and_the_end_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    async def scene() -> bytes:
        relay = Relay(kept_bytes=4)
        with relay.end() as output:
            output.write(b"one two")
        return relay.tail()

    assert asyncio.run(scene()) == b" two"
    assert capfd.readouterr().err == "one two"


def test_it_is_passed_on_while_nobody_asks(capfd: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        relay = Relay(kept_bytes=4)
        with relay.end() as output:
            os.write(output.fileno(), b"now")
            for _ in range(3):  # turns of the loop: it looks at the pipe, then calls who reads it
                await asyncio.sleep(0)
            assert capfd.readouterr().err == "now"
        assert relay.tail() == b"now"

    asyncio.run(scene())


def test_the_next_life_begins_with_nothing_said() -> None:
    async def scene() -> bytes:
        relay = Relay(kept_bytes=100)
        assert relay.tail() == b""
        for said in (b"first", b"second"):
            with relay.end() as output:
                output.write(said)
        return relay.tail()

    assert asyncio.run(scene()) == b"second"


def test_one_that_outlives_the_child_does_not_hold_up_what_was_said() -> None:
    """A grandchild keeps the pipe open."""

    async def scene() -> bytes:
        relay = Relay(kept_bytes=100)
        with relay.end() as output:
            os.write(output.fileno(), b"last words")
            return relay.tail()

    assert asyncio.run(scene()) == b"last words"
