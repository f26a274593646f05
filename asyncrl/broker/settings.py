"""
Settings and pauses by operators while the run goes on, the books that follow them, and what supervisors are told.

    SetSettings ─assigned─▶ checked values ─▶ apply ─▶ configuration, window, learning rate, evaluations, lengths
    replayed `SettingsSet` ───────────────────┘
"""

from collections.abc import Mapping, Sequence

from asyncrl.broker.failures import EVENT, FailureBook
from asyncrl.broker.handlers import rule
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.staleness_control import BY, KEY
from asyncrl.broker.training import TrainingGroups
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.config.config import Config
from asyncrl.config.live import Value, assigned, with_values
from asyncrl.messages.codec import Message
from asyncrl.messages.supervisor import Failures, Notice, Paused
from asyncrl.messages.trainer import Resumed


class LiveSettings:
    def __init__(self, config: Config, training: TrainingGroups, evaluation: EvaluationBook) -> None:
        self.config = config
        """Configuration with the settings as they are by now."""
        self.values: dict[str, Value] = {}
        """Settings that were changed, by key."""
        self.is_auto = config.schedule.staleness == "auto"
        """True if the broker itself sets the staleness: it was started with ``auto``, and nobody has set a number."""
        self.paused_by = ""
        """Operator that paused sampling; empty while it goes on. It is in the ledger: a restarted broker keeps it."""
        self._start = config
        self._training = training
        self._evaluation = evaluation

    @property
    def nodes_config(self) -> Config:
        """Configuration for nodes that join: they make room for the longest completions that may be set again."""
        return with_values(self.config, {"sampling.max_tokens": self._start.sampling.max_tokens})

    def assigned(self, assignments: Sequence[str]) -> dict[str, Value]:
        """Checked values of ``key=value`` texts that change something; raises `ConfigError`."""
        return assigned(self.config, self._start, assignments)

    def apply(self, values: Mapping[str, Value], by: str) -> None:
        """Apply checked values that ``by`` has set, now or when their record is replayed."""
        self.values |= values
        if (staleness := values.get(KEY)) is not None:
            self.is_auto = by == BY or staleness == "auto"
        self.config = config = with_values(self.config, values)
        self._training.resize(config.schedule.window)
        self._training.batches.lr = config.trainer.lr
        self._evaluation.every_versions = config.evaluation.every_versions
        if (max_tokens := config.sampling.max_tokens) != self._start.sampling.max_tokens:
            self._training.admission.max_tokens = max_tokens
            self._evaluation.max_tokens = config.evaluation.max_tokens or max_tokens
        else:
            self._training.admission.max_tokens = self._evaluation.max_tokens = 0

    def pause(self, *, is_paused: bool, by: str) -> None:
        """
        Pause sampling, or let it go on, now or when the record is replayed.

        Everything in hand goes on: rollouts finish their leases, rewards are graded, the trainer trains on the steps
        that this completes and publishes their versions. Then rollouts and trainer wait, for as long as it takes: no
        deadline runs meanwhile.
        """
        self.paused_by = (by or "an operator") if is_paused else ""


# ── supervisors ───────────────────────────────────────────────────────────────────────────────
# Messages to supervisors: pauses, changed settings and failure counts, also for one that joins later.


class Supervisors:
    """Sends to all supervisors of a run."""

    def __init__(self, nodes: NodeBook, failures: FailureBook, out: Outbox) -> None:
        self._nodes = nodes
        self._failures = failures
        self._out = out

    def joined(self, supervisor: Node, paused_by: str) -> None:
        """Tell a supervisor that has just joined what the others were told before, such as that sampling is paused."""
        if self._failures.total:
            self._out.send(supervisor.peer, Failures(self._failures.counts, self._failures.attempts))
        if paused_by:
            self._out.send(supervisor.peer, Paused(True, paused_by), once_durable=True)

    @rule
    def resumed(self, message: Resumed, node: Node, now_s: float) -> None:
        """The trainer goes on from a checkpoint: tell what it passed over."""
        self._out.event("trainer.resumed", steps=message.steps, path=message.checkpoint)
        for damaged in message.damaged:
            self._out.event("checkpoint.damaged", path=damaged.checkpoint, cause=damaged.cause)
            self.notice(f"checkpoint {damaged.checkpoint} is damaged: {damaged.cause}")
        if message.damaged:
            source = message.checkpoint or "the beginning, because no checkpoint is intact"
            self.notice(f"the trainer goes on from {source}")

    def tell(self, message: Message, *, once_durable: bool = True) -> None:
        """Tell all supervisors, once the records so far are durable or at once."""
        for supervisor in self._nodes.with_role("supervisor"):
            self._out.send(supervisor.peer, message, once_durable=once_durable)

    def notice(self, sentence: str) -> None:
        """Tell the person at the screen now."""
        self.tell(Notice(sentence), once_durable=False)

    def tell_failures(self, now_s: float) -> None:
        """Tell what has failed since supervisors were last told, and make the events that are due."""
        for fields in self._failures.events(now_s):
            self._out.event(EVENT, **fields)
        if news := self._failures.news(now_s):
            self.tell(Failures(news, self._failures.attempts), once_durable=False)
