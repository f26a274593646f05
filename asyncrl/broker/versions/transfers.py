"""
Weight transfers: the live version, the members of each transfer (one at a time), and uploads to spools.

    Publishing(v) ─▶ Transfer to trainer and rollouts ─▶ Transferred, Live, Live ─▶ v is live
    a rollout joins ─▶ Transfer of the pair (trainer, joiner), so that no other node waits
    transfers of a pair fail too often ─▶ the joiner is given up, and the run goes on
    a transfer fails for some rollouts only ─▶ the version is live, and these rollouts get it again as joiners do
    a member is lost, fails or falls silent, and nothing moves any more ─▶ Abort to those that wait for it
    the trainer is lost ─▶ the next one starts at its checkpoint; no transfer until it is at the live version again

A silent member alone does not end a transfer: the event loop of a healthy node may be busy while its weights arrive.
An abort needs a silent, failed or lost member, a while without any bucket sent, and, if the member is only silent,
other rollouts that wait. The next try goes without the silent node, which gets the version as joiners do once it is
heard. Where an abort would end engines, or only silent nodes are left, a silent node is waited for until it is lost.

A transfer group is a process group, kept from one transfer to the next. A transfer with other members, or after one
that failed, forms a new group. Late members are named and declared lost; the others go on.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.errors import RunFailed
from asyncrl.messages.weights import Abort, Publishing, Transfer, Upload, Uploaded

MAX_FAILURES = 5
"""Failed transfers of one version that end the run; failed transfers to one rollout that end this rollout."""
VERSIONS_AHEAD = 2
"""Versions that a trainer may have offered beyond the live one, as far as a restarted broker can know."""


class OngoingTransfer:
    """The transfer of one version to one or more rollouts, until it is concluded."""

    def __init__(self, message: Transfer, receivers: Sequence[Node], peers: list[str], next_step: int) -> None:
        self.message = message
        self.peers = peers
        """Members by rank, the trainer first."""
        self.next_step = next_step
        self.expires_s = 0.0
        self.advanced_s = 0.0
        """Time of the last sign that it goes on: its start, a bucket sent, a report."""
        self.num_buckets = 0
        """Buckets sent, by the last beat of the trainer."""
        self.is_patient = False
        """True if silent members are waited for until they are lost."""
        self.had_silent = False
        """True if it was given up for silent members."""
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
    """
    Keeps the staged version, the ongoing transfer and the live version.

    Args:
        stall_s: Seconds without a bucket or a report after which a transfer that lacks a member is given up.
        is_patient: Receivers cannot survive an aborted transfer, so silent ones are waited for until they are lost.
    """

    def __init__(
        self, deadline_s: float, stall_s: float, *, swaps_at_once: bool = True, is_patient: bool = False
    ) -> None:
        self._deadline_s = deadline_s
        self._stall_s = stall_s
        self._is_patient = is_patient
        self._swaps_at_once = swaps_at_once
        """Rollouts swap without waiting for generations to finish, so the deadline covers the swap too."""
        self._last_group = 0
        self._kept: tuple[int, list[str]] | None = None
        """Number and members of the transfer group to reuse; None forms a new one."""
        self.staged: Publishing | None = None
        """Message with the version that the trainer has ready to send; None if it has none."""
        self._num_failures = 0
        self._failed_alone: Counter[str] = Counter()
        """Failed transfers by rollout's peer since it last was up to date, without those that failed for all."""
        self._left_behind: set[str] = set()
        """Peers of rollouts that fell silent in a transfer since a version last went live."""
        self.ongoing: OngoingTransfer | None = None
        self.live_version = -1
        self.newest_version = -1
        """Newest version that any rollout may ever have decoded with."""

    @property
    def staged_version(self) -> int:
        """Version the trainer has ready; -1 if none."""
        return self.staged.policy_version if self.staged else -1

    @property
    def is_at_rest(self) -> bool:
        """True if no version is on its way, or waits to be sent."""
        return self.ongoing is None and self.staged_version <= self.live_version

    def stage(self, message: Publishing) -> None:
        self.staged = message
        self.newest_version = max(self.newest_version, message.policy_version)
        self._num_failures = 0

    def restore(self, live_version: int) -> None:
        """Take ``live_version`` as live: an earlier life of the broker recorded it."""
        self.live_version = live_version
        self.newest_version = live_version + VERSIONS_AHEAD

    def went_live(self, policy_version: int) -> None:
        """Rollouts outside the collective decode with this version, and there are no others."""
        self.live_version = max(self.live_version, policy_version)

    @property
    def limit_s(self) -> float:
        """Seconds until a member that has not reported is lost: members give up by themselves at ``deadline_s``."""
        return 2 * self._deadline_s

    def start(self, nodes: NodeBook, now_s: float) -> OngoingTransfer | None:
        """
        Start the next transfer, if one is due: a new version to all rollouts, or the live one to one that lacks it.

        Returns None while a transfer is ongoing, while a resumed trainer repeats steps behind the live version, and
        while only nodes that are silent, stalled or leaving could take part.
        """
        if self.ongoing or self.staged is None or (trainer := nodes.trainer()) is None or trainer.is_quiet:
            return None
        version = self.staged.policy_version
        if version < self.live_version:
            return None
        keep = version > self.live_version
        # One that leaves would take the transfer along, and fail it for all.
        able = [node for node in nodes.members() if not (node.is_away or node.is_draining)]
        if keep:  # Those that did not fall silent in an earlier try, or all if there are none.
            receivers = [node for node in able if node.peer not in self._left_behind] or able
        else:
            receivers = self._joiner(able, version)
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
        for node in receivers:
            node.transfer_group = message.transfer_group
        self.ongoing = OngoingTransfer(message, receivers, peers, self.staged.next_step)
        self.ongoing.expires_s = now_s + self.limit_s
        self.ongoing.advanced_s = now_s
        self.ongoing.num_buckets = trainer.beat.buckets
        self.ongoing.is_patient = self._is_patient or not self._left_behind.isdisjoint(peers)
        return self.ongoing

    def sent(self, num_buckets: int, now_s: float) -> None:
        """Note the number of buckets in a beat of the trainer: the transfer goes on while the number changes."""
        if (ongoing := self.ongoing) and ongoing.num_buckets != num_buckets:
            ongoing.num_buckets, ongoing.advanced_s = num_buckets, now_s

    def reported(self, peer: str, transfer_group: int, now_s: float, failure: str = "") -> None:
        if (ongoing := self.ongoing) is None or ongoing.message.transfer_group != transfer_group:
            return
        ongoing.unreported.discard(peer)
        ongoing.advanced_s = now_s
        if failure:
            ongoing.failures[peer] = failure
            self._kept = None if ongoing.message.keep else self._kept

    def live(self, peer: str, policy_version: int) -> None:
        if (ongoing := self.ongoing) and peer in ongoing.swapping and policy_version >= ongoing.message.policy_version:
            ongoing.swapping.discard(peer)
            ongoing.swapped.add(peer)

    def departed(self, peer: str, name: str) -> None:
        """A node is gone: a transfer group it was in is not reused."""
        self._failed_alone.pop(peer, None)
        self._left_behind.discard(peer)
        if self._kept and peer in self._kept[1]:
            self._kept = None
        if (ongoing := self.ongoing) is None or peer not in ongoing.peers:
            return
        if peer in ongoing.unreported:
            ongoing.failures[peer] = f"{name} was lost"
        ongoing.unreported.discard(peer)
        ongoing.swapping.discard(peer)
        ongoing.swapped.discard(peer)

    def abort(self, nodes: NodeBook, now_s: float) -> tuple[Abort, list[str]] | None:
        """
        Give up a transfer that a member keeps from ending, or give up the silent members that have yet to swap.

        Returns:
            The message for the members that have not reported, and their peers; None if no member is to be told.
        """
        if (ongoing := self.ongoing) is None or now_s - ongoing.advanced_s < self._stall_s:
            return None
        silent = self._silent(ongoing, nodes)
        ongoing.swapping -= silent - ongoing.unreported
        if not ongoing.unreported or not (silent or ongoing.failures):
            return None
        unreported = {peer: node.name for peer in sorted(ongoing.unreported) if (node := nodes.get(peer))}
        ongoing.failures |= {peer: f"{unreported[peer]} was silent" for peer in silent & ongoing.unreported}
        cause = "; ".join(ongoing.failures.values())
        ongoing.failures |= {peer: f"{name} gave up" for peer, name in unreported.items() if peer not in silent}
        ongoing.unreported.clear()
        ongoing.had_silent = bool(silent)
        if ongoing.message.keep:
            self._left_behind |= silent
            self._kept = None
        return Abort(ongoing.message.transfer_group, cause), list(unreported)

    def given_up(self) -> list[str]:
        """Peers of rollouts to declare lost: `MAX_FAILURES` transfers to them failed."""
        return [peer for peer, failures in self._failed_alone.items() if failures >= MAX_FAILURES]

    def extend(self, seconds: float) -> None:
        """Push the deadline back, after ``seconds`` in which no report could be heard."""
        if self.ongoing:
            self.ongoing.expires_s += seconds
            self.ongoing.advanced_s += seconds

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
        if ongoing.message.keep:
            self._left_behind.clear()
        self.live_version = max(self.live_version, ongoing.message.policy_version)
        return ongoing

    def _count_failure(self, ongoing: OngoingTransfer) -> None:
        if not ongoing.message.keep:
            self._failed_alone[ongoing.peers[1]] += 1
            return
        if ongoing.had_silent:
            return  # No fault of the version; the next try goes without the silent members.
        self._num_failures += 1
        if self._num_failures >= MAX_FAILURES:
            raise RunFailed(
                f"version {ongoing.message.policy_version} could not be published in {MAX_FAILURES} tries: "
                f"{'; '.join(ongoing.failures.values())}"
            )

    def _silent(self, ongoing: OngoingTransfer, nodes: NodeBook) -> set[str]:
        """Peers of receivers that are away, if the transfer waits for them, and so does a rollout that is not."""
        waited_for = ongoing.unreported | ongoing.swapping
        silent = {peer for peer in waited_for if (node := nodes.get(peer)) and node.is_away and node.role == "rollout"}
        if not silent or ongoing.is_patient:
            return set()
        others = [node for node in nodes.members() if not node.is_away]
        if ongoing.message.keep:
            is_awaited = any(node.peer in ongoing.peers for node in others)
        else:
            is_awaited = any(node.received_version < self.staged_version for node in others)
        return silent if is_awaited else set()

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


