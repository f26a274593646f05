"""What idle nodes wait for follows from the state of the groups."""

from asyncrl.broker.metrics.idle_causes import idle_causes
from asyncrl.messages.trajectory import Unit
from tests.broker.driver import Cluster, Reward, Rollout, Trainer, a_config


class Scene:
    """A rollout, a reward node and a trainer that has published its first weights; the rollout has all four groups."""

    def __init__(self, *, staleness: float = 1.0, num_groups: int = 2) -> None:
        schedule: dict[str, object] = {"groups_per_step": num_groups, "group_size": 4, "staleness": staleness}
        self.cluster = Cluster(a_config(run={"steps": 3}, schedule=schedule))
        self.rollout: Rollout = self.cluster.start_rollout("a", capacity=64)
        self.reward: Reward = self.cluster.start_reward("r")
        self.trainer: Trainer = self.cluster.start_trainer()
        self.cluster.exchange()

    def publish(self) -> None:
        for node in (self.trainer, self.rollout):
            node.transferred()
            self.cluster.exchange()
        self.rollout.swap()
        self.cluster.exchange()

    def sample(self, group_id: int, *indices: int) -> None:
        for index in indices:
            self.rollout.finish(Unit(group_id, index))
        self.cluster.exchange()

    def judge(self) -> None:
        while self.reward.in_hand:
            self.reward.judge()
            self.cluster.exchange()

    def cause(self, role: str) -> str:
        return {str(role): cause for role, cause in idle_causes(self.cluster.scheduler).items()}[role]


def test_before_the_first_version_is_live_all_wait_for_it() -> None:
    scene = Scene()
    assert scene.cause("trainer") == scene.cause("rollout") == "waiting for weights to arrive"
    assert scene.cause("reward") == "waiting for sampling"


def test_a_trainer_waits_for_the_stage_that_its_next_groups_are_in() -> None:
    scene = Scene()
    scene.publish()
    assert scene.cause("trainer") == "waiting for sampling"
    scene.sample(0, 0, 1, 2, 3)
    scene.sample(1, 0, 1, 2)
    assert scene.cause("trainer") == "waiting for the last completions"
    scene.sample(1, 3)
    assert scene.cause("trainer") == "waiting for grading"


def test_a_rollout_without_a_lease_waits_for_what_the_trainer_waits_for() -> None:
    scene = Scene(staleness=0.0)
    scene.publish()
    scene.sample(0, 0, 1, 2, 3)
    scene.sample(1, 0, 1, 2, 3)
    assert scene.cause("rollout") == scene.cause("trainer") == "waiting for grading"


def test_while_the_trainer_trains_a_rollout_waits_for_it_and_then_for_its_weights() -> None:
    scene = Scene(staleness=0.0)
    scene.publish()
    scene.sample(0, 0, 1, 2, 3)
    scene.sample(1, 0, 1, 2, 3)
    scene.judge()
    assert scene.cause("rollout") == "waiting for the trainer"
    scene.trainer.train()
    scene.cluster.exchange()
    assert scene.cause("rollout") == scene.cause("trainer") == "waiting for weights to arrive"


def test_a_batch_that_is_formed_waits_for_its_record() -> None:
    scene = Scene()
    scene.publish()
    scene.sample(0, 0, 1, 2, 3)
    scene.sample(1, 0, 1, 2, 3)
    scene.judge()
    assert scene.cause("trainer") == "waiting for the ledger"


def test_without_rollouts_the_trainer_waits_for_some() -> None:
    scene = Scene()
    scene.publish()
    scene.cluster.kill(scene.rollout)
    assert scene.cause("trainer") == "waiting for rollouts"


def test_the_end_of_the_run_is_a_cause_of_its_own() -> None:
    scene = Scene(staleness=2.0)
    scene.publish()
    scene.cluster.exchange()
    assert scene.cause("rollout") == "waiting for the end of the run"
