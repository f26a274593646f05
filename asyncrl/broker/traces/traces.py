"""
Traces of a broker: the shell around `GroupLives`, which has a clock and hands spans over as they end.

It is told the scheduler's output after a replay only, so nothing is traced twice.
"""

import time
from collections.abc import Callable, Sequence

from asyncrl.broker.ledger.records import AnyRecord
from asyncrl.broker.outbox import Outgoing
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.traces.group_lives import GroupLives
from asyncrl.broker.traces.ids import TraceIds
from asyncrl.observe.traces.span import SendSpans, Span


def unix_clock() -> Callable[[], float]:
    """Clock of Unix time that never goes back while this process lives: spans must not end before they start."""
    offset_s = time.time() - time.monotonic()
    return lambda: offset_s + time.monotonic()


class Traces:
    """Spans of the groups that ``scheduler``, after its replay, has open or opens from now on."""

    def __init__(
        self, scheduler: Scheduler, ids: TraceIds, send: SendSpans, clock: Callable[[], float] | None = None
    ) -> None:
        self._send = send
        self._clock = clock or unix_clock()
        untaken = (group.group_id for group in scheduler.training.batches)
        self._lives = GroupLives(ids, self._clock(), untaken, scheduler.window.consumed)

    def observe(self, outbox: Sequence[Outgoing], records: Sequence[AnyRecord]) -> None:
        if outbox or records:
            self._hand_over(self._lives.observe(outbox, records, self._clock()))

    def stepped(self, step: int) -> None:
        self._hand_over(self._lives.stepped(step, self._clock()))

    def stop(self) -> None:
        self._hand_over(self._lives.stop(self._clock()))

    def _hand_over(self, spans: list[Span]) -> None:
        if spans:
            self._send(spans)
