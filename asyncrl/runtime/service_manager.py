"""
Reports of this process to the service manager that started it, over systemd's notification protocol.

    starting ──ready──▶ running ──stopping──▶ stopping
    EXTEND_TIMEOUT       WATCHDOG              EXTEND_TIMEOUT, once          and STATUS, for `systemctl status`

Every report leaves from the event loop: a process whose loop is blocked falls silent, and the manager kills it. Under
a manager without a watchdog, such as supervisord, the kernel's alarm can take its place (`ALARM_VARIABLE`): each report
sets it anew. Nothing is sent without a manager.

Only `run_process` makes a `ServiceManager` that reports: an actor inside a host says nothing to the host's manager.
"""

import asyncio
import contextlib
import faulthandler
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Literal

from asyncrl.errors import ConfigError

ADDRESS_VARIABLE = "NOTIFY_SOCKET"
"""Environment variable: address of the manager's socket."""
STATE = "X_STATE"
"""Field of every report with the `State`, for a manager that is an asyncrl process; systemd passes over it."""
ALARM_VARIABLE = "ASYNCRL_WATCHDOG_S"
"""Environment variable: seconds that a ready node's event loop may be blocked before SIGALRM ends the process."""
REPORT_S = 10.0
"""Longest time between two reports."""
EXTENSION_S = 120.0
"""Time granted by each report of a process that starts: imports block the loop for a while."""
STOP_MARGIN_S = 30.0
"""Time to leave beyond that of draining."""

Phase = Literal["starting", "running", "stopping"]
State = Literal["starting", "waiting", "ready", "stopping"]


def set_alarm(seconds: float) -> None:
    """Set an alarm in ``seconds``, in place of an earlier one; 0 sets none."""
    # The kernel kills the process, also while a thread holds the interpreter; the stacks are printed first.
    faulthandler.register(signal.SIGALRM, file=sys.__stderr__ or 2, all_threads=True, chain=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)


class ServiceManager:
    """
    The service manager of this process.

    Args:
        address: Path of its socket, or ``@NAME`` in the abstract namespace; empty for none.
        watchdog_s: Time after which it kills a silent process; 0 for never.
        alarm_s: Time until the alarm; 0 for none.
    """

    def __init__(
        self,
        address: str = "",
        *,
        watchdog_s: float = 0.0,
        alarm_s: float = 0.0,
        set_alarm: Callable[[float], None] = set_alarm,
    ) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._alarm_s = alarm_s
        self._set_alarm = set_alarm
        self._phase: Phase = "starting"
        self._work: Literal["starting", "waiting", "ready"] = "starting"
        self._describe: Callable[[], str] = lambda: "starting"
        self._stop_s = 0.0

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str], pid: int) -> "ServiceManager":
        """
        The manager that ``environment`` names. Its variables are removed: a child must not report for this process.

        Raises:
            ConfigError: `ALARM_VARIABLE` is no positive number.
        """
        address = environment.pop(ADDRESS_VARIABLE, "")
        watchdog_us, watched = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        is_watched = watchdog_us.isdecimal() and watched in ("", str(pid))
        alarm_s = environment.pop(ALARM_VARIABLE, "")
        return cls(
            address if address.startswith(("/", "@")) else "",
            watchdog_s=int(watchdog_us) / 1e6 if is_watched else 0.0,
            alarm_s=_positive(alarm_s) if alarm_s else 0.0,
        )

    @property
    def state(self) -> State:
        """The phase for those that watch: ``ready`` while it does its work, ``waiting`` while it waits for others."""
        return "stopping" if self._phase == "stopping" else self._work

    @property
    def status(self) -> str:
        """Work or wait of the process, in one line."""
        return " ".join(self._describe().split())

    @property
    def owns_process(self) -> bool:
        """True in a process that `run_process` started, which may end it; False inside a host."""
        return self is not _NONE

    # ── changes ─────────────────────────────────────────────────────────────────────────────

    def waiting(self, status: str) -> None:
        """Report what the process waits for, such as the broker; for the manager it is as ready as before."""
        self._describe, self._work = lambda: status, "waiting"
        self.report()

    def starting(self, status: str) -> None:
        """Report what the process does before its work, such as loading; once it has been ready, its work waits."""
        self._describe, self._work = lambda: status, "starting" if self._phase == "starting" else "waiting"
        self.report()

    def ready(self, describe: Callable[[], str], *, stop_s: float = 0.0) -> None:
        """
        Report that the process does its work.

        Args:
            describe: Returns its status in one line; called for every report.
            stop_s: Time that it needs to drain.
        """
        self._describe, self._stop_s, self._work = describe, stop_s, "ready"
        if self._phase == "starting":
            self._phase = "running"
        self.report()

    def stopping(self, status: str) -> None:
        """Report that the process is about to end."""
        if self._phase == "stopping":
            return
        self._phase = "stopping"
        self._set_alarm_if_any(0.0)
        self._describe = lambda: status
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={_us(self._stop_s + STOP_MARGIN_S)}", f"STATUS={status}")

    def done(self) -> None:
        """Report that the process has nothing left to do. One that ends before it was ready would count as failed."""
        if self._phase == "starting":
            self.ready(lambda: "nothing left to do")

    # ── reports ─────────────────────────────────────────────────────────────────────────────

    async def keep_informed(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Report at half of the watchdog's time at the latest, until cancelled."""
        times = (REPORT_S, *(seconds / 2 for seconds in (self._watchdog_s, self._alarm_s) if seconds))
        while True:
            self.report()
            await sleep(min(times))

    def report(self) -> None:
        """Send the state in full each time: a report may be lost, and a repeated one does no harm."""
        if not self._address and not self._alarm_s:
            return
        status = f"STATUS={self.status}"
        match self._phase:
            case "starting":
                self._send(f"EXTEND_TIMEOUT_USEC={_us(EXTENSION_S)}", status)
            case "running":
                self._set_alarm_if_any(self._alarm_s)
                self._send("READY=1", *(["WATCHDOG=1"] if self._watchdog_s else []), status)
            case "stopping":
                self._send(status)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A manager that is gone or busy is no reason to stop working; the next report follows soon.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto("\n".join((*lines, f"{STATE}={self.state}")).encode(), self._address)

    def _set_alarm_if_any(self, seconds: float) -> None:
        if self._alarm_s:
            self._set_alarm(seconds)


_NONE = ServiceManager()
_current: ContextVar[ServiceManager] = ContextVar("service_manager", default=_NONE)


def service_manager() -> ServiceManager:
    """The manager of the process that runs this task; one that tells nobody unless `run_process` started it."""
    return _current.get()


def report_to(manager: ServiceManager) -> None:
    """Make ``manager`` the one of this task and of all tasks that it starts."""
    _current.set(manager)


def show_stacks_on_abort() -> None:
    """Print the stack of every thread when the watchdog or the alarm kills the process, and on SIGUSR2."""
    faulthandler.enable(sys.__stderr__ or 2)
    # Not SIGUSR1, which engines send among their own processes.
    faulthandler.register(signal.SIGUSR2, file=sys.__stderr__ or 2, all_threads=True)


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < 1e9:
            return seconds
    raise ConfigError(f"{ALARM_VARIABLE} is {text!r}: expected a positive number of seconds")
