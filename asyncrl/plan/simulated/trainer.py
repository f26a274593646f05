"""Simulated trainer: exchanges the messages of a real one; the duration of a step depends on its tokens."""

from msgspec import Struct

from asyncrl.actor.message import Message
from asyncrl.messages.session import Ready
from asyncrl.messages.trainer import Batch, Commit, ScoredTrajectory, Take
from asyncrl.messages.trajectory import Span
from asyncrl.messages.weights import Published, Publishing, Transfer, Transferred
from asyncrl.plan.simulated.cluster import Cluster
from asyncrl.plan.speeds import TrainingSpeed


class TrainedStep(Struct, frozen=True):
    step: int
    policy_version: int
    """The trainer's version when it consumed the batch."""
    began_s: float
    ended_s: float
    trajectories: list[ScoredTrajectory]
    spans: list[list[Span]]


class SimulatedTrainer:
    """Requests a batch ahead, trains and publishes. A version is offered once the previous one is live."""

    def __init__(self, cluster: Cluster, speed: TrainingSpeed, steps: int) -> None:
        self._cluster = cluster
        self._speed = speed
        self._steps = steps
        self._batch: Batch | None = None
        self._policy_version = 0
        self._live_version = -1
        self._is_training = False
        self._to_publish: int | None = None
        """``next_step`` of weights that are not offered yet."""
        self.done: list[TrainedStep] = []
        self._peer = cluster.join(self, "trainer", "trainer")
        cluster.send(self._peer, Ready("planned"), Publishing(0, 0), Take(0))

    def handle(self, message: Message) -> None:
        match message:
            case Batch():
                self._batch = message
                self._train()
            case Published(policy_version=version):
                self._live_version = version
                self._publish()
                self._train()
            case Transfer(transfer_group=transfer_group, policy_version=version):
                done = Transferred(transfer_group, version, self._cluster.plan.publish.seconds, 0)
                self._cluster.events.after(done.seconds, lambda: self._cluster.send(self._peer, done))

    def _train(self) -> None:
        blocked = self._cluster.plan.publish.blocks_trainer and self._live_version < self._policy_version
        if self._batch is None or self._is_training or self._to_publish is not None or blocked:
            return
        batch, self._batch = self._batch, None
        self._is_training = True
        tokens = sum(t.summary.num_tokens + t.summary.prompt_tokens for t in batch.trajectories)
        seconds = self._speed.seconds(tokens, self._cluster.plan.trainer_devices)
        spans = [self._cluster.spans.pop(trajectory.unit) for trajectory in batch.trajectories]
        now_s = self._cluster.events.now_s
        step = TrainedStep(batch.step, self._policy_version, now_s, now_s + seconds, batch.trajectories, spans)
        self._cluster.events.after(seconds, lambda: self._trained(step))
        if batch.step + 1 < self._steps:
            self._cluster.send(self._peer, Take(batch.step + 1))

    def _trained(self, step: TrainedStep) -> None:
        self.done.append(step)
        self._is_training = False
        next_step = step.step + 1
        if next_step == self._steps or next_step % self._cluster.plan.schedule.steps_per_publish == 0:
            self._to_publish = next_step
            self._publish()
            self._cluster.send(self._peer, Commit(step.step, "planned"))  # Lets the scheduler forget old groups.
        self._train()

    def _publish(self) -> None:
        if self._to_publish is None or self._live_version < self._policy_version:
            return
        next_step, self._to_publish = self._to_publish, None
        self._policy_version += 1
        self._cluster.send(self._peer, Publishing(self._policy_version, next_step))
