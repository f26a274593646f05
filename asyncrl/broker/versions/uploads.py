"""
Versions at the spool, for rollouts that are in no collective.

    such a rollout is connected ─▶ Upload(v) to the trainer ─▶ Uploaded(v) ─▶ Transfer(v) without members, to each
                                                                                └▶ Transferred, Live: it samples with v

One version is uploaded at a time, always the newest that is staged; each rollout fetches one at a time. Neither holds
up a transfer: a version is live when the members of the collective have it. If there are none, the first of these
rollouts that decodes with a version makes it live.
"""

from collections import Counter

from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.versions.transfers import MAX_FAILURES
from asyncrl.errors import RunFailed
from asyncrl.messages.weights import Publishing, Transfer, Upload, Uploaded

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
        """Raises `RunFailed` after `MAX_FAILURES` failed uploads in a row."""
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
        """A rollout has fetched a version, or failed to."""
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

    def left(self, node: Node, nodes: NodeBook, live_version: int) -> None:
        """
        A node is gone.

        The next trainer may publish other weights under numbers beyond the live one: rollouts fetch these again.
        """
        self._failures.pop(node.peer, None)
        self._fetch_not_before_s.pop(node.peer, None)
        if node.role == "trainer":
            self.stored_version, self._uploading, self._num_failures = -1, None, 0
            for fetcher in nodes.fetchers():
                fetcher.received_version = min(fetcher.received_version, live_version)
