"""
Open leases (which node samples which indices, and until when), their terms, and the groups that wait for a lease.

Pure bookkeeping: callers pass the time and act on the returned leases. Leases are soft state: a restarted broker knows
only those its nodes report, and its lease ids are higher than all earlier ones, so that late results are recognized.
"""

import heapq
from collections.abc import Iterable
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.broker.groups.group import Group, SlotState
from asyncrl.config.config import Config
from asyncrl.messages.rollout import Lease, ResumePoint
from asyncrl.messages.spool import Permit
from asyncrl.messages.trajectory import Sampling, Unit
from asyncrl.messages.words import Split


class OpenLease(Struct, eq=False, gc=False):
    """Indices of one group leased to one node. `asyncrl.messages.rollout.Lease` is the message that grants them."""

    lease_id: int
    node: str
    group_id: int
    split: Split
    open: tuple[int, ...]
    """Indices not yet settled, ascending."""
    deadline_s: float
    granted_s: float = 0.0

    def __repr__(self) -> str:
        return f"<Lease {self.lease_id & 0xFFFFFFFF} {self.node} group={self.group_id} open={list(self.open)}>"


class LeaseBook:
    """All open leases. `expire`, `revoke`, `suspend` and `cancel` remove leases and return them."""

    def __init__(self, broker_term: int, lease_s: float) -> None:
        self._broker_term = broker_term
        self._next_id = (broker_term << 32) + 1
        self._lease_s = lease_s
        self._open: dict[int, OpenLease] = {}
        self._of_node: dict[str, dict[int, OpenLease]] = {}
        self._of_group: dict[tuple[int, Split], tuple[OpenLease, ...]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def next_id(self) -> int:
        """Next lease id: a fencing number, higher than every earlier one of the run."""
        lease_id = self._next_id
        self._next_id += 1
        return lease_id

    def was_issued(self, lease_id: int) -> bool:
        """True for every number that a broker of this run has given out; those of earlier terms are not all known."""
        return 0 < lease_id < self._next_id

    def is_current_term(self, lease_id: int) -> bool:
        """True if this broker made the lease id, and not an earlier one of the run."""
        return lease_id >> 32 == self._broker_term

    def grant(self, node: str, group_id: int, split: Split, indices: list[int], now_s: float) -> OpenLease:
        return self._add(
            OpenLease(self.next_id(), node, group_id, split, tuple(sorted(indices)), now_s + self._lease_s, now_s)
        )

    def adopt(self, lease_id: int, node: str, unit: Unit, now_s: float) -> None:
        """Add one more unit to a lease that ``node`` was granted in an earlier session."""
        if (lease := self._open.get(lease_id)) and lease.node == node:
            lease.open = tuple(sorted({*lease.open, unit.index}))
        else:
            self._add(OpenLease(lease_id, node, unit.group_id, unit.split, (unit.index,), now_s + self._lease_s, now_s))

    def settle(self, lease_id: int, index: int) -> None:
        """Close one index of a lease, with a result or a failure. The lease ends with its last index."""
        if lease := self._open.get(lease_id):
            lease.open = tuple([other for other in lease.open if other != index])
            if not lease.open:
                self._remove([lease])

    def holder(self, lease_id: int) -> str:
        """Peer of the node that holds an open lease; empty if it is not open."""
        return lease.node if (lease := self._open.get(lease_id)) else ""

    def get(self, lease_id: int) -> OpenLease | None:
        return self._open.get(lease_id)

    def older(self, than_s: float, now_s: float) -> list[OpenLease]:
        """Training leases that have been open for more than ``than_s``, the oldest first."""
        old = takewhile(lambda lease: now_s - lease.granted_s > than_s, self._open.values())
        return [lease for lease in old if lease.split == "train"]

    def take_back(self, lease: OpenLease) -> None:
        self._remove([lease])

    def of_node(self, node: str) -> list[OpenLease]:
        """Open leases of one node, by its peer."""
        return list(self._of_node.get(node, {}).values())

    def renew(self, node: str, now_s: float) -> None:
        for lease in self._of_node.get(node, {}).values():
            lease.deadline_s = now_s + self._lease_s

    def extend(self, seconds: float) -> None:
        """Push all times back, after ``seconds`` in which no node could be heard."""
        for lease in self._open.values():
            lease.deadline_s += seconds
            lease.granted_s += seconds

    def expire(self, now_s: float) -> list[OpenLease]:
        return self._remove([lease for lease in self._open.values() if lease.deadline_s <= now_s])

    def revoke(self, node: str) -> list[OpenLease]:
        return self._remove(list(self._of_node.get(node, {}).values()))

    def suspend(self, node: str, split: Split) -> list[OpenLease]:
        """Remove the leases of one split of a node that is silent or makes no progress."""
        return self._remove([lease for lease in self._of_node.get(node, {}).values() if lease.split == split])

    def cancel(self, group_id: int, split: Split) -> list[OpenLease]:
        return self._remove(self._of_group.get((group_id, split), ()))

    def _add(self, lease: OpenLease) -> OpenLease:
        key = lease.group_id, lease.split
        self._open[lease.lease_id] = lease
        self._of_node.setdefault(lease.node, {})[lease.lease_id] = lease
        self._of_group[key] = (*self._of_group.get(key, ()), lease)
        return lease

    def _remove(self, leases: Iterable[OpenLease]) -> list[OpenLease]:
        taken = list(leases)
        for lease in taken:
            del self._open[lease.lease_id]
            held = self._of_node[lease.node]
            del held[lease.lease_id]
            if not held:
                del self._of_node[lease.node]
            key = lease.group_id, lease.split
            others = tuple([other for other in self._of_group.pop(key) if other is not lease])
            if others:
                self._of_group[key] = others
        return taken


# ── lease terms ───────────────────────────────────────────────────────────────────────────────
# Contents of a `Lease` message: the prompt, the sampling parameters and the seed.


def lease_message(
    config: Config,
    group: Group,
    lease: OpenLease,
    permit: Permit = Permit(),  # noqa: B008  immutable
) -> Lease:
    training, is_evaluation = config.sampling, group.split == "held_out"
    is_seeded = is_evaluation or training.seeded
    return Lease(
        lease_id=lease.lease_id,
        group_id=group.group_id,
        indices=list(lease.open),
        split=group.split,
        prompt=group.prompt,
        sampling=_sampling(config, group),
        seed=sampling_seed(config.run.seed, group.group_id, group.size) if is_seeded else None,
        max_prompt_tokens=config.data.max_prompt_tokens,
        expires_in_s=config.schedule.lease_s,
        truncation=config.data.truncation,
        greedy=[index for index in lease.open if index >= group.size - group.num_greedy],
        permit=permit,
        resume_from=[ResumePoint(index, ref) for index in lease.open if (ref := group.slots[index].ref)],
    )


def _sampling(config: Config, group: Group) -> Sampling:
    """Sampling of a group's trajectories; of those for training, with the masks and routes to record."""
    if group.split == "held_out":
        sampling = config.evaluation.sampling(config.sampling)
    else:
        sampling = replace(config.sampling.sampling(), replay_routes=config.rollout.replay_routes)
    return replace(sampling, max_tokens=group.max_tokens or sampling.max_tokens)


def sampling_seed(run_seed: int, group_id: int, group_size: int) -> int:
    """Seed of index 0 of a group; index i uses ``+ i``. Distinct for every trajectory of a split, below 2**63."""
    return ((run_seed << 40) + group_id * group_size) & (2**63 - 1)


# ── waiting ───────────────────────────────────────────────────────────────────────────────────
# Queue of groups with missing trajectories, oldest first: lost trajectories are leased before fresh groups.


class WaitingGroups:
    """Holds each group at most once. A group whose missing trajectories arrived late leaves by itself."""

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        self._groups: dict[int, Group] = {}
        self._ids: list[int] = []
        for group in groups:
            self.add(group)

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: Group) -> None:
        if group.group_id not in self._groups:
            self._groups[group.group_id] = group
            heapq.heappush(self._ids, group.group_id)

    def discard(self, group_id: int) -> None:
        self._groups.pop(group_id, None)

    def first(self) -> Group | None:
        """Oldest group with a missing trajectory; None if there is none."""
        while self._ids:
            group = self._groups.get(self._ids[0])
            if group and group.indices(SlotState.MISSING):
                return group
            self._groups.pop(heapq.heappop(self._ids), None)
        return None
