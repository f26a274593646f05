"""
The live version, and the members of each weight transfer. One transfer at a time.

    Publishing(v) ─▶ Transfer to trainer and rollouts ─▶ Transferred, Live, Live ─▶ v is live
    a rollout joins ─▶ Transfer of the pair (trainer, joiner), so that no other node waits
    transfers of a pair fail too often ─▶ the joiner is given up, and the run goes on
    a transfer fails for some rollouts only ─▶ the version is live, and these rollouts get it again as joiners do
    the trainer is lost ─▶ the next one starts at its checkpoint; no transfer until it is at the live version again

A transfer group is a process group, kept from one transfer to the next. A transfer with other members, or after one
that failed, forms a new group. Late members are named and declared lost; the others go on.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.errors import RunFailed
from asyncrl.messages import Publishing, Transfer

MAX_FAILURES = 5
"""Failed transfers of one version that end the run; failed transfers to one rollout that end this rollout."""


class OngoingTransfer:
    """The transfer of one version to one or more rollouts, until it is concluded."""

    def __init__(self, message: Transfer, receivers: Sequence[Node], peers: list[str], next_step: int) -> None:
        self.message = message
        self.peers = peers
        """Members by rank, the trainer first."""
        self.next_step = next_step
        self.expires_s = 0.0
        self.unreported = set(peers)
        """Members whose side of the transfer has neither ended nor failed."""
        self.swapped = {node.peer for node in receivers if node.policy_version >= message.policy_version}
        """Rollouts that decode with the version."""
        self.swapping = set(peers[1:]) - self.swapped
        """Rollouts that do not decode with it yet."""
        self.failures: dict[str, str] = {}
        """Reason by peer, for each side that failed."""

    @property
    def has_arrived(self) -> bool:
        """True if the trainer sent all of it, and at least one connected rollout received all of it."""
        receivers = self.swapping | self.swapped
        return self.peers[0] not in self.failures and not receivers <= self.failures.keys()


class TransferBook:
    """Keeps the staged version, the ongoing transfer and the live version."""

    def __init__(self, deadline_s: float, *, swaps_at_once: bool = True) -> None:
        self._deadline_s = deadline_s
        self._swaps_at_once = swaps_at_once
        """Rollouts swap without waiting for generations to finish, so the deadline covers the swap too."""
        self._last_group = 0
        self._kept: tuple[int, list[str]] | None = None
        """Number and members of the transfer group to reuse; None forms a new one."""
        self._staged: Publishing | None = None
        self._num_failures = 0
        self._failed_alone: Counter[str] = Counter()
        """Failed transfers by rollout's peer since it last was up to date, without those that failed for all."""
        self.ongoing: OngoingTransfer | None = None
        self.live_version = -1

    @property
    def staged_version(self) -> int:
        """Version the trainer has ready; -1 if none."""
        return self._staged.policy_version if self._staged else -1

    def stage(self, message: Publishing) -> None:
        self._staged = message
        self._num_failures = 0

    def unstage(self) -> None:
        """The trainer is gone, and the version it had ready with it."""
        self._staged = None

    @property
    def limit_s(self) -> float:
        """Seconds until a member that has not reported is lost: members give up by themselves at ``deadline_s``."""
        return 2 * self._deadline_s

    def start(self, nodes: NodeBook, now_s: float) -> OngoingTransfer | None:
        """
        Start the next transfer, if one is due: a new version to all rollouts, or the live one to one that lacks it.

        Returns None while a transfer is ongoing, and while a resumed trainer repeats steps behind the live version.
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
        if (ongoing := self.ongoing) is None or ongoing.message.transfer_group != transfer_group:
            return
        ongoing.unreported.discard(peer)
        if failure:
            ongoing.failures[peer] = failure
            self._kept = None if ongoing.message.keep else self._kept

    def live(self, peer: str, policy_version: int) -> None:
        if (ongoing := self.ongoing) and peer in ongoing.swapping and policy_version >= ongoing.message.policy_version:
            ongoing.swapping.discard(peer)
            ongoing.swapped.add(peer)

    def left(self, peer: str, name: str) -> None:
        """A node is gone: a transfer group it was in is not reused."""
        self._failed_alone.pop(peer, None)
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
        """Peers of rollouts to declare lost: `MAX_FAILURES` transfers to them failed."""
        return [peer for peer, failures in self._failed_alone.items() if failures >= MAX_FAILURES]

    def extend(self, seconds: float) -> None:
        """Push the deadline back, after ``seconds`` in which no report could be heard."""
        if self.ongoing:
            self.ongoing.expires_s += seconds

    def expired(self, now_s: float, held: Collection[str]) -> list[str]:
        """Peers of members to declare lost: they neither met the deadline nor are ``held``."""
        if (ongoing := self.ongoing) is None:
            return []
        if not ongoing.unreported and ongoing.swapping.intersection(held):
            ongoing.expires_s = now_s + self.limit_s  # The swap's time starts at the release.
        if now_s < ongoing.expires_s:
            return []
        return sorted(ongoing.unreported or (ongoing.swapping if self._swaps_at_once else ()))

    def conclude(self, held: Collection[str]) -> OngoingTransfer | None:
        """
        End the ongoing transfer if it is complete. Returns it if rollouts decode with its version now, else None.

        A failed transfer is forgotten, and `start` makes another with the members of that time. After a transfer that
        failed for some rollouts only, these lack the version as joiners do. Nodes ``held`` for an evaluation are not
        waited for; if all rollouts are held, the first one released makes the version live. Raises `RunFailed` after
        `MAX_FAILURES` failed transfers of this version.
        """
        if (ongoing := self.ongoing) is None or ongoing.unreported:
            return None
        if ongoing.failures:
            if not ongoing.has_arrived:
                self.ongoing = None
                self._count_failure(ongoing)
                return None
            failed_alone = ongoing.swapping & ongoing.failures.keys()
            ongoing.swapping -= failed_alone
            self._failed_alone.update(failed_alone)
        if len(ongoing.swapping) > len(held):
            return None  # Most calls end here while many rollouts swap, in constant time.
        if ongoing.swapping.difference(held) or (ongoing.swapping and not ongoing.swapped):
            return None
        self.ongoing = None
        if not ongoing.swapped:
            return None  # All receivers were lost after the transfer: the next rollout to join gets the version anew.
        for peer in ongoing.swapped:
            self._failed_alone.pop(peer, None)
        self.live_version = max(self.live_version, ongoing.message.policy_version)
        return ongoing

    def _count_failure(self, ongoing: OngoingTransfer) -> None:
        if not ongoing.message.keep:
            self._failed_alone[ongoing.peers[1]] += 1
            return
        self._num_failures += 1
        if self._num_failures >= MAX_FAILURES:
            raise RunFailed(
                f"version {ongoing.message.policy_version} could not be published in {MAX_FAILURES} tries: "
                f"{'; '.join(ongoing.failures.values())}"
            )

    def _joiner(self, rollouts: Sequence[Node], version: int) -> list[Node]:
        """[<= 1] Rollout to bring up to date next: the one with the fewest failures."""
        lacking = [node for node in rollouts if node.received_version < version]
        able = [node for node in lacking if self._failed_alone[node.peer] < MAX_FAILURES]
        return sorted(able, key=lambda node: self._failed_alone[node.peer])[:1]

    def _group_for(self, peers: list[str], keep: bool) -> int:
        if keep and self._kept and self._kept[1] == peers:
            return self._kept[0]
        self._last_group += 1
        if keep:
            self._kept = (self._last_group, peers)
        return self._last_group
