"""
One role as an operating-system process: event loop, signals, logging, umask, exit code. No other module changes these.

SIGTERM, SIGINT or SIGHUP: the role leaves the run, a rollout after it has stored its unfinished trajectories, and the
process exits with the code of `ToldToLeave` if the run goes on. A second signal: exit at once, with the same code,
unless the parent has died, of which the kernel tells by any number of signals. Who started the process does not start
it again after it has stopped it itself, and does whoever else sent the signal. The service manager that started it, if
any, is kept informed.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, MutableMapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, TextIO, cast

import structlog
import uvloop

from asyncrl import failpoints
from asyncrl.errors import AsyncrlError, RunInterrupted, ToldToLeave
from asyncrl.files.access import group_reads, restrict_umask
from asyncrl.foreign_text import shown_lines, shown_values
from asyncrl.log import about
from asyncrl.messages.session import ORPHANED
from asyncrl.runtime.metrics_server import MetricsOptions, metrics_served
from asyncrl.runtime.service_manager import ServiceManager, report_to, show_stacks_on_abort
from asyncrl.workers.child import OURS, dies_with, is_orphaned
from asyncrl.workers.folders import above
from asyncrl.workers.printed import FORMAT_VARIABLE

# ── failpoints ────────────────────────────────────────────────────────────────────────────────
# Places in the roles where a test can kill a process; see `asyncrl.failpoints`.

PLACES = (
    "rollout.generated",  # a completion has ended
    "rollout.put",  # ... and was sent to the spool
    "rollout.transferred",  # new weights have arrived
    "rollout.swapped",  # ... and are live
    "spool.appended",  # payloads were written
    "spool.synced",  # ... and are durable
    "broker.decided",  # messages were handled, and nothing was recorded yet
    "broker.committed",  # the records are durable, and no answer was sent yet
    "broker.step_recorded",  # a step has its metrics, and no samples yet
    "reward.judged",  # a verdict is there, and was not sent yet
    "trainer.batch_came",  # a batch has arrived
    "trainer.trained",  # the step was taken
    "trainer.staged",  # a version is staged
    "trainer.checkpoint_partial",  # a checkpoint lacks its manifest
    "trainer.checkpoint_written",  # ... is complete, and was not announced yet
)
SHARD_PLACES = (
    "shard.loading",  # the group is formed, and no model loaded
    "shard.training",  # a step begins on a further rank of the trainer
    "shard.gathering",  # ... a publish
    "shard.copying",  # ... a checkpoint
)
"""Places in the trainer's further ranks, which only a trainer of several has."""

TURN_PLACES = (
    "rollout.asleep",  # an engine's devices are free, and nobody knows
    "rollout.woken",  # ... are its own again
    "trainer.asleep",  # the same of the trainer
    "trainer.woken",
)
"""Places of nodes that share devices."""

EPISODE_PLACES = (
    "rollout.turn_put",  # turns of unfinished episodes were sent to the spool
)
"""Places of runs with an environment."""


# ── process ───────────────────────────────────────────────────────────────────────────────────

LET_GO_S = 10.0
"""Time for a library to let go of a thread, such as one in an aborted collective."""


class StopEvent(asyncio.Event):
    """Set once the process is to leave: by the first signal, or by its job, when the broker has told it to."""

    by_signal = False
    """True if the signal came first: nobody took the node away, and it is to come back while its run goes on."""
    is_orphaned = False
    """True if the process that started this one has died, or supervisord above that: nobody asked for the signal."""


def why_told(stopping: asyncio.Event) -> str:
    """Reason of a node that leaves because ``stopping`` is set, for the events of its run."""
    is_orphaned = isinstance(stopping, StopEvent) and stopping.is_orphaned
    return ORPHANED if is_orphaned else "told to stop"


Job = Callable[[StopEvent], Coroutine[Any, Any, None]]
LogFormat = Literal["auto", "json", "text"]
"""``auto``: JSON, or coloured text if standard error is a terminal."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that tell a process to leave; SIGHUP unless it was ignored before, as ``nohup`` does."""

SUPERVISED = "SUPERVISOR_ENABLED"
"""Environment variable that supervisord gives to the processes that it starts."""
SUPERVISORD = "ASYNCRL_SUPERVISORD"
"""Environment variable with the pid of supervisord, which a service gives to the nodes that it starts."""

MAX_LOG_CHARS = 4096
"""Length of a text in a field of an event."""
TRACES = frozenset(("exception", "stack"))
"""Fields of structlog with several lines."""

SWITCH_INTERVAL_S = 0.0005
"""Maximum time that a thread keeps the GIL from the event loop. Python's default, 5 ms, delays each message to a busy
trainer by up to 5 ms, several times per step; the shorter interval costs no measurable throughput."""


