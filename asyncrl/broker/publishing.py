"""
Which version is live, and who takes part in which weight transfer. One transfer at a time.

    Publishing(v) ─▶ Transfer to trainer and rollouts ─▶ Transferred, Live, Live ─▶ v is live
    a rollout joins ─▶ Transfer of the pair (trainer, joiner), so that nobody else waits

A membership epoch names a process group. It changes only when the members do, or when a transfer in it broke: the
next transfer then makes a new group. Who was late is named and taken out; the others go on.
"""

from collections.abc import Sequence

from asyncrl.broker.nodes import Node
from asyncrl.errors import RunFailed
from asyncrl.messages import Publishing, Transfer

MAX_FAILURES = 5
"""Transfers of one version that may break before the run gives up."""


class Ongoing:
    """The transfer under way."""

    def __init__(self, message: Transfer, peers: list[str], next_step: int, expires_s: float) -> None:
        self.message = message
        self.peers = peers
        """By rank; the trainer first."""
        self.next_step = next_step
        self.expires_s = expires_s
        self.unreported = set(peers)
        """Their side of the transfer has neither ended nor broken yet."""
        self.swapping = set(peers[1:])
        """They do not decode with the version yet."""
        self.failures: list[str] = []


class PublishBook:
    """Versions and transfers."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._last_epoch = 0
        self._kept: tuple[int, list[str]] | None = None
        """Epoch and members of the group that is reused; None: the next transfer makes a new one."""
        self._staged: Publishing | None = None
        self._num_failures = 0
        self.ongoing: Ongoing | None = None
        self.live_version = -1

    @property
    def staged_version(self) -> int:
        """Newest version the trainer offered; -1 before the first."""
        return self._staged.policy_version if self._staged else -1

    def stage(self, publishing: Publishing) -> None:
        """The trainer has a version ready."""
        self._staged = publishing
        self._num_failures = 0

    def start(self, trainer: Node | None, rollouts: Sequence[Node], now_s: float) -> Ongoing | None:
        """
        The next transfer, if one is due: a new version to everybody, or the live one to a node that lacks it.

        Call it whenever something changed; while a transfer is under way it returns None.
        """
        if self.ongoing or self._staged is None or trainer is None:
            return None
        version = self._staged.policy_version
        keep = version > self.live_version
        lacking = [node for node in rollouts if node.received_version < version]
        receivers = list(rollouts) if keep else lacking[:1]
        if not receivers:
            return None
        peers = [trainer.peer, *(node.peer for node in receivers)]
        message = Transfer(
            epoch=self._epoch_for(peers, keep),
            policy_version=version,
            members=[trainer.member, *(node.member for node in receivers)],
            keep=keep,
            deadline_s=self._deadline_s,
        )
        self.ongoing = Ongoing(message, peers, self._staged.next_step, now_s + 2 * self._deadline_s)
        return self.ongoing

    def reported(self, peer: str, epoch: int, failure: str = "") -> None:
        """A member's side of the transfer ended, or broke."""
        if (ongoing := self.ongoing) is None or ongoing.message.epoch != epoch:
            return
        ongoing.unreported.discard(peer)
        if failure:
            ongoing.failures.append(failure)
            self._kept = None if ongoing.message.keep else self._kept

    def left(self, peer: str, name: str) -> None:
        """A node is gone; a group it was in is of no more use."""
        if self._kept and peer in self._kept[1]:
            self._kept = None
        if (ongoing := self.ongoing) is None or peer not in ongoing.peers:
            return
        if peer in ongoing.unreported:
            ongoing.failures.append(f"{name} was lost")
        ongoing.unreported.discard(peer)
        ongoing.swapping.discard(peer)

    def expired(self, now_s: float) -> list[str]:
        """Members that have not ended their side in time: to be declared lost."""
        if self.ongoing is None or now_s < self.ongoing.expires_s:
            return []
        return sorted(self.ongoing.unreported)

    def conclude(self, rollouts: Sequence[Node]) -> Ongoing | None:
        """
        The transfer that has just ended with its version in use, else None.

        A broken one is forgotten, so that `start` makes another with the members there are then.

        Raises:
            RunFailed: The same version broke too often.
        """
        if (ongoing := self.ongoing) is None or ongoing.unreported:
            return None
        if ongoing.failures:
            self.ongoing = None
            self._num_failures += 1
            if self._num_failures >= MAX_FAILURES:
                raise RunFailed(
                    f"version {ongoing.message.policy_version} could not be published in {MAX_FAILURES} tries: "
                    f"{'; '.join(ongoing.failures)}"
                )
            return None
        return self._swapped(ongoing, {node.peer: node for node in rollouts})

    def _swapped(self, ongoing: Ongoing, nodes: dict[str, Node]) -> Ongoing | None:
        version = ongoing.message.policy_version
        receivers = [nodes[peer] for peer in ongoing.peers[1:] if peer in nodes]
        ongoing.swapping = {n.peer for n in receivers if n.policy_version < version and not n.is_held}
        if ongoing.swapping:
            return None
        if receivers and not any(node.policy_version >= version for node in receivers):
            return None  # All of them are held for an evaluation; the first released one makes it live.
        self.ongoing = None
        if not receivers:
            return None  # All were lost after the transfer: whoever joins next gets the version anew.
        self.live_version = max(self.live_version, version)
        return ongoing

    def _epoch_for(self, peers: list[str], keep: bool) -> int:
        if keep and self._kept and self._kept[1] == peers:
            return self._kept[0]
        self._last_epoch += 1
        if keep:
            self._kept = (self._last_epoch, peers)
        return self._last_epoch
