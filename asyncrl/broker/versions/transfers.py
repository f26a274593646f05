"""
Which version is live, and who takes part in which weight transfer. One transfer at a time.

    Publishing(v) ─▶ Transfer to trainer and rollouts ─▶ Transferred, Live, Live ─▶ v is live
    a rollout joins ─▶ Transfer of the pair (trainer, joiner), so that nobody else waits
    a pair that breaks too often ─▶ the joiner is given up, and the run goes on
    a rollout's side breaks, the others' does not ─▶ the version is live, and that rollout has to be brought up to date
    the trainer is lost ─▶ the next one starts at its checkpoint; nothing travels until it is at the live version again

A membership epoch names a process group. It changes only when the members do, or when a transfer in it broke: the
next transfer then makes a new group. Who was late is named and taken out; the others go on.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.errors import RunFailed
from asyncrl.messages import Publishing, Transfer

MAX_FAILURES = 5
"""Transfers of one version that may break before the run gives up; of one rollout alone, before it is given up."""


class OngoingTransfer:
    """The transfer under way."""

    def __init__(self, message: Transfer, receivers: Sequence[Node], peers: list[str], next_step: int) -> None:
        self.message = message
        self.peers = peers
        """By rank; the trainer first."""
        self.next_step = next_step
        self.expires_s = 0.0
        self.unreported = set(peers)
        """Their side of the transfer has neither ended nor broken yet."""
        self.swapped = {node.peer for node in receivers if node.policy_version >= message.policy_version}
        """They decode with the version."""
        self.swapping = set(peers[1:]) - self.swapped
        """They do not yet."""
        self.failures: dict[str, str] = {}
        """What broke, by peer."""

    @property
    def has_arrived(self) -> bool:
        """The trainer sent all of it, and a rollout that is still there got all of it."""
        receivers = self.swapping | self.swapped
        return self.peers[0] not in self.failures and not receivers <= self.failures.keys()


class TransferBook:
    """
    Versions and transfers.

    Args:
        deadline_s: Of one transfer, for each of its members.
        swaps_at_once: Rollouts do not let generations finish first, so that a swap has a deadline too.
    """

    def __init__(self, deadline_s: float, *, swaps_at_once: bool = True) -> None:
        self._deadline_s = deadline_s
        self._swaps_at_once = swaps_at_once
        self._last_group = 0
        self._kept: tuple[int, list[str]] | None = None
        """Epoch and members of the group that is reused; None: the next transfer makes a new one."""
        self._staged: Publishing | None = None
        self._num_failures = 0
        self._broken_alone: Counter[str] = Counter()
        """By peer: how often a rollout's transfer broke and nobody else's, since it last was up to date."""
        self.ongoing: OngoingTransfer | None = None
        self.live_version = -1

    @property
    def staged_version(self) -> int:
        """Newest version the trainer offered; -1 before the first."""
        return self._staged.policy_version if self._staged else -1

    def stage(self, transfers: Publishing) -> None:
        """The trainer has a version ready."""
        self._staged = transfers
        self._num_failures = 0

    def unstage(self) -> None:
        """The trainer is gone, and with it what it had ready."""
        self._staged = None

    @property
    def limit_s(self) -> float:
        """How long the members of a transfer have. They give up by themselves at half of it."""
        return 2 * self._deadline_s

    def start(self, nodes: NodeBook, now_s: float) -> OngoingTransfer | None:
        """
        The next transfer, if one is due: a new version to everybody, or the live one to a node that lacks it.

        Call it whenever something changed; while a transfer is under way it returns None, and while the trainer repeats
        steps that are behind the live version.
        """
        if self.ongoing or self._staged is None or (trainer := nodes.trainer()) is None:
            return None
        version = self._staged.policy_version
        if version < self.live_version:
            return None
        keep = version > self.live_version
        receivers = nodes.rollouts() if keep else self._joiner(nodes.rollouts(), version)
        if not receivers:
            return None
        peers = [trainer.peer, *(node.peer for node in receivers)]
        message = Transfer(
            transfer_group=self._group_for(peers, keep),
            policy_version=version,
            members=[trainer.member, *(node.member for node in receivers)],
            keep=keep,
            deadline_s=self._deadline_s,
        )
        self.ongoing = OngoingTransfer(message, receivers, peers, self._staged.next_step)
        self.ongoing.expires_s = now_s + self.limit_s
        return self.ongoing

    def reported(self, peer: str, transfer_group: int, failure: str = "") -> None:
        """A member's side of the transfer ended, or broke."""
        if (ongoing := self.ongoing) is None or ongoing.message.transfer_group != transfer_group:
            return
        ongoing.unreported.discard(peer)
        if failure:
            ongoing.failures[peer] = failure
            self._kept = None if ongoing.message.keep else self._kept

    def live(self, peer: str, policy_version: int) -> None:
        """A rollout decodes with this version."""
        if (ongoing := self.ongoing) and peer in ongoing.swapping and policy_version >= ongoing.message.policy_version:
            ongoing.swapping.discard(peer)
            ongoing.swapped.add(peer)

    def left(self, peer: str, name: str) -> None:
        """A node is gone; a group it was in is of no more use."""
        self._broken_alone.pop(peer, None)
        if self._kept and peer in self._kept[1]:
            self._kept = None
        if (ongoing := self.ongoing) is None or peer not in ongoing.peers:
            return
        if peer in ongoing.unreported:
            ongoing.failures[peer] = f"{name} was lost"
        ongoing.unreported.discard(peer)
        ongoing.swapping.discard(peer)
        ongoing.swapped.discard(peer)

    def given_up(self) -> list[str]:
        """Rollouts that could not be brought up to date in `MAX_FAILURES` tries: to be declared lost."""
        return [peer for peer, failures in self._broken_alone.items() if failures >= MAX_FAILURES]

    def extend(self, seconds: float) -> None:
        """No report could be heard for so long."""
        if self.ongoing:
            self.ongoing.expires_s += seconds

    def expired(self, now_s: float, held: Collection[str]) -> list[str]:
        """Members that have not done their part in time, and are not ``held``: to be declared lost."""
        if (ongoing := self.ongoing) is None:
            return []
        if not ongoing.unreported and ongoing.swapping.intersection(held):
            ongoing.expires_s = now_s + self.limit_s  # Its time begins when it is released.
        if now_s < ongoing.expires_s:
            return []
        return sorted(ongoing.unreported or (ongoing.swapping if self._swaps_at_once else ()))

    def conclude(self, held: Collection[str]) -> OngoingTransfer | None:
        """
        The transfer that has just ended with its version in use, else None.

        One that broke is forgotten, so that `start` makes another with the members there are then; if it broke for some
        of the rollouts only, they lack the version as joiners do. Nodes ``held`` for an evaluation are not waited for;
        if all are, the first one released makes the version live.

        Raises:
            RunFailed: The same version broke too often.
        """
        if (ongoing := self.ongoing) is None or ongoing.unreported:
            return None
        if ongoing.failures:
            if not ongoing.has_arrived:
                self.ongoing = None
                self._broke(ongoing)
                return None
            self._go_on_without(ongoing.swapping & ongoing.failures.keys())
        if len(ongoing.swapping) > len(held):
            return None  # The usual answer while many swap, and it costs the same with any number of them.
        if ongoing.swapping.difference(held) or (ongoing.swapping and not ongoing.swapped):
            return None
        self.ongoing = None
        if not ongoing.swapped:
            return None  # All were lost after the transfer: whoever joins next gets the version anew.
        for peer in ongoing.swapped:
            self._broken_alone.pop(peer, None)
        self.live_version = max(self.live_version, ongoing.message.policy_version)
        return ongoing

    def _broke(self, ongoing: OngoingTransfer) -> None:
        if not ongoing.message.keep:
            self._broken_alone[ongoing.peers[1]] += 1
            return
        self._num_failures += 1
        if self._num_failures >= MAX_FAILURES:
            raise RunFailed(
                f"version {ongoing.message.policy_version} could not be published in {MAX_FAILURES} tries: "
                f"{'; '.join(ongoing.failures.values())}"
            )

    def _go_on_without(self, peers: Collection[str]) -> None:
        """What moved was sound: it is for these rollouts to get it again, and the others do not wait."""
        if self.ongoing:
            self.ongoing.swapping.difference_update(peers)
        self._broken_alone.update(peers)

    def _joiner(self, rollouts: Sequence[Node], version: int) -> list[Node]:
        """[<= 1] The rollout to bring up to date next: one whose transfer broke least often."""
        lacking = [node for node in rollouts if node.received_version < version]
        able = [node for node in lacking if self._broken_alone[node.peer] < MAX_FAILURES]
        return sorted(able, key=lambda node: self._broken_alone[node.peer])[:1]

    def _group_for(self, peers: list[str], keep: bool) -> int:
        if keep and self._kept and self._kept[1] == peers:
            return self._kept[0]
        self._last_group += 1
        if keep:
            self._kept = (self._last_group, peers)
        return self._last_group
