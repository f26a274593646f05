"""
One role as an operating-system process: event loop, signals, logging, exit code. No other module changes these.

SIGTERM or SIGINT: the role leaves the run, a rollout after it has stored its unfinished trajectories, and the process
exits with 0. A second signal: exit at once.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TextIO, cast

import structlog
import uvloop

from asyncrl.actor import failpoints
from asyncrl.errors import AsyncrlError
from asyncrl.node.failpoints import PLACES

Job = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
SECOND_SIGNAL_EXIT = 143

SWITCH_INTERVAL_S = 0.0005
"""Maximum time that a thread keeps the GIL from the event loop. Python's default, 5 ms, delays each message to a busy
trainer by up to 5 ms, several times per step; the shorter interval costs no measurable throughput."""


def run_process(job: Job, *, name: str) -> int:
    """
    Run ``job`` to its end.

    Args:
        job: Called with an event that is set by the first SIGTERM or SIGINT.
        name: Node name, in every log line.

    Returns:
        The exit code: 0, or that of the `AsyncrlError`, whose message is printed to standard error.
    """
    configure_logging(name)
    if plan := os.environ.get(failpoints.VARIABLE):
        failpoints.arm(plan, PLACES)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        uvloop.run(_with_signals(job))
    except AsyncrlError as error:
        structlog.get_logger().error("node.failed", cause=str(error))
        _LossyStream(sys.stderr).write(f"asyncrl: {error}\n")
        return error.exit_code
    return 0


async def _with_signals(job: Job) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(SECOND_SIGNAL_EXIT)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await job(stopping)


class _LossyStream:
    """A text stream that drops output on errors such as a full disk, instead of failing the process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def configure_logging(name: str) -> None:
    """Log JSON lines to standard error, or coloured text if it is a terminal."""
    is_terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _LossyStream(sys.stderr))),
    )
    structlog.contextvars.bind_contextvars(node=name)
