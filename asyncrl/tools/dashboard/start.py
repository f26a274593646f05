"""`asyncrl dashboard`: serves the dashboard of some runs until it is interrupted."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from asyncrl.runtime.process import configure_logging
from asyncrl.terminal import echo
from asyncrl.tools.dashboard.app import serve

TOKEN = "ASYNCRL_DASHBOARD_TOKEN"
"""Environment variable of the token: other users can read the arguments of a process."""


def show(runs: Sequence[Path], host: str, port: int | None) -> None:
    """Print the address, and serve until SIGINT or SIGTERM. Raises as `serve`."""
    configure_logging("dashboard")
    asyncio.run(_show(runs, host, port))


async def _show(runs: Sequence[Path], host: str, port: int | None) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with serve(runs, host=host, port=port, token=os.environ.get(TOKEN, "")) as url:
        echo(url)
        await stopping.wait()