# ── uploads ───────────────────────────────────────────────────────────────────────────────────
# Versions at the spool, for rollouts that are in no collective.
#
#   such a rollout is connected ─▶ Upload(v) to the trainer ─▶ Uploaded(v) ─▶ Transfer(v) without members, to each
#                                                                               └▶ Transferred, Live: it samples with v
#
# One version is uploaded at a time, always the newest that is staged; each rollout fetches one at a time. Neither
# holds up a transfer: a version is live when the members of the collective have it. If there are none, the first of
# these rollouts that decodes with a version makes it live.

NO_GROUP = 0
"""``transfer_group`` of a transfer without members; numbers of groups begin at 1."""
RETRY_S = 1.0
"""Seconds from a failed upload or fetch to the next try."""


class UploadBook:
    """Keeps which version is at the spool, which is on its way there, and who fetches."""

    def __init__(self) -> None:
        self.stored_version = -1
        """Newest version that the connected trainer has uploaded; -1 if none."""
        self._uploading: int | None = None
        self._num_failures = 0
        self._upload_not_before_s = 0.0
        self._next_steps: dict[int, int] = {}
        """First step after each uploaded version that was not live then."""
        self._failures: Counter[str] = Counter()
        """Failed fetches in a row by rollout's peer."""
        self._fetch_not_before_s: dict[str, float] = {}

    def upload(self, nodes: NodeBook, staged: Publishing | None, live_version: int, now_s: float) -> Upload | None:
        """The next upload, if one is due. None while a resumed trainer repeats steps behind the live version."""
        if staged is None or self._uploading is not None or now_s < self._upload_not_before_s:
            return None
        version = staged.policy_version
        if version <= self.stored_version or version < live_version or not nodes.fetchers():
            return None
        self._uploading = version
        self._next_steps = {number: step for number, step in self._next_steps.items() if number > live_version}
        self._next_steps[version] = staged.next_step
        return Upload(version)

    def uploaded(self, message: Uploaded, now_s: float) -> None:
        """Note the end of an upload; raises `RunFailed` after `MAX_FAILURES` failures in a row."""
        if message.policy_version != self._uploading:
            return  # Of an earlier session of the trainer.
        self._uploading = None
        if not message.problem:
            self.stored_version, self._num_failures = message.policy_version, 0
            return
        self._num_failures += 1
        self._upload_not_before_s = now_s + RETRY_S
        if self._num_failures >= MAX_FAILURES:
            raise RunFailed(
                f"version {message.policy_version} could not be stored at the spool in {MAX_FAILURES} tries: "
                f"{message.problem}"
            )

    def fetches(self, nodes: NodeBook, now_s: float) -> list[tuple[Node, Transfer]]:
        """Rollouts that are to fetch the stored version now, each with its request."""
        version = self.stored_version
        able = [node for node in nodes.fetchers() if not node.is_fetching and not node.is_away]
        lacking = [node for node in able if node.received_version < version]
        due = [node for node in lacking if now_s >= self._fetch_not_before_s.get(node.peer, now_s)]
        for node in due:
            node.is_fetching = True
        return [(node, Transfer(NO_GROUP, version, members=[], keep=False, deadline_s=0.0)) for node in due]

    def fetched(self, node: Node, now_s: float, *, failed: bool) -> None:
        """Note that a rollout has fetched a stored version, or failed to."""
        node.is_fetching = False
        if failed:
            self._failures[node.peer] += 1
            self._fetch_not_before_s[node.peer] = now_s + RETRY_S
        else:
            self._failures.pop(node.peer, None)

    def live(self, nodes: NodeBook, live_version: int) -> tuple[int, int] | None:
        """The version that rollouts outside the collective make live, and its next step; None if they make none."""
        version = max((node.policy_version for node in nodes.fetchers()), default=-1)
        if version <= live_version or version not in self._next_steps or nodes.members():
            return None
        return version, self._next_steps[version]

    def given_up(self) -> list[str]:
        """Peers of rollouts to declare lost: they failed to fetch `MAX_FAILURES` times in a row."""
        return [peer for peer, failures in self._failures.items() if failures >= MAX_FAILURES]

    def departed(self, node: Node, nodes: NodeBook, live_version: int) -> None:
        """
        Forget a node that is gone, and the upload or fetch that it was part of.

        The next trainer may publish other weights under numbers beyond the live one: rollouts fetch these again.
        """
        self._failures.pop(node.peer, None)
        self._fetch_not_before_s.pop(node.peer, None)
        if node.role == "trainer":
            self.stored_version, self._uploading, self._num_failures = -1, None, 0
            for fetcher in nodes.fetchers():
                fetcher.received_version = min(fetcher.received_version, live_version)
