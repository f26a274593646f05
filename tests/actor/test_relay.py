"""`Relay` copies the output of a child to standard error unchanged and keeps its end."""

import asyncio
import os

import pytest

from asyncrl.actor.relay import Relay


def test_output_is_copied_to_standard_error_and_its_end_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    async def scene() -> bytes:
        relay = Relay(kept_bytes=4)
        with relay.end() as output:
            output.write(b"one two")
        return relay.tail()

    assert asyncio.run(scene()) == b" two"
    assert capfd.readouterr().err == "one two"


def test_output_is_copied_without_a_call_of_tail(capfd: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        relay = Relay(kept_bytes=4)
        with relay.end() as output:
            os.write(output.fileno(), b"now")
            for _ in range(3):  # The loop polls the pipe in one iteration and calls its reader in a later one.
                await asyncio.sleep(0)
            assert capfd.readouterr().err == "now"
        assert relay.tail() == b"now"

    asyncio.run(scene())


def test_a_restarted_child_begins_with_an_empty_tail() -> None:
    async def scene() -> bytes:
        relay = Relay(kept_bytes=100)
        assert relay.tail() == b""
        for text in (b"first", b"second"):
            with relay.end() as output:
                output.write(text)
        return relay.tail()

    assert asyncio.run(scene()) == b"second"


def test_a_grandchild_that_keeps_the_pipe_open_does_not_block_tail() -> None:
    async def scene() -> bytes:
        relay = Relay(kept_bytes=100)
        with relay.end() as output:
            os.write(output.fileno(), b"last words")
            return relay.tail()

    assert asyncio.run(scene()) == b"last words"
