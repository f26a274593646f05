"""Log of OpenTelemetry as events of ours: each kind once a minute, however long the collector is away."""

import contextvars
import logging
import time
from collections.abc import Callable

from asyncrl.actor.allowance import Allowance
from asyncrl.log import get_logger

log = get_logger()

EVERY_S = 60.0


class Reports(logging.Handler):
    """
    Takes what a logger is told, from any thread, until it is closed. Other handlers do not see it meanwhile.

    The events have the fields of the task that made this object, such as the name of the node.
    """

    def __init__(self, source: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._source = source
        self._propagated = source.propagate
        self._clock = clock
        self._allowance = Allowance(1 / EVERY_S, 1)
        self._task = contextvars.copy_context()
        source.propagate = False
        source.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        # By the text without its values: what is told is one of a few sentences.
        if self._allowance.take(str(record.msg), self._clock()):
            error = f": {record.exc_info[1]}" if record.exc_info else ""
            self._task.run(log.warning, "traces.trouble", cause=f"{record.getMessage()}{error}")

    def close(self) -> None:
        self._source.removeHandler(self)
        self._source.propagate = self._propagated
        super().close()
