"""A node with a bug beside healthy ones: the run takes all its steps, trains on nothing of it, and names it."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.nodes.faults import PAUSE_S
from asyncrl.messages.codec import Message
from asyncrl.messages.permit import SEAL_BYTES, Permits
from asyncrl.messages.reward import Scored, ScoredItem
from asyncrl.messages.rollout import Failed
from asyncrl.messages.spool import Permit, SpoolRef, Stored, StoredItem
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from tests.broker.chaos import check
from tests.broker.driver import Cluster, Node, Reward, Rollout, a_config

STEPS = 40
BAD = 1 << 40
"""Offset in the spool from which on payloads are damaged."""
LOSSY = "lossy"
"""Spool whose payloads cannot be read."""
NAN = float("nan")
CONFIG = a_config(
    run={"steps": STEPS},
    schedule={"groups_per_step": 2, "group_size": 4, "staleness": 2.0},
    data={"train": "train.jsonl", "filter_overlong_prompts": True},
)


class Careful(Reward):
    """A healthy reward node: it finds what is damaged."""

    def judge(self) -> None:
        item = self.in_hand[0]
        if item.ref.offset >= BAD:
            self.refuse()
        elif item.ref.spool == LOSSY:
            self.in_hand.popleft()
            reason = "the spool no longer has the payload"
            self._done(Failed(item.unit, item.lease_id, "payload", reason, True, at_fault="spool"))
        else:
            super().judge()


class BadReward(Reward):
    def __init__(self, name: str, incarnation: int, answer: Callable[["BadReward"], Message | None]) -> None:
        super().__init__(name, incarnation)
        self._answer = answer

    def judge(self) -> None:
        if message := self._answer(self):
            self.in_hand.popleft()
            self._done(message)


class BadRollout(Rollout):
    def __init__(self, name: str, incarnation: int, spool: list[Stored], do: Callable[["BadRollout", Unit], None]):
        super().__init__(name, incarnation, spool, 4)
        self.do = do

    def finish(self, unit: Unit) -> None:
        self.do(self, unit)

    def report(self, unit: Unit, **changes: Any) -> None:
        """Say that a trajectory was stored, with some lies."""
        lease_id, oldest = self.running.pop(unit)
        summary = replace(TrajectorySummary(8, 4, oldest, self.policy_version, 1, "stop"), **changes)
        self._num_finished += 1
        ref = SpoolRef("spool", 0, BAD + self._num_finished, 8, 0)
        self._spool.append(
            Stored(self.name, self.incarnation, [StoredItem(unit, lease_id, ref, summary, self.permits[lease_id])])
        )
        self._give_back()

    def fail_with(self, unit: Unit, *, retryable: bool, is_overlong: bool = False) -> None:
        lease_id, _ = self.running.pop(unit)
        self.say(Failed(unit, lease_id, "rollout", "out of memory", retryable, is_overlong))
        self._give_back()


def scored(node: BadReward, reward: float) -> Scored:
    item = node.in_hand[0]
    return Scored([ScoredItem(item.unit, reward, {}, item.lease_id)])


def failed(node: BadReward, stage: Any, *, retryable: bool) -> Failed:
    item = node.in_hand[0]
    return Failed(item.unit, item.lease_id, stage, "the verifier raised", retryable)


def nothing(*_: object) -> None:
    """Never finish; beats go on."""


ROLLOUTS: dict[str, Callable[[BadRollout, Unit], None]] = {
    "fails everything": lambda node, unit: node.fail_with(unit, retryable=True),
    "fails everything for good": lambda node, unit: node.fail_with(unit, retryable=False),
    "finds every prompt too long": lambda node, unit: node.fail_with(unit, retryable=False, is_overlong=True),
    "stores damage": lambda node, unit: node.report(unit),
    "stores versions of the future": lambda node, unit: node.report(unit, newest_version=10**6),
    "stores nothing": lambda node, unit: node.report(unit, num_tokens=0),
    "never finishes": nothing,
    "stores too much": lambda node, unit: node.report(unit, num_tokens=10**6),
}
REWARDS: dict[str, Callable[[BadReward], Message | None]] = {
    "never answers": nothing,
    "says NaN": lambda node: scored(node, NAN),
    "fails everything": lambda node: failed(node, "reward", retryable=True),
    "fails everything for good": lambda node: failed(node, "reward", retryable=False),
    "finds everything damaged": lambda node: failed(node, "payload", retryable=True),
}


def a_run(bad: Callable[[Cluster], Node]) -> tuple[Cluster, Node]:
    cluster = Cluster(CONFIG)
    for name in ("a", "b"):
        cluster.start_rollout(name)
        judge = Careful(f"judge-{name}", cluster._count())
        cluster.nodes[judge.peer] = judge
    node = bad(cluster)
    cluster.nodes[node.peer] = node
    cluster.start_trainer()
    return cluster, node


def play(cluster: Cluster, dice: Random, *, haste: Node | None = None) -> None:
    """Act in random order to the end; ``haste`` acts first whenever it can."""
    count = 0
    while not cluster.is_over:
        if not (actions := cluster.actions()):
            cluster.tick(PAUSE_S)
            actions = cluster.actions()
            assert actions, f"nothing is left to do: {cluster.scheduler.groups.train}"
        hasty = [one for one in actions if haste and one[0].startswith(haste.peer)]
        dice.choice(hasty if hasty and dice.random() < 0.5 else actions)[1]()
        check(cluster)
        count += 1
        assert count < 200_000
        if count % 20 == 0:
            cluster.tick(1.0)


def check_run(cluster: Cluster, bad: Node) -> None:
    assert not cluster.cause
    trainer = next(node for node in cluster.nodes.values() if node.role == "trainer")
    consumed = trainer.consumed  # type: ignore[attr-defined]
    assert len(consumed) == STEPS * 2 * 4
    assert not [one for _, one in consumed if one.ref.offset >= BAD], "trained on what the bad member stored"
    barred = [event.fields for event in cluster.events if event.kind == "node.barred"]
    assert {event["node"] for event in barred} == {bad.name}, barred
    assert barred[0]["seconds"] == PAUSE_S
    assert bad.name in str(barred[0]["cause"])
    found = audit(cluster.records, CONFIG.schedule)
    assert not found.problems


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_hasty", [True, False], ids=["quick", "slow"])
@pytest.mark.parametrize("bug", ROLLOUTS)
def test_a_bad_rollout_is_named_and_costs_the_run_nothing(bug: str, is_hasty: bool, seed: int) -> None:
    cluster, bad = a_run(lambda cluster: BadRollout("bad", cluster._count(), cluster.spool, ROLLOUTS[bug]))
    play(cluster, Random(seed), haste=bad if is_hasty else None)
    check_run(cluster, bad)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_hasty", [True, False], ids=["quick", "slow"])
@pytest.mark.parametrize("bug", REWARDS)
def test_a_bad_reward_node_is_named_and_costs_the_run_nothing(bug: str, is_hasty: bool, seed: int) -> None:
    cluster, bad = a_run(lambda cluster: BadReward("bad", cluster._count(), REWARDS[bug]))
    play(cluster, Random(seed), haste=bad if is_hasty else None)
    check_run(cluster, bad)


@pytest.mark.parametrize("seed", range(3))
def test_reward_nodes_that_agree_on_a_lie_blame_no_rollout_and_cost_no_trajectory(seed: int) -> None:
    dice = Random(seed)
    cluster, bad = a_run(lambda cluster: BadReward("bad", cluster._count(), REWARDS["finds everything damaged"]))
    others = [BadReward(f"bad-{n}", cluster._count(), REWARDS["finds everything damaged"]) for n in range(2)]
    cluster.nodes |= {node.peer: node for node in others}
    play(cluster, dice, haste=dice.choice([bad, *others]))
    trainer = next(node for node in cluster.nodes.values() if node.role == "trainer")
    assert len(trainer.consumed) == STEPS * 2 * 4  # type: ignore[attr-defined]
    barred = {event.fields["node"] for event in cluster.events if event.kind == "node.barred"}
    assert barred == {node.name for node in (bad, *others)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_late", [False, True], ids=["found by reward nodes", "found by the trainer"])
def test_a_spool_that_loses_what_it_took_is_named_and_rollouts_store_with_others(is_late: bool, seed: int) -> None:
    cluster = Cluster(CONFIG)
    for name in ("a", "b", "c"):
        cluster.start_rollout(name)
        judge = (Reward if is_late else Careful)(f"judge-{name}", cluster._count())
        cluster.nodes[judge.peer] = judge
    trainer = cluster.start_trainer()
    cluster.start_spool("other")
    cluster.start_spool(LOSSY)
    cluster.disk.lossy.add(LOSSY)
    play(cluster, Random(seed))
    assert not cluster.cause
    assert trainer.consumed
    assert not [one for _, one in trainer.consumed if one.ref.spool == LOSSY]
    assert len(trainer.consumed) > 0.7 * STEPS * 2 * 4, "what is lost costs its group, until the spool is known"
    barred = [event.fields["node"] for event in cluster.events if event.kind == "node.barred"]
    assert set(barred) == {LOSSY}
    assert not audit(cluster.records, CONFIG.schedule).problems


def test_a_spool_speaks_for_itself_and_of_what_was_leased() -> None:
    cluster, _ = a_run(lambda cluster: Reward("judge", cluster._count()))
    cluster.start_spool("liar")
    cluster.exchange()
    summary = TrajectorySummary(8, 4, 0, 0, 1, "stop")
    for spool, permit in [("liar", Permit([0], bytes(SEAL_BYTES))), ("spool", Permit())]:
        item = StoredItem(Unit(0, 0), 1, SpoolRef(spool, 0, BAD, 8, 0), summary, permit)
        cluster.scheduler.handle("liar.0", Stored("a", "1", [item]), 0.0)
    assert cluster.scheduler.faults.total == {"liar": 2}


def test_a_batch_that_is_skipped_on_purpose_is_nobodys_fault() -> None:
    config = a_config(
        run={"steps": STEPS, "skip_steps": list(range(6, 26))}, schedule={"groups_per_step": 2, "group_size": 4}
    )
    cluster = Cluster(config)
    for name in ("a", "b"):
        cluster.start_rollout(name)
    cluster.start_reward("judge")
    cluster.start_trainer()
    play(cluster, Random(0))
    assert not cluster.cause
    assert not cluster.scheduler.faults.total


HARD = (30, 42, 4674, 9176)
"""Schedules in which reward nodes agreed on a lie, or in which one that keeps all it gets was the last to be asked."""


def a_bad_member(cluster: Cluster, number: int, dice: Random) -> Node:
    if dice.random() < 0.5:
        return BadRollout(f"bad-{number}", cluster._count(), cluster.spool, dice.choice(list(ROLLOUTS.values())))
    return BadReward(f"bad-{number}", cluster._count(), dice.choice(list(REWARDS.values())))


@pytest.mark.parametrize(
    "seeds",
    [[*range(30), *HARD], pytest.param(range(30, 10_000), marks=pytest.mark.long("9,970 schedules"))],
    ids=["30", "10,000"],
)
def test_up_to_three_bad_members_break_no_promise_and_no_healthy_node_is_barred(seeds: range) -> None:
    for seed in seeds:
        dice = Random(seed)
        cluster, bad = a_run(lambda cluster, dice=dice: a_bad_member(cluster, 0, dice))  # type: ignore[misc]
        others = [a_bad_member(cluster, number, dice) for number in range(1, dice.randint(1, 3))]
        cluster.nodes |= {node.peer: node for node in others}
        if has_lossy := dice.random() < 0.3:
            cluster.start_spool("other")
            cluster.start_spool(LOSSY)
        play(cluster, dice, haste=dice.choice([None, bad, *others]))
        assert not cluster.cause, (seed, cluster.cause)
        trainer = next(node for node in cluster.nodes.values() if node.role == "trainer")
        consumed = [one for _, one in trainer.consumed]  # type: ignore[attr-defined]
        assert len({one.unit.group_id for one in consumed}) == STEPS * 2, seed
        assert len(consumed) > 0.9 * STEPS * 2 * 4, "two bad members that agree may cost a trajectory"
        assert not [one for one in consumed if one.ref.offset >= BAD or one.ref.spool == LOSSY], seed
        barred = {event.fields["node"] for event in cluster.events if event.kind == "node.barred"}
        assert barred <= {node.name for node in (bad, *others)} | ({LOSSY} if has_lossy else set()), (seed, barred)
        assert not audit(cluster.records, CONFIG.schedule).problems, seed


@pytest.mark.parametrize("num_guesses", [10_000, pytest.param(1_000_000, marks=pytest.mark.long("a million"))])
def test_what_a_member_says_of_the_work_of_others_changes_nothing(num_guesses: int) -> None:
    """A thief with the right key knows every number of a lease but its permit."""
    cluster, _ = a_run(lambda cluster: Reward("thief", cluster._count()))
    thief = cluster.start_rollout("thief-too", capacity=0)
    cluster.exchange()
    owner = next(node for node in cluster.nodes.values() if isinstance(node, Rollout) and not node.running)
    while not (victims := [n for n in cluster.nodes.values() if isinstance(n, Rollout) and n.running]):
        for _, act in [action for node in cluster.nodes.values() for action in node.actions()]:
            act()
        cluster.exchange()
    victim, dice = victims[0], Random(0)
    unit, (lease_id, version) = next(iter(victim.running.items()))
    summary = TrajectorySummary(8, 4, version, version, 1, "stop")
    own = Permits(b"of the thief").grant(lease_id, unit.group_id, unit.split, [unit.index])
    guesses = [own, *(Permit([unit.index], dice.randbytes(SEAL_BYTES)) for _ in range(num_guesses))]
    for first in range(0, num_guesses, 1000):
        items = [
            StoredItem(unit, lease_id, SpoolRef("spool", 0, BAD, 8, 0), summary, guess)
            for guess in guesses[first : first + 1000]
        ]
        cluster.spool.append(Stored(owner.name, owner.incarnation, items))
    for judge in (node for node in cluster.nodes.values() if node.role == "reward"):
        judge.say(Scored([ScoredItem(unit, 1.0, {}, lease_id + offset) for offset in range(-5, 5)]))
    thief.say(Failed(unit, lease_id, "rollout", "not mine", False))
    cluster.exchange()

    slot = cluster.scheduler.groups.slot(unit)
    assert slot is not None
    assert slot.is_leased_by(lease_id)
    assert unit in victim.running
    assert not [event for event in cluster.events if event.kind == "group.dropped"]
    victim.finish(unit)
    cluster.exchange()
    assert slot.sampler == victim.name
