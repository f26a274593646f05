"""
Path of a policy version: transferred to the rollouts, live, evaluated.

    Publishing ─▶ Transfer ─▶ Transferred, Live ─▶ version live ─▶ Published      window freed, evaluation due?
             └─▶ Upload ─▶ Uploaded ─▶ Transfer to rollouts outside the collective
                                                        └─▶ Hold ─▶ held-out prompts ─▶ Measured ─▶ Release
"""

from asyncrl.broker.groups.admission import Window
from asyncrl.broker.handlers import rule
from asyncrl.broker.ledger.records import Measured, VersionLive
from asyncrl.broker.nodes.device_turns import DeviceTurnBook
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.broker.versions.transfers import NO_GROUP, TransferBook, UploadBook
from asyncrl.messages.rollout import Hold, Release
from asyncrl.messages.session import AskTurn, Asleep
from asyncrl.messages.trainer import Evaluating
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.weights import Live, Published, Publishing, TransferFailed, Transferred, Uploaded


class Versions:
    """Turns the decisions of `TransferBook`, `UploadBook` and `EvaluationBook` into messages, records and events."""

    def __init__(
        self,
        transfers: TransferBook,
        evaluation: EvaluationBook,
        nodes: NodeBook,
        window: Window,
        *,
        turns: DeviceTurnBook,
        out: Outbox,
    ) -> None:
        self._transfers = transfers
        self.uploads = UploadBook()
        self._evaluation = evaluation
        self._nodes = nodes
        self._window = window
        self._turns = turns
        self._out = out
        self._interrupted: dict[int, str] = {}
        """Node that had begun the evaluation of a version, and has it no more."""
        self._resumed_with: list[int] = []
        """Versions of which an evaluation was due, or went on, when an earlier life of the broker ended."""
        self.has_changed = False
        """Set to have the next `advance` look at transfers and evaluations again. Most messages change neither."""

    @property
    def held(self) -> list[str]:
        """[<= 1] Peer that keeps its version for the ongoing evaluation."""
        ongoing = self._evaluation.ongoing
        return [ongoing.peer] if ongoing and ongoing.peer else []

    def are_at_rest(self) -> bool:
        """True if rollouts have the newest version, and evaluate none that they have or can be given."""
        if all(node.is_draining for node in self._nodes.rollouts()):
            return True
        is_evaluated = not self.held and not (self._evaluation.is_waiting and self._may_evaluate)
        return is_evaluated and self._transfers.is_at_rest

    def resumed(self) -> None:
        """The broker was started again, and its books are those of its earlier life: evaluations start anew."""
        self._resumed_with = self._evaluation.waiting()

    def ready(self, node: Node) -> None:
        """A node has loaded its model. A trainer is sent all evaluation results so far."""
        self.has_changed = True
        if node.role == "trainer":
            for result in self._evaluation.results:
                self._out.send(node.peer, result)
            if ongoing := self._evaluation.ongoing:
                self._out.send(node.peer, Evaluating(ongoing.policy_version))

    @rule
    def offered(self, message: Publishing, node: Node, now_s: float) -> None:
        self._transfers.stage(message)
        self.has_changed = True
        live_version = self._transfers.live_version
        if message.policy_version <= live_version:  # A resumed trainer repeats versions up to the live one.
            self._out.send(node.peer, Published(live_version))

    @rule
    def transferred(self, message: Transferred, node: Node, now_s: float) -> None:
        """A side of a transfer has ended."""
        node.received_version = max(node.received_version, message.policy_version)
        self._reported(node, message.transfer_group, now_s)

    @rule
    def transfer_failed(self, message: TransferFailed, node: Node, now_s: float) -> None:
        """A side of a transfer has failed; raises `RunFailed` if one version keeps failing."""
        version, cause = message.policy_version, message.reason
        self._out.event("transfer.failed", node=node.name, role=node.role, policy_version=version, cause=cause)
        self._reported(node, message.transfer_group, now_s, f"{node.name}: {cause}")

    @rule
    def swapped(self, message: Live, node: Node, now_s: float) -> None:
        """The engine of a rollout decodes with a version."""
        node.policy_version = max(node.policy_version, message.policy_version)
        self._transfers.live(node.peer, message.policy_version)
        self.has_changed = True

    @rule
    def uploaded(self, message: Uploaded, node: Node, now_s: float) -> None:
        """An upload has ended."""
        version, seconds, num_bytes = message.policy_version, round(message.seconds, 3), message.num_bytes
        if message.problem:
            self._out.event("upload.failed", policy_version=version, cause=message.problem)
        else:
            self._out.event("version.uploaded", policy_version=version, seconds=seconds, num_bytes=num_bytes)
        self.uploads.uploaded(message, now_s)
        self.has_changed = True

    @rule
    def asleep(self, message: Asleep, node: Node, now_s: float) -> None:
        """A node has left the shared devices, so that others may load, train or swap."""
        self._turns.asleep(message, node.peer, now_s)
        self.has_changed = True

    @rule
    def asks(self, message: AskTurn, node: Node, now_s: float) -> None:
        """A node waits for its turn at the shared devices."""
        self._turns.asks(node.peer)
        self.has_changed = True

    def went_live(self, policy_version: int, next_step: int) -> int | None:
        """
        Rollouts decode with a version made of every step below ``next_step``.

        Returns the version whose evaluation is left out for that of this one.
        """
        self._window.live(next_step)
        return self._evaluation.version_live(policy_version)

    def advance(self, now_s: float) -> None:
        """Conclude and start transfers and evaluations; raises `RunFailed` if one version keeps failing."""
        self.has_changed = False
        self._abort_transfer(now_s)
        self._conclude_transfer()
        self._follow_fetchers()
        self._start_evaluation()
        if self._turns.rollouts_may_swap and (started := self._transfers.start(self._nodes, now_s)):
            for peer in started.peers:
                self._out.send(peer, started.message)
        self._advance_uploads(now_s)

    def settle_held_out(self, unit: Unit, *, failed: bool) -> None:
        """Close a held-out completion that was rewarded or failed for good. The last one ends the evaluation."""
        ongoing = self._evaluation.ongoing
        result = self._evaluation.settle(unit, failed=failed)
        if result is None or ongoing is None:
            return
        self.has_changed = True
        self._interrupted.pop(result.policy_version, None)
        self._out.send(ongoing.peer, Release())
        self._out.record(Measured(result.policy_version, result.accuracy, result.num_prompts, result.metrics))
        self._out.event(
            "eval.finished",
            policy_version=result.policy_version,
            accuracy=result.accuracy,
            num_prompts=result.num_prompts,
            **({"max_tokens": ongoing.max_tokens} if ongoing.max_tokens else {}),
            **result.metrics,
        )
        for node in (*self._nodes.with_role("supervisor"), *self._nodes.with_role("trainer")):
            self._out.send(node.peer, result)

    def departed(self, node: Node) -> None:
        """Forget a node that is gone: its transfer is given up, and its evaluation goes to another node."""
        self.has_changed = True
        self._transfers.departed(node.peer, node.name)
        self.uploads.departed(node, self._nodes, self._transfers.live_version)
        if node.role == "trainer":
            self._transfers.staged = None
        self.free_evaluation(node)

    def free_evaluation(self, node: Node) -> None:
        """Let another node go on with the evaluation that this one has, if it has one."""
        if lost := self._evaluation.departed(node.peer):
            self._interrupted[lost.policy_version] = node.name
            self._out.event("eval.lost", node=node.name, policy_version=lost.policy_version)
            self.has_changed = True

    def adopted(self, node: Node) -> None:
        """A node has returned with completions of the ongoing evaluation: it keeps its version for them."""
        if (ongoing := self._evaluation.ongoing) and ongoing.peer == node.peer:
            self._out.send(node.peer, Hold(ongoing.policy_version))

    def _abort_transfer(self, now_s: float) -> None:
        """Tell the members of a transfer that cannot end to give it up."""
        if (given_up := self._transfers.abort(self._nodes, now_s)) is None:
            return
        abort, peers = given_up
        self._out.event("transfer.aborted", transfer_group=abort.transfer_group, cause=abort.reason)
        for peer in peers:
            self._out.send(peer, abort)

    def _conclude_transfer(self) -> None:
        before = self._transfers.live_version
        ended = self._transfers.conclude(self.held)
        if ended is None or self._transfers.live_version == before:
            return
        self._announce(ended.message.policy_version, ended.next_step)

    def _follow_fetchers(self) -> None:
        """Without members of a collective, the first rollout that decodes with a version makes it live."""
        if self._transfers.ongoing or not (found := self.uploads.live(self._nodes, self._transfers.live_version)):
            return
        self._transfers.went_live(found[0])
        self._announce(*found)

    def _announce(self, policy_version: int, next_step: int) -> None:
        """A version has become live."""
        left_out = self.went_live(policy_version, next_step)
        self._out.record(VersionLive(policy_version, next_step))
        self._out.event("version.live", policy_version=policy_version)
        if left_out is not None:
            self._leave_out(left_out, policy_version)
        if trainer := self._nodes.trainer():
            self._out.send(trainer.peer, Published(policy_version))

    def _leave_out(self, policy_version: int, newer: int) -> None:
        """Report that an evaluation which was due is not made, because rollouts have a newer version."""
        leaving = [node.name for node in self._nodes.rollouts() if node.is_draining]
        if begun_by := self._interrupted.pop(policy_version, ""):
            cause = f"{begun_by} had begun it and has it no more, and the other rollouts had v{newer} by then"
        elif policy_version in self._resumed_with:
            cause = f"the broker was started again before the evaluation had ended, and rollouts had v{newer} by then"
        elif leaving:
            cause = f"{', '.join(leaving)} was told to leave, and the other rollouts had v{newer} by then"
        else:
            cause = f"rollouts had v{newer} before one of them could evaluate it; evaluate less often, or add a rollout"
        self._out.event("eval.left_out", policy_version=policy_version, newer_version=newer, cause=cause)

    def _advance_uploads(self, now_s: float) -> None:
        """Request the upload that is due, and the fetches of what is stored."""
        live_version = self._transfers.live_version
        trainer = self._nodes.trainer()
        if trainer and (upload := self.uploads.upload(self._nodes, self._transfers.staged, live_version, now_s)):
            self._out.send(trainer.peer, upload)
        for node, transfer in self.uploads.fetches(self._nodes, now_s):
            self._out.send(node.peer, transfer)

    def _reported(self, node: Node, transfer_group: int, now_s: float, failure: str = "") -> None:
        self.has_changed = True
        if node.transfer_group == transfer_group:
            node.transfer_group = 0
        if transfer_group == NO_GROUP:
            self.uploads.fetched(node, now_s, failed=bool(failure))
        else:
            self._transfers.reported(node.peer, transfer_group, now_s, failure)

    @property
    def _may_evaluate(self) -> bool:
        """False while nobody has the live version: a trainer has yet to load, or repeats steps behind it."""
        version = self._transfers.live_version
        is_staged = self._transfers.staged_version >= version
        return is_staged or any(node.policy_version == version for node in self._nodes.rollouts())

    def _start_evaluation(self) -> None:
        """
        Start the evaluation that is due, outside transfers: a node that swaps would sample with two versions.

        So might one that has yet to tell how its transfer ended, after the others gave that up: it may have it all.
        """
        if not self._evaluation.is_waiting or self._transfers.ongoing:
            return
        version = self._transfers.live_version
        current = (n for n in self._nodes.rollouts() if n.policy_version == n.received_version == version)
        able = (n for n in current if not n.is_fetching and not n.transfer_group and not n.is_away)
        waiting = self._evaluation.waiting()
        if (node := next((n for n in able if not n.is_draining), None)) and (
            started := self._evaluation.start(node.peer, version)
        ):
            for older in waiting:
                if older != version:
                    self._leave_out(older, version)
            num_prompts = len(started.groups)
            self._out.event("eval.started", node=node.name, policy_version=version, num_prompts=num_prompts)
            self._out.send(node.peer, Hold(version))
            if trainer := self._nodes.trainer():
                self._out.send(trainer.peer, Evaluating(version))
