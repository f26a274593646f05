"""
Sessions of nodes: which are welcomed, rejected and why, ready, or displaced by a newer process of the same name.

    Hello ─▶ Welcome, with the configuration ─▶ Ready ─▶ node.ready
          └▶ Reject, with the reason                  └▶ Reject: another model than the trainer's
"""

from collections.abc import Callable

from msgspec import Struct, to_builtins

from asyncrl.broker.ending import RunEnding
from asyncrl.broker.handlers import shell
from asyncrl.broker.metrics.run_files import RunFiles
from asyncrl.broker.nodes.node import Node
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.status import RestartBook
from asyncrl.config.config import to_json
from asyncrl.messages.bounds import MAX_NAME_CHARS
from asyncrl.messages.files import ModelFiles
from asyncrl.messages.session import Hello, Ready, Reject, Welcome, difference_of_models, process_of
from asyncrl.messages.supervisor import Returned
from asyncrl.messages.wire import PROTOCOL
from asyncrl.wire.link import Hub
from asyncrl.wire.permissions import key_refusal, refusal
from asyncrl.wire.refusals import Allowance

# ── displaced ─────────────────────────────────────────────────────────────────────────────────
# Processes whose place another process of the same name has taken.
#
#     older ─Hello─▶ broker ◀─Hello─ newer        older ◀─Reject─ broker        older ─Hello─▶ broker: refused again
#
# Without it the two would displace each other for ever: a process that loses its session says Hello again.
#
# What a process said before it was killed, or in an earlier session, may arrive behind the Hello of its successor, if
# the broker's machine or the network stood still. Such a late Hello displaces nobody and gets no answer: its sender is
# gone, or gives up and starts again.


class DisplacedBook:
    def __init__(self) -> None:
        self._processes: dict[str, str] = {}
        """The process that was displaced last, by the name of the node."""

    def joined(self, hello: Hello, earlier: list[str]) -> None:
        """A node was welcomed, which displaces the ``earlier`` incarnations of its name."""
        for process in map(process_of, earlier):
            if process and process != hello.process:
                self._processes[hello.node] = process
        if self._processes.get(hello.node) == hello.process:
            del self._processes[hello.node]

    def is_displaced(self, hello: Hello) -> bool:
        """True if another process took the place of the one that says Hello."""
        return bool(hello.process) and self._processes.get(hello.node) == hello.process


def is_late(incarnation: str, joined: str) -> bool:
    """True if the session that ``joined`` began after this one of the same name, by clocks that may differ."""
    return _started(incarnation) < _started(joined)


def _started(incarnation: str) -> int:
    """Start in an incarnation, in units of its own; 0 if it does not tell."""
    try:
        return int(incarnation.partition("-")[0], 16)
    except ValueError:
        return 0


def displaced(name: str) -> str:
    """Reason for which a displaced process is refused."""
    return (
        f"another process has joined as {name}, and takes its place: give each process another --name, or each service "
        f"a key of its own"
    )


# ── sessions ──────────────────────────────────────────────────────────────────────────────────

REJECTIONS_PER_S, BURST_REJECTIONS = 1, 1000
"""Events of rejected nodes a second, and in a burst: strangers must not fill the event log."""


class RunIdentity(Struct, frozen=True):
    """Facts of the run that a node is told; they never change, as the configuration may."""

    run_id: str
    run_dir: str
    broker_term: int
    models: list[ModelFiles]
    """Model directories of this machine, which nodes compare with theirs."""


