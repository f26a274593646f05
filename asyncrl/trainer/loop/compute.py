"""
The thread of a trainer's computation.

    event loop ── run_in_executor ─▶ thread, on its device      one call at a time
        └─ beats, messages, the end of collectives              also while the thread ends
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import torch

from asyncrl.weights.groups.device import device_thread


@asynccontextmanager
async def compute_thread(device: torch.device) -> AsyncIterator[ThreadPoolExecutor]:
    """
    A thread whose current device is ``device``, until the block and its last call end.

    Meanwhile the event loop goes on: the thread may be in a collective that only the loop can abort.
    """
    thread = device_thread(device, "trainer-compute")
    try:
        yield thread
    finally:
        try:
            await _until_idle(thread)
        finally:
            thread.shutdown()


async def _until_idle(thread: ThreadPoolExecutor) -> None:
    last, cancelled = asyncio.get_running_loop().run_in_executor(thread, int), None
    while not last.done():
        try:
            await asyncio.wait([last])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        raise cancelled
