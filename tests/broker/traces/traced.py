"""A cluster of fake nodes whose broker is traced, with a clock that moves at each decision."""

from typing import Any

from asyncrl.broker.traces import TraceIds, Traces
from asyncrl.config.config import Config
from asyncrl.messages.trainer import Stepped
from asyncrl.records.spans import TraceSpan
from tests.broker.driver import Cluster, Node


class TracedCluster(Cluster):
    """``spans`` has those of all lives of the broker."""

    def __init__(self, config: Config, *, num_held_out: int = 0, before: "TracedCluster | None" = None) -> None:
        super().__init__(config, num_held_out=num_held_out, before=before)
        self.spans: list[TraceSpan] = before.spans if before else []
        self.unix_s: float = before.unix_s if before else 1e9
        ids = TraceIds("run-1", self.broker_term)
        self.traces = Traces(self.scheduler, ids, self.spans.extend, lambda: self.unix_s)
        self._drain = self.scheduler.out.drain
        out: Any = self.scheduler.out
        out.drain = self._traced

    def hear(self, node: Node) -> None:
        message = node.outbox[0]
        super().hear(node)
        if isinstance(message, Stepped):
            self.traces.stepped(message.step)

    def _traced(self) -> Any:
        self.unix_s += 1
        drained = self._drain()
        self.traces.observe(drained[0], drained[1])
        return drained
