"""Simulated rollout: exchanges the messages of a real one, but its completions are only lengths."""

from asyncrl.actor.message import Message
from asyncrl.messages.rollout import Cancelled, Lease, Offer, Settled
from asyncrl.messages.session import Ready
from asyncrl.messages.spool import StoredItem
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.weights import Live, Transfer, Transferred
from asyncrl.plan.simulated.cluster import NOWHERE, Cluster
from asyncrl.plan.simulated.engine import Finished, Job, SimulatedEngine
from asyncrl.plan.speeds import Line


class SimulatedRollout:
    """One replica. ``step_s`` is the seconds per decode step as a function of the completions running."""

    def __init__(self, cluster: Cluster, name: str, step_s: Line) -> None:
        rollout, schedule = cluster.plan.rollout, cluster.plan.schedule
        self._cluster = cluster
        self._name = name
        self._capacity = rollout.slots + 2 * schedule.group_size  # Like a real rollout.
        self._returned = 0
        self._policy_version = -1
        self._staged_version = -1
        self._queued: list[Job] = []
        """Leased while a swap waits for running completions."""
        prefill_s = 1 / rollout.prefill_tokens_per_s
        self.engine = SimulatedEngine(cluster.events, rollout.slots, step_s, prefill_s, self._finished)
        self._peer = cluster.join(self, "rollout", name)
        cluster.send(self._peer, Ready("planned"), Offer(self._capacity))

    def handle(self, message: Message) -> None:
        match message:
            case Lease():
                self._start(message)
            case Settled(items=items):
                self._return_credits(len(items))
            case Cancelled(lease_ids=lease_ids, units=units):
                self._cancel(set(lease_ids), set(units))
            case Transfer():
                self._cluster.events.after(self._cluster.plan.publish.seconds, lambda: self._received(message))

    def _start(self, lease: Lease) -> None:
        lengths = self._cluster.lengths_of(lease.group_id, lease.indices)
        prompt_tokens = self._cluster.plan.rollout.prompt_tokens
        jobs = [
            Job(Unit(lease.group_id, index, lease.split), lease.lease_id, length, 0 if place else prompt_tokens)
            for place, (index, length) in enumerate(zip(lease.indices, lengths, strict=True))
        ]
        if self._is_swapping:
            self._queued += jobs
        else:
            self.engine.add(jobs)

    def _cancel(self, lease_ids: set[int], units: set[Unit]) -> None:
        def is_unwanted(job: Job) -> bool:
            return job.lease_id in lease_ids or job.unit in units

        wanted = [job for job in self._queued if not is_unwanted(job)]
        num_queued, self._queued = len(self._queued) - len(wanted), wanted
        self._return_credits(self.engine.cancel(is_unwanted) + num_queued)
        self._swap()

    def _return_credits(self, count: int) -> None:
        self._returned += count
        self._cluster.send(self._peer, Offer(self._returned + self._capacity))

    def _finished(self, finished: Finished) -> None:
        job, spans = finished.job, finished.spans
        plan = self._cluster.plan
        summary = TrajectorySummary(
            num_tokens=job.num_tokens,
            prompt_tokens=plan.rollout.prompt_tokens,
            oldest_version=spans[0].policy_version,
            newest_version=spans[-1].policy_version,
            num_spans=len(spans),
            finish_reason="length" if job.num_tokens >= plan.lengths.max_tokens else "stop",
        )
        self._cluster.store(self._name, StoredItem(job.unit, job.lease_id, NOWHERE, summary), spans)
        self._swap()

    # ── weights ─────────────────────────────────────────────────────────────────────────────

    @property
    def _is_swapping(self) -> bool:
        """True while new weights wait for running completions to end; nothing new starts until then."""
        is_partial = self._cluster.plan.schedule.partial_rollout is True
        return self._staged_version > self._policy_version and not is_partial

    def _received(self, transfer: Transfer) -> None:
        self._staged_version = transfer.policy_version
        self._cluster.send(self._peer, Transferred(transfer.transfer_group, transfer.policy_version, 0.0, 0))
        self._swap()

    def _swap(self) -> None:
        if self._staged_version <= self._policy_version or (self._is_swapping and self.engine.num_unfinished):
            return
        plan, version = self._cluster.plan, self._staged_version
        self._policy_version = version
        stall_s = self.engine.swap(version, plan.publish.pause_s, recompute=plan.rollout.kv == "recompute")
        jobs, self._queued = self._queued, []
        self.engine.add(jobs)
        self._cluster.after(stall_s, lambda: self._cluster.send(self._peer, Live(version, stall_s, 0.0)))
