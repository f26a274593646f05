"""
A trajectory between its nodes: stored by a rollout, graded by a reward node, rewarded or failed, each in bounded time.

    Stored ─▶ Result ─▶ queue ─▶ Grade ─▶ reward node ─▶ Scored ─▶ Rewarded
                          ▲                   ├─▶ Failed ─▶ graded again, or given up
                          └───────────────────│─────┘
    leased again ◀─ Refused ◀─ damaged payload ─┘
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.broker.failures import FailureBook
from asyncrl.broker.groups.filtering import OVERLONG
from asyncrl.broker.groups.group import OPEN, Group, GroupBook, Slot
from asyncrl.broker.leases.dispatcher import CreditBook, Dispatcher
from asyncrl.broker.leases.grading import GradeBook, Queued
from asyncrl.broker.leases.lease import OpenLease
from asyncrl.broker.ledger.records import Duplicate, FailedAttempt, Refused, Reissued, Result, Rewarded
from asyncrl.broker.nodes.faults import FaultBook
from asyncrl.broker.nodes.node import Node, NodeBook, name_of
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.versions.transfers import TransferBook
from asyncrl.config.config import Config
from asyncrl.errors import BrokenInvariant
from asyncrl.messages import verdict_limits
from asyncrl.messages.reward import Grade, GradeItem, ScoredItem
from asyncrl.messages.rollout import Failed, Leased, Settled, StartedOver
from asyncrl.messages.sound import summary_problem_of
from asyncrl.messages.spool import Stored, StoredItem
from asyncrl.messages.trajectory import TrajectoryLimits, Unit
from asyncrl.messages.words import Role, Split
from asyncrl.wire.files import max_verdict_bytes, verdict_bytes

# ── durations ─────────────────────────────────────────────────────────────────────────────────
# Durations of work, so that a node which keeps its own far longer than others need is noticed, whatever it says.
#
# Heartbeats tell of progress, but whoever sends them can be wrong. What counts is that work comes back. Lengths of
# completions have long tails, so they are judged by the token: no honest one takes longer than the longest there may
# be, at the slowest pace of late.

RECENT = 64
"""Number of the last reports of work among which the slowest is looked for."""
LEAST_KNOWN = 16
"""Reports below which the limit is longer in proportion: the slowest work may still come."""
TIMES: dict[Role, float] = {"rollout": 3.0, "reward": 20.0}
"""Work is overdue after so many times the slowest pace. Verdicts on the same data differ far more than tokens."""
LEAST_S: dict[Role, float] = {"rollout": 60.0, "reward": 5.0}
"""Least seconds after which work may be overdue. A verdict has a time limit of its own."""
LEAST_IDLE_S = 5.0
"""Least seconds after which work is overdue at a rollout whose heartbeats name no activity for as long."""
UNKNOWN_S = 60.0
"""Least seconds after which work is overdue, idle rollouts and reward nodes having returned none yet."""


class Durations:
    """Durations of the last work that each role returned, and the limits that follow for work at hand."""

    def __init__(self) -> None:
        self._recent: dict[Role, deque[float]] = {}
        """Seconds for each unit, which is a token or a verdict."""

    def took(self, role: Role, unit_s: float) -> None:
        """Note that work came back together; the slowest piece took ``unit_s`` seconds a unit (token or verdict)."""
        if (recent := self._recent.get(role)) is None:
            recent = self._recent[role] = deque(maxlen=RECENT)
        recent.append(unit_s)

    def limit_s(self, role: Role, most_units: int = 1, least_s: float = 0.0, *, is_idle: bool = False) -> float:
        """
        Seconds after which work of this role is overdue.

        Infinite for a rollout that says it works while no completion has come back yet: the first may take long.
        """
        if not (recent := self._recent.get(role)):
            return max(UNKNOWN_S, least_s) if is_idle or role == "reward" else math.inf
        times = TIMES[role] * max(1.0, LEAST_KNOWN / len(recent))
        least_s = max(LEAST_IDLE_S if is_idle else LEAST_S[role], least_s)
        return max(least_s, times * max(recent) * most_units)


# ── trajectories ──────────────────────────────────────────────────────────────────────────────

MOST_DOUBTS = 4
"""
Reward nodes that must call a payload damaged, if so many can be asked, before that is held against who stored it: a run
seldom has as many that are wrong at once, and one that can grade it shows that they are.
"""
TIMEOUTS = 4.0
"""Time limits of a reward function that a verdict may take, waiting for others included."""


class _Done(Struct, gc=False):
    """Work done well according to one message."""

    num_stored: int = 0
    lease: OpenLease | None = None
    """Lease of the last trajectory in the message, which has ``num_tokens`` tokens."""
    num_tokens: int = 1
    num_graded: int = 0
    asked_s: float = 0.0
    """Time at which the last of the verdicts in the message was asked for."""
    num_read: dict[str, int] = {}
    """Graded trajectories by their spool."""


class Trajectories:
    """Takes in results, rewards and failures, and sends stored trajectories to reward nodes."""

    def __init__(
        self,
        config: Config,
        groups: GroupBook,
        *,
        dispatcher: Dispatcher,
        grading: GradeBook,
        transfers: TransferBook,
        nodes: NodeBook,
        out: Outbox,
        failures: FailureBook,
        faults: FaultBook,
    ) -> None:
        self._config = config
        self._groups = groups
        self._dispatcher = dispatcher
        self._leases = dispatcher.leases
        self._grading = grading
        self._transfers = transfers
        self._out = out
        self._nodes = nodes
        self._failures = failures
        self._faults = faults
        splits: tuple[Split, ...] = get_args(Split)
        self._limits = {
            split: TrajectoryLimits(
                max_tokens=config.longest_written(split),
                max_prompt_tokens=config.data.max_prompt_tokens,
                max_turns=config.max_turns,
                seats=config.environment.seats,
            )
            for split in splits
        }
        self._durations = Durations()
        self._told: set[str] = set()
        """Reward nodes that keep work for too long, and of which that was told."""
        self._done = _Done()
        self.credits = CreditBook()
        self.vocab_size = 0
        """Size that the trainer told, or a rollout before it; 0 if none did."""

    def stored(self, message: Stored, spool: str) -> list[tuple[Unit, str]]:
        """
        Record what is on the disk of a ``spool``, and answer its sender once the record is on disk too.

        Returns:
            Units to give up, each with the reason, as `failed` does.
        """
        allows, items = self._dispatcher.permits.allows, list[StoredItem]()
        for item in message.items:
            if item.ref.spool == spool and allows(item.permit, item.lease_id, item.unit):
                items.append(item)
            else:
                self._not_permitted(item, message.node, spool)
        unfinished = [item for item in items if item.summary.finish_reason == "unfinished"]
        finished = [item for item in items if item.summary.finish_reason != "unfinished"]
        settled = Settled(_leased(finished), _leased(unfinished))
        self._out.send(f"{message.node}.{message.incarnation}", settled, once_durable=True)
        self._renew_limits()
        for item in unfinished:
            if not self._refused(item):
                self._dispatcher.progressed(item)
        return [(item.unit, reason) for item in finished if (reason := self._result(item))]

    def rewarded(self, item: ScoredItem, peer: str) -> Group | None:
        """
        Record a reward. Returns the trajectory's group.

        None if the reward is a duplicate or no longer wanted, or if ``peer`` was not asked for it.
        """
        group, slot = self._groups.find(item.unit)
        if group is None or slot is None or slot.lease_id != item.lease_id:
            return None
        if (asked_s := self._grading.settle(item.unit, peer)) is None:
            return None
        if slot.doubted_by:
            self._blame(slot.doubted_by, "reward", "it called a payload damaged that another node could grade")
            slot.doubted_by = ()
        slot.score(item.reward, item.metrics, item.answer)
        done = self._done
        done.num_graded += 1
        done.asked_s = asked_s
        if slot.ref:
            done.num_read[slot.ref.spool] = done.num_read.get(slot.ref.spool, 0) + 1
        self._out.record(Rewarded(item.unit, item.reward, item.metrics, group.num_restarts, slot.num_refused))
        return group

    def judged_together(self, items: Iterable[ScoredItem]) -> Iterable[list[ScoredItem]]:
        """Sort verdicts into those that count together: on a group that is judged whole, and on each other one."""
        if not self._config.reward.group:
            return ([item] for item in items)
        together = dict[int | tuple[Unit, int], list[ScoredItem]]()
        for item in items:
            key = item.unit.group_id if item.unit.split == "train" else (item.unit, item.lease_id)
            together.setdefault(key, []).append(item)
        return together.values()

    def incomplete(self, items: Sequence[ScoredItem]) -> Failed | None:
        """Failure of verdicts on a part of a group that is judged whole; None if all are there, or none is wanted."""
        group = self._groups.group(items[0].unit)
        if not self._config.reward.group or group is None or group.split == "held_out":
            return None
        wanted = {(slot.unit, slot.lease_id) for slot in group.kept}
        found = wanted & {(item.unit, item.lease_id) for item in items}
        if not found or found == wanted:
            return None
        reason = f"verdicts on {len(found)} of {len(wanted)} trajectories, which reward.group judges together"
        return Failed(*min(found), "reward", reason, retryable=True, is_of_group=True)

    def count_attempts(self, sender: str, now_s: float) -> None:
        """Count what was done well according to one message: once for many trajectories, and not for each."""
        done = self._done
        if done.num_graded:
            self._failures.attempted("reward", done.num_graded)
            self._faults.attempted(name_of(sender), "reward", done.num_graded)
            self._durations.took("reward", now_s - done.asked_s)
            for spool, number in done.num_read.items():
                self._faults.attempted(spool, "spool", number)
            done.num_graded = 0
            done.num_read.clear()
        if done.num_stored:
            self._failures.attempted("rollout", done.num_stored)
            if lease := done.lease:
                self._faults.attempted(name_of(lease.node), "rollout", done.num_stored)
                self._durations.took("rollout", (now_s - lease.granted_s) / done.num_tokens)
            done.num_stored, done.lease = 0, None

    def started_over(self, message: StartedOver, peer: str) -> None:
        """A leased trajectory is sampled from the prompt again: forget the part on disk, and count it."""
        slot = self._groups.slot(message.unit)
        if slot and slot.is_leased_by(message.lease_id) and self._leases.holder(message.lease_id) == peer:
            slot.discard_progress()
            self._out.record(Reissued(message.unit, message.lease_id, "environment_lost", message.num_tokens))
            self._out.event("episode.started_over", group_id=message.unit.group_id, reason=message.reason)

    def failed(self, message: Failed, peer: str) -> str:
        """
        Record a failed attempt of ``peer``, and arrange the next one, on another node first.

        What one node finds final or damaged, another one that can work is asked about.

        Returns:
            Reason to give the trajectory up, after a last attempt; empty in all other cases.
        """
        unit, name = message.unit, name_of(peer)
        slot, group = self._failed_slot(message, peer), self._groups.group(unit)
        if slot is None or group is None:
            return ""
        is_of_reward = message.stage in ("reward", "payload")
        if message.stage == "payload" and message.is_unreachable:
            self._grading.add(slot)
            return ""
        is_first = not slot.failed_on
        slot.ask_others_first(name)
        has_other = is_first and self._nodes.has_other("reward" if is_of_reward else "rollout", slot.failed_on)
        if message.stage == "payload" and self._doubts(slot, name, message):
            return ""
        is_filtered = message.is_overlong and self._config.data.filter_overlong_prompts
        if message.is_overlong:
            slot.doubted_by = (*slot.doubted_by, name)
        elif message.stage != "payload":
            self._blame([name], "reward" if is_of_reward else "rollout", f"{message.stage}: {message.reason}")
        slot.attempts += 1
        is_final = not (message.retryable or has_other) or slot.attempts >= self._config.schedule.max_attempts
        row = group.row if unit.split == "held_out" else -1
        self._out.record(FailedAttempt(unit, message.stage, message.reason, slot.attempts, is_final, row))
        if not is_filtered:
            self._failures.count(message.stage, message.reason)
        if is_final:
            return OVERLONG if is_filtered else f"{message.stage}: {message.reason}"
        self._try_again(slot, message)
        return ""

    def _blame(self, names: Iterable[str], role: Role, cause: str) -> None:
        for name in filter(None, names):  # Nobody knows who sampled for an earlier life of the broker.
            self._faults.failed(name, role, cause)

    def _doubts(self, slot: Slot, name: str, message: Failed) -> bool:
        """True if another reward node is asked first whether a payload is damaged, as ``name`` says."""
        agrees = not slot.doubted_by or slot.doubted_at == message.at_fault
        if name not in slot.doubted_by:
            slot.doubted_by = (*slot.doubted_by, name)
        slot.doubted_at = message.at_fault if agrees else ""  # Those that disagree name nobody.
        if len(slot.doubted_by) < MOST_DOUBTS and self._nodes.has_other("reward", slot.failed_on):
            self._grading.add(slot)
            return True
        if slot.doubted_at:
            self._blame([slot.culprit(slot.doubted_at)], slot.doubted_at, message.reason)
        slot.doubted_by = ()
        return False

    def grade(self, now_s: float = 0.0) -> None:
        """Send stored trajectories to reward nodes while these have credits."""
        if not (waiting := self._grading.waiting):
            return
        aside = list[Queued]()
        while key := next((key for key in waiting if key not in aside) if aside else iter(waiting), None):
            least = self._grading.least(key)
            failed_on = {name for slot in least for name in slot.failed_on}
            avoided = self._nodes.to_avoid("reward", failed_on) if failed_on else ()
            node = self.credits.pick_node(len(least), without=avoided)
            if node is not None:
                self._grade(node, self._grading.assign(node.peer, node.credits, key, now_s))
            elif avoided:  # Others can be graded where this one has failed.
                aside.append(key)
            else:
                return

    def _grade(self, node: Node, slots: Sequence[Slot]) -> None:
        group = self._groups.group(slots[0].unit)
        if group is None:
            raise BrokenInvariant(f"{slots[0].unit} is queued for grading, but its group is not open")
        self.credits.spend(node, len(slots))
        items = []
        for slot in slots:
            if slot.ref is None:
                raise BrokenInvariant(f"{slot.unit} is queued for grading, but is not stored")
            slot.lease_id = self._leases.next_id()
            items.append(GradeItem(slot.unit, slot.lease_id, slot.ref, slot.summary))
        self._renew_limits()
        together = bool(self._config.reward.group) and group.split == "train"
        self._out.send(node.peer, Grade(group.prompt, items, self._limits[group.split], together))

    def take_back(self, now_s: float) -> None:
        """Give to others what a node has kept for far longer than they need; if there are none, tell of it."""
        verdict_s = self._durations.limit_s("reward", least_s=TIMEOUTS * self._config.verdict_s)
        kept = Counter[str]()
        for slot, peer in self._grading.older(verdict_s, now_s):
            if self._is_overdue(peer, "reward", verdict_s):
                self._grading.withdraw(slot)
                slot.ask_others_first(name_of(peer))
                self._grading.add(slot)
            else:
                kept[peer] += 1
        for peer in kept.keys() - self._told:
            self._out.event("grading.overdue", node=name_of(peer), trajectories=kept[peer], seconds=round(verdict_s))
        self._told = {*kept}
        most_tokens = self._config.longest_written("train")
        busy_s, idle_s = (self._durations.limit_s("rollout", most_tokens, is_idle=is_idle) for is_idle in (False, True))
        for lease in self._leases.older(idle_s, now_s):
            holder = self._nodes.get(lease.node)
            limit_s = idle_s if holder and holder.standstill.idle_s(now_s) >= LEAST_IDLE_S else busy_s
            if now_s - lease.granted_s > limit_s and self._is_overdue(lease.node, "rollout", limit_s):
                self._dispatcher.overdue(lease)

    def _is_overdue(self, peer: str, role: Role, limit_s: float) -> bool:
        """True, and a fault of the node, if another one can do its work."""
        name = name_of(peer)
        if not self._nodes.has_other(role, (name,)):
            return False
        if node := self._nodes.get(peer):
            node.overdue_limit = node.credit_limit
        self._blame([name], role, f"it kept work for more than {limit_s:.0f} s, which others do not need")
        return True

    def revoke(self, peer: str) -> None:
        """A node is gone: trajectories it was grading go back to the head of the queue."""
        self.credits.remove(peer)
        self._grading.revoke(peer)

    def _result(self, item: StoredItem) -> str:
        unit, lease = item.unit, self._leases.get(item.lease_id)
        holder = lease.node if lease else ""
        group, slot = self._groups.find(unit)
        if problem := self._refused(item):
            return self.failed(Failed(unit, item.lease_id, "rollout", problem, retryable=True), holder)
        is_outdated = slot is None or group is None or self._dispatcher.is_outdated(item, group, slot)
        if is_outdated and slot and group and slot.is_leased_by(item.lease_id):
            oldest = item.summary.oldest_version
            reason = f"impossible policy version: {oldest} as the oldest one, expected {group.min_version} or newer"
            return self.failed(Failed(unit, item.lease_id, "rollout", reason, retryable=True), holder)
        self._leases.settle(item.lease_id, unit.index)
        if slot is None or group is None or is_outdated or slot.state not in OPEN:
            # Its node may send one trajectory again, if the broker was restarted before it could answer.
            if slot is None or not slot.has_result_of(item.lease_id):
                self._out.record(Duplicate(unit, item.lease_id, item.summary.num_tokens))
            return ""
        if slot.doubted_by:
            self._blame(slot.doubted_by, "rollout", "it called a prompt too long that another node could sample")
        slot.store(item.ref, item.summary, item.lease_id, holder)
        done = self._done
        done.num_stored += 1
        if lease:
            done.lease, done.num_tokens = lease, item.summary.num_tokens
        self._out.record(Result(unit, item.lease_id, item.ref, item.summary, group.num_restarts, slot.num_refused))
        self._grading.add(slot)
        return ""

    def _not_permitted(self, item: StoredItem, node: str, spool: str) -> None:
        """Hold a report without a permit against the spool that sent it: spools check permits before they store."""
        problem = f"a trajectory of no lease of this run, stored for {node}"
        if item.ref.spool != spool:
            problem = f"{spool} reported a trajectory stored in {item.ref.spool}"
        self._failures.count("rollout", problem)
        self._blame([spool], "spool", problem)

    def _refused(self, item: StoredItem) -> str:
        """Reason to ignore a reported result (impossible by its lease or the limits); empty to believe it for now."""
        if self._leases.was_issued(item.lease_id):
            problem = summary_problem_of(item.summary, self._limits[item.unit.split])
        else:
            problem = "a trajectory of a lease that was never granted"
        if problem and not ((slot := self._groups.slot(item.unit)) and slot.is_leased_by(item.lease_id)):
            self._failures.count("rollout", problem)  # An attempt at no unit that is wanted.
        return problem

    def _failed_slot(self, message: Failed, peer: str) -> Slot | None:
        """Slot whose generation or grading by ``peer`` has failed; None if it has none that is still going on."""
        slot = self._groups.slot(message.unit)
        if message.stage in ("reward", "payload"):
            if slot is None or slot.lease_id != message.lease_id or self._grading.settle(slot.unit, peer) is None:
                return None
            self._grading.withdraw(slot)
            return slot
        if self._leases.holder(message.lease_id) != peer:
            return None
        self._leases.settle(message.lease_id, message.unit.index)
        return slot if slot and slot.is_leased_by(message.lease_id) else None

    def _try_again(self, slot: Slot, message: Failed) -> None:
        match message.stage:
            case "reward":
                self._grading.add(slot)
            case "payload":
                self._out.record(Refused(slot.unit, message.lease_id, message.reason, slot.num_tokens))
                self._dispatcher.refused(slot, message.lease_id)
            case _:
                self._dispatcher.failed(slot, message.lease_id)

    def _renew_limits(self) -> None:
        """Make the limits anew if a version was offered, or the vocabulary became known."""
        newest, vocab_size, known = self._transfers.newest_version, self.vocab_size, self._limits["train"]
        if known.newest_version != newest or known.vocab_size != vocab_size:
            for split, limits in self._limits.items():
                self._limits[split] = replace(limits, newest_version=newest, vocab_size=vocab_size)


def _leased(items: Iterable[StoredItem]) -> list[Leased]:
    return [Leased(item.unit, item.lease_id) for item in items]


# ── verdicts ──────────────────────────────────────────────────────────────────────────────────
# Verdicts within their limits: of a reward (`asyncrl.messages.verdict_limits`), and of the bytes that a step has room
# for.

LARGEST_BYTES = verdict_limits.MAX_METRICS * (verdict_limits.MAX_NAME_CHARS + 10) * 4
"""Bytes that the limits of a reward allow; only a step of many thousand trajectories allows less."""


class VerdictLimits:
    def __init__(self, config: Config) -> None:
        self._num_trajectories = config.trajectories_per_step
        self.max_bytes = max_verdict_bytes(config.trajectories_per_step)
        """Bytes of the metrics and the answer of one verdict."""

    def failure(self, item: ScoredItem) -> Failed | None:
        """Failure of a verdict that is beyond the limits; None if it is within."""
        if problem := verdict_limits.problem_of(item.reward, item.metrics, item.answer):
            return Failed(item.unit, item.lease_id, "reward", problem, retryable=True)
        if self.max_bytes < LARGEST_BYTES and (size := verdict_bytes(item)) > self.max_bytes:
            reason = (
                f"the verdict has {size} bytes of metrics and answer, but at most {self.max_bytes} are allowed where "
                f"a step has {self._num_trajectories} trajectories; return fewer or shorter ones"
            )
            return Failed(item.unit, item.lease_id, "reward", reason, retryable=False)
        return None