class Sessions:
    """Admits nodes to the run and ends their sessions. All arguments are borrowed; ``clock`` is the broker's."""

    def __init__(
        self,
        run: RunIdentity,
        scheduler: Scheduler,
        hub: Hub,
        *,
        files: RunFiles,
        ending: RunEnding,
        restarts: RestartBook,
        clock: Callable[[], float],
    ) -> None:
        self._run = run
        self._scheduler = scheduler
        self._hub = hub
        self._files = files
        self._ending = ending
        self._restarts = restarts
        self._clock = clock
        self._displaced = DisplacedBook()
        self._model: tuple[str, Ready] | None = None
        """First trainer that was ready, and what it said of its model, which is the run's."""
        self._rejections = Allowance(REJECTIONS_PER_S, BURST_REJECTIONS)
        """Events; a node that is rejected again and again cannot fill the disk with them."""
        self._num_rejected = 0
        self._refused_keys: set[tuple[str, str]] = set()
        """Keys and addresses of events."""

    @shell
    def hello(self, hello: Hello, peer: str) -> None:
        """Welcome a node, or reject it."""
        if self._ending.is_suspended:
            return  # The next broker answers; a refusal would end the node.
        if self._scheduler.nodes.get(peer):
            self._scheduler.refuse(peer, hello, "it has said Hello before")
        elif any(
            is_late(hello.incarnation, node.incarnation) and not node.is_away
            for node in self._scheduler.nodes.named(hello.node)
        ):
            self._files.event("hello.late", node=hello.node, incarnation=hello.incarnation)
        elif reason := self._refusal(peer, hello):
            self._reject(peer, hello.node, reason)
        elif hello.only_asks:
            self._welcome(peer)
        else:
            self._join(peer, hello)
            self._welcome(peer)  # Before what follows from its joining, which is sent after this message is handled.
            if hello.role == "reward":  # It is ready at once.
                self._returned(hello.node)

    @shell
    def ready(self, message: Ready, peer: str) -> None:
        """Reject nodes whose model differs from the trainer's, whoever came first: they could not take its weights."""
        if (node := self._scheduler.nodes.get(peer)) is None:
            return
        if self._model is None and node.role == "trainer":
            self._model = node.name, message
            for early in self._scheduler.nodes.rollouts():
                self._rejects_model(early, early.model)
        if self._rejects_model(node, message):
            return
        self._files.event("node.ready", node=node.name, role=node.role)
        self._returned(node.name, self._scheduler.training.committed_step + 1 if node.role == "trainer" else -1)
        self._scheduler.handle(peer, message, self._clock())

    def _rejects_model(self, node: Node, ready: Ready) -> bool:
        """Reject ``node`` if its model is not the run's, as far as it is known. Returns True if it does."""
        trainer, expected = self._model or ("", ready)
        if not (difference := difference_of_models(ready, expected)):
            return False
        reason = f"{node.name} has another model than {trainer}: {difference}"
        self._reject(node.peer, node.name, reason)
        self._scheduler.departed(node.peer, reason, self._clock())
        return True

    def tick(self) -> None:
        """Record the peer that the hub refused last, once: it tries again and again."""
        refused = self._hub.refused_key
        is_new = refused and (refused.key, refused.address) not in self._refused_keys
        if refused and is_new and self._rejections.take("key", self._clock()):
            self._refused_keys.add((refused.key, refused.address))
            self._files.event("key.refused", **to_builtins(refused))

    def _join(self, peer: str, hello: Hello) -> None:
        earlier = [node for node in self._scheduler.nodes.named(hello.node) if node.peer != peer]
        for node in earlier:
            self._hub.send(node.peer, Reject(displaced(hello.node)))
            self._hub.forget(node.peer)
        self._displaced.joined(hello, [node.incarnation for node in earlier])
        self._scheduler.joined(peer, hello, self._clock())

    def _welcome(self, peer: str) -> None:
        settings, node = self._scheduler.settings, self._scheduler.nodes.get(peer)
        permit_key = self._scheduler.dispatcher.permits.key if node and node.role == "spool" else None
        welcome = Welcome(
            broker_term=self._run.broker_term,
            run_id=self._run.run_id,
            run_dir=self._run.run_dir,
            config=to_json(settings.nodes_config),
            spools=self._scheduler.spools.told_to(peer),
            beat_s=settings.config.broker.beat_s,
            models=self._run.models,
            permit_key=permit_key or b"",
        )
        self._hub.send(peer, welcome)

    def _refusal(self, peer: str, hello: Hello) -> str:
        """Reason to reject a node; empty to welcome it."""
        if reason := refusal(hello.role, hello) or hello.out_of_bounds():
            return f"its Hello is invalid: {reason}"
        if peer != f"{hello.node}.{hello.incarnation}":
            return f"its Hello is invalid: the session of {peer} is not that of {hello.node}.{hello.incarnation}"
        if reason := key_refusal(self._hub.owner(peer), hello.role, hello.node):
            return reason
        if self._displaced.is_displaced(hello) and self._scheduler.nodes.named(hello.node):
            return displaced(hello.node)
        if self._ending.has_come:
            return f"this run is over: {self._ending.cause or 'it is complete'}"
        if hello.protocol != PROTOCOL:
            return f"this broker speaks protocol {PROTOCOL}, {hello.node} speaks {hello.protocol}: install one version"
        if hello.run_id not in ("", self._run.run_id):
            remedy = "give it another --dir" if hello.role == "spool" else "start the node again"
            return (
                f"{hello.node} belongs to run {hello.run_id}, this broker serves run {self._run.run_id} in "
                f"{self._run.run_dir}: {remedy} to join this run"
            )
        return self._trainer_refusal(hello) if hello.role == "trainer" else ""

    def _trainer_refusal(self, hello: Hello) -> str:
        """Reason to reject a trainer: the run has one already."""
        if self._scheduler.machines.are_used:
            return self._scheduler.machines.refusal(hello.node)
        trainer = self._scheduler.nodes.trainer()
        if trainer and trainer.name != hello.node:  # A new incarnation of the same node replaces it.
            return f"this run has a trainer already: {trainer.name} (started as {trainer.incarnation})"
        return ""

    def _reject(self, peer: str, name: str, reason: str) -> None:
        self._num_rejected += 1
        if self._rejections.take("", self._clock()):
            rejected = {"node": name[:MAX_NAME_CHARS], "cause": reason, "num_rejected": self._num_rejected}
            self._files.event("node.rejected", **rejected)
        self._hub.send(peer, Reject(reason))

    def _returned(self, name: str, step: int = -1) -> None:
        """Tell who started a node again that it is back."""
        if absence := self._restarts.returned(name):
            away_s = round(self._clock() - absence.since_s, 1)
            self._files.event("node.returned", node=name, away_s=away_s, **({"step": step} if step >= 0 else {}))
            self._hub.send(absence.told_by, Returned(name, away_s, step))