def run_process(
    job: Job,
    *,
    name: str,
    role: str = "",
    metrics: MetricsOptions | None = None,
    log_format: LogFormat = "auto",
    run_dir: Path | None = None,
) -> int:
    """
    Run ``job`` to its end.

    Args:
        job: Called with an event that is set by the first of `SIGNALS`.
        name: Node name, in every log line and with every metric.
        role: What the process does; likewise.
        metrics: Where to serve metrics and health; None serves none.
        run_dir: Run directory of this machine, if it is known: what the process writes has the access of it. Without
            one, what it writes is its user's alone.

    Returns:
        The exit code: 0, also if somebody has ended the run, or that of the `AsyncrlError`, whose message is printed to
        standard error. Any other exception is a bug: its traceback is printed, and the exit code is that of
        `AsyncrlError`.
    """
    os.environ[FORMAT_VARIABLE] = log_format = _resolved(log_format)  # for workers, which print in the same form
    restrict_umask(group_reads=run_dir is not None and group_reads(run_dir))
    configure_logging(name, role, log_format)
    show_stacks_on_abort()
    if plan := os.environ.get(failpoints.VARIABLE):
        failpoints.arm(plan, PLACES + SHARD_PLACES + TURN_PLACES + EPISODE_PLACES)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    leave_with_supervisord()
    try:
        manager = ServiceManager.from_environment(os.environ, os.getpid())
        uvloop.run(_as_service(job, manager, metrics, {"role": role, "node": name}))
    except ToldToLeave as end:
        structlog.get_logger().info("process.told_to_leave", cause=str(end))
        _say(end)
        return end.exit_code
    except RunInterrupted as end:
        structlog.get_logger().info("run.interrupted", cause=str(end))
        _say(end)
        return 0  # Somebody asked for it: the run is over at every role, and no service manager starts it again.
    except AsyncrlError as error:
        structlog.get_logger().error("node.failed", cause=str(error))
        _say(error)
        return error.exit_code
    except Exception:  # noqa: BLE001  its own exit code tells a bug, which is restarted, from a failed run
        _LossyStream(sys.stderr).write(shown_lines(traceback.format_exc()))
        return AsyncrlError.exit_code
    return 0


def leave_with_supervisord() -> None:
    """
    Have the kernel tell this process to leave when the supervisord that started it dies, however that happens.

    An orphan would keep its port, its device and its run from the service that the next supervisord starts, and be
    reached by no `supervisorctl`. systemd ends what is left of a service itself.
    """
    if SUPERVISED in os.environ and (leaves := dies_with(os.getppid())):
        os.environ.setdefault(SUPERVISORD, str(os.getppid()))
        leaves()


def has_lost_supervisord() -> bool:
    """True if the supervisord has died that started this process, or the service which did."""
    supervisord = os.environ.get(SUPERVISORD)
    return supervisord is not None and int(supervisord) not in above(os.getpid())


def _say(error: AsyncrlError) -> None:
    """Name the cause of the end on standard error, as `asyncrl.workers.child.why` finds it."""
    _LossyStream(sys.stderr).write(f"{OURS}{shown_lines(str(error))}\n")


async def _as_service(
    job: Job, manager: ServiceManager, metrics: MetricsOptions | None, labels: dict[str, str]
) -> None:
    report_to(manager)
    reports = asyncio.create_task(manager.keep_informed(), name="service manager")
    manager.report()  # at once: a job may block the loop before its first await
    try:
        async with AsyncExitStack() as stack:
            if metrics:
                await stack.enter_async_context(metrics_served(metrics, labels, manager))
            await job(_told_by_signals(manager))
            manager.done()
    finally:
        reports.cancel()
        manager.stopping("ending")


def _told_by_signals(manager: ServiceManager) -> StopEvent:
    """An event that the first signal sets; the second one ends this process, unless its parent has died."""
    stopping, parent = StopEvent(), os.getppid()
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        has_no_parent = is_orphaned(parent)
        if signals > 1:
            if has_no_parent:  # The kernel's, which hurries nobody.
                return
            os._exit(ToldToLeave.exit_code)
        stopping.by_signal = not stopping.is_set()
        stopping.is_orphaned = has_no_parent or has_lost_supervisord()
        stopping.set()
        manager.stopping(f"{why_told(stopping)}: leaving the run")

    handle(asyncio.get_running_loop(), on_signal)
    return stopping


def handle(
    loop: asyncio.AbstractEventLoop, on_signal: Callable[[], object], on_hangup: Callable[[], object] | None = None
) -> None:
    """
    Call ``on_signal`` for each of `SIGNALS`, or ``on_hangup`` for SIGHUP if it is given.

    A hangup after another signal is none of its own: of one closed terminal the shell and the kernel send one each.
    """
    is_told = False

    def told() -> None:
        nonlocal is_told
        is_told = True
        on_signal()

    def hung_up() -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            (on_hangup or on_signal)()

    for number in SIGNALS:
        if number != signal.SIGHUP:
            loop.add_signal_handler(number, told)
        elif signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, hung_up)


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


def exit_unless_cancelled(error: AsyncrlError) -> threading.Timer:
    """
    Start a timer that ends this process with ``error`` after `LET_GO_S`. Cancel it once all threads have left.

    Nobody can end a thread in a collective of a device, or in a kernel that hangs, nor the loop that waits for it.
    """

    def leave() -> None:
        _say(error)
        sys.stderr.flush()
        os._exit(error.exit_code)

    timer = threading.Timer(LET_GO_S, leave)
    timer.daemon = True
    timer.start()
    return timer


def configure_logging(name: str, role: str = "", log_format: LogFormat = "auto") -> None:
    """Log to standard error, with the node's name, and its ``role`` if it has one, in every line."""
    is_terminal = sys.stderr.isatty()
    as_text = _resolved(log_format) == "text"
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            _made_fit,
            structlog.dev.ConsoleRenderer(colors=is_terminal) if as_text else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _LossyStream(sys.stderr))),
    )
    about(node=name, **({"role": role} if role else {}))


def _made_fit(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Processor of structlog: the same event, with nothing in its texts that a terminal would obey."""
    for key in TRACES & fields.keys():
        fields[key] = shown_lines(str(fields[key]))
    return {key: value if key in TRACES else shown_values(value, MAX_LOG_CHARS) for key, value in fields.items()}


def _resolved(log_format: LogFormat) -> LogFormat:
    if log_format == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return log_format
