"""
What rollouts decode with: transfers to them, when a version is live, and the held-out prompts that are answered at it.

    Publishing ─▶ Transfer ─▶ Transferred, Live ─▶ version live ─▶ Published      window freed, evaluation due?
                                                        └─▶ Hold ─▶ held-out prompts ─▶ Measured ─▶ Release
"""

from asyncrl.broker.groups.group import Group
from asyncrl.broker.groups.window import Window
from asyncrl.broker.ledger.records import Measured, VersionLive
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.broker.versions.transfers import TransferBook
from asyncrl.messages import Evaluating, Hold, Live, Published, Publishing, Release, TransferFailed, Transferred, Unit


class Versions:
    """
    Moves versions from the trainer to the rollouts, and has them measured on the way.

    Args:
        publishing: Who takes part in which transfer.
        evaluation: What is to be measured when.
        nodes: Who is there.
        window: Freed when a version is live.
        out: Where messages, records and events go.
    """

    def __init__(
        self, transfers: TransferBook, evaluation: EvaluationBook, nodes: NodeBook, window: Window, out: Outbox
    ) -> None:
        self._transfers = transfers
        self._evaluation = evaluation
        self._nodes = nodes
        self._window = window
        self._out = out
        self._has_moved = False

    @property
    def held(self) -> list[str]:
        """The rollout that stays at its version for an evaluation."""
        return [self._evaluation.ongoing.peer] if self._evaluation.ongoing else []

    def ready(self, node: Node) -> None:
        """A node takes part from now on. A trainer hears how versions have done so far."""
        self.moved()
        if node.role == "trainer":
            for result in self._evaluation.results:
                self._out.send(node.peer, result)
            if ongoing := self._evaluation.ongoing:
                self._out.send(node.peer, Evaluating(ongoing.policy_version))

    def moved(self) -> None:
        """Something happened that transfers or evaluations depend on. Most messages are not of this kind."""
        self._has_moved = True

    def offered(self, trainer: Node, message: Publishing) -> None:
        """The trainer has a version ready."""
        self._transfers.stage(message)
        self.moved()
        live_version = self._transfers.live_version
        if message.policy_version <= live_version:  # A resumed trainer's, on its way back to where it was.
            self._out.send(trainer.peer, Published(live_version))

    def reported(self, node: Node, message: Transferred | TransferFailed | Live) -> None:
        """A node says how far it is with a version."""
        version = message.policy_version
        match message:
            case Transferred(transfer_group=transfer_group):
                node.received_version = max(node.received_version, version)
                self._transfers.reported(node.peer, transfer_group)
            case TransferFailed(transfer_group=transfer_group, reason=reason):
                self._out.event("transfer.failed", node=node.name, policy_version=version, cause=reason)
                self._transfers.reported(node.peer, transfer_group, f"{node.name}: {reason}")
            case Live():
                node.policy_version = max(node.policy_version, version)
                self._transfers.live(node.peer, version)
        self.moved()

    def went_live(self, policy_version: int, next_step: int) -> None:
        """Rollouts decode with a version made of every step below ``next_step``."""
        self._window.live(next_step)
        self._evaluation.version_live(policy_version)

    def advance(self, now_s: float) -> None:
        """
        Conclude and begin what can be.

        Raises:
            RunFailed: One version could not be published in many tries.
        """
        if self._has_moved:
            self._has_moved = False
            self._conclude_transfer()
            self._start_evaluation()
            self._start_transfer(now_s)

    def settle_held_out(self, unit: Unit, *, failed: bool) -> None:
        """An answer to a held-out prompt has its verdict, or never will."""
        ongoing = self._evaluation.ongoing
        result = self._evaluation.settle(unit, failed=failed)
        if result is None or ongoing is None:
            return
        self.moved()
        self._out.send(ongoing.peer, Release())
        self._out.record(Measured(result.policy_version, result.accuracy, result.num_prompts, result.metrics))
        self._out.event(
            "eval.finished",
            policy_version=result.policy_version,
            accuracy=result.accuracy,
            num_prompts=result.num_prompts,
            **result.metrics,
        )
        for node in (*self._nodes.of("supervisor"), *self._nodes.of("trainer")):
            self._out.send(node.peer, result)

    def left(self, node: Node) -> list[Group]:
        """A node is gone. Returns held-out groups that nobody waits for any more."""
        self.moved()
        self._transfers.left(node.peer, node.name)
        if node.role == "trainer":
            self._transfers.unstage()
        if (lost := self._evaluation.left(node.peer)) is None:
            return []
        self._out.event("eval.lost", node=node.name, policy_version=lost.policy_version)
        return list(lost.open.values())

    def _conclude_transfer(self) -> None:
        before = self._transfers.live_version
        ended = self._transfers.conclude(self.held)
        if ended is None or self._transfers.live_version == before:
            return
        version = ended.message.policy_version
        self.went_live(version, ended.next_step)
        self._out.record(VersionLive(version, ended.next_step))
        self._out.event("version.live", policy_version=version)
        if trainer := self._nodes.trainer():
            self._out.send(trainer.peer, Published(version))

    def _start_transfer(self, now_s: float) -> None:
        if started := self._transfers.start(self._nodes, now_s):
            for peer in started.peers:
                self._out.send(peer, started.message)

    def _start_evaluation(self) -> None:
        """Not during a transfer: a node that swaps just then would answer with two versions."""
        if not self._evaluation.is_waiting or self._transfers.ongoing:
            return
        version = self._transfers.live_version
        able = (n for n in self._nodes.rollouts() if n.policy_version == n.received_version == version)
        if (node := next((n for n in able if not n.is_draining), None)) and self._evaluation.start(node.peer, version):
            self._out.send(node.peer, Hold(version))
            if trainer := self._nodes.trainer():
                self._out.send(trainer.peer, Evaluating(version))
