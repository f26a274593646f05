"""
Events for people, from every role: ``log.warning("broker.awaited", address=address, waited_s=5.0)``.

    a process of asyncrl, or a host that configured structlog ─▶ structlog, as it is configured
    any other host                                            ─▶ the standard logger "asyncrl", as a library's output

Nothing is printed unless the host configures logging: structlog would print to standard output, `logging` to standard
error.
"""

import logging
from typing import Any

import structlog

_standard = logging.getLogger("asyncrl")
_standard.addHandler(logging.NullHandler())
_structured: Any = structlog.get_logger()


class Log:
    """A logger of events with fields; stateless."""

    def debug(self, event: str, /, **fields: Any) -> None:
        _write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        _write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        _write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        _write(logging.ERROR, event, fields)


def about(**fields: Any) -> None:
    """Give all further events of this task, and of the tasks that it starts, these fields, if structlog writes them."""
    structlog.contextvars.bind_contextvars(**fields)


def get_logger() -> Log:
    return Log()


def _write(level: int, event: str, fields: dict[str, Any]) -> None:
    if structlog.is_configured():
        getattr(_structured, logging.getLevelName(level).lower())(event, **fields)
    elif _standard.isEnabledFor(level):
        _standard.log(level, " ".join(["%s", *(f"{key}=%r" for key in fields)]), event, *fields.values())
