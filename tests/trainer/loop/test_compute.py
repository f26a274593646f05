"""The event loop goes on while a call of the compute thread ends."""

import asyncio
import threading

import pytest
import torch

from asyncrl.trainer.loop.compute import compute_thread

CPU = torch.device("cpu")


def test_what_the_event_loop_does_can_end_a_call_that_is_waited_for() -> None:
    """A collective, say: an actor that fails waits for its thread, which waits for the abort of its group."""

    async def main() -> bool:
        is_aborted = threading.Event()
        loop = asyncio.get_running_loop()
        async with compute_thread(CPU) as thread:
            call = loop.run_in_executor(thread, is_aborted.wait)
            loop.call_soon(loop.call_soon, is_aborted.set)
        return call.done()

    assert asyncio.run(asyncio.wait_for(main(), 30.0))


def test_a_cancelled_wait_still_leaves_no_thread_behind() -> None:
    async def main() -> None:
        is_over = threading.Event()
        loop = asyncio.get_running_loop()

        async def wait() -> None:
            async with compute_thread(CPU) as thread:
                loop.run_in_executor(thread, is_over.wait)

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        loop.call_soon(loop.call_soon, is_over.set)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert not any(thread.name.startswith("trainer-compute") for thread in threading.enumerate())
