"""Broker actor: messages, and the run directory after every kind of end."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.broker import actor
from asyncrl.broker.groups.group import Group
from asyncrl.broker.ledger import ledger as ledger_module
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import AnyRecord, Dropped, NodeEvent, Rewarded, SamplingPaused, SettingsSet
from asyncrl.broker.metrics.sample_files import SampleFiles
from asyncrl.broker.operators import STATUS_S
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.staleness_control import StalenessChoice
from asyncrl.broker.traces import TraceIds, Traces
from asyncrl.config.config import from_json
from asyncrl.config.sections.evaluation import Checkpoint
from asyncrl.errors import BrokenInvariant, LinkReset, RunFailed
from asyncrl.files.json_lines import JsonLines
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import (
    ORPHANED,
    Beat,
    Bye,
    Drain,
    Draining,
    Ready,
    Reject,
    Stop,
    StoreGet,
    StoreSet,
    StoreValue,
    Welcome,
)
from asyncrl.messages.spool import Stored
from asyncrl.messages.supervisor import (
    Drained,
    Exited,
    Failures,
    Finished,
    Interrupt,
    Pause,
    Paused,
    Progress,
    Returned,
    SetSettings,
    SettingsChanged,
    Status,
    StatusWanted,
)
from asyncrl.messages.trainer import Assembled, Commit, Disbanded, Stepped, Take, TrainerMachine
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.weights import Live, Publishing, Transfer, TransferFailed, Transferred
from asyncrl.messages.words import Role
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.samples import SamplesWriter
from asyncrl.records.spans import TraceSpan
from asyncrl.wire.memory import MemoryLink
from asyncrl.wire.spools import ImageCache, PayloadClient
from tests.broker.driver import Disk, Reward, Rollout, Trainer, a_config
from tests.broker.house import CONFIG, House, ended, impatient, run

__all__ = ["impatient"]

MACHINES = a_config(trainer={"nodes": 2})


# ── machines of a trainer ──────────────────────────────────────────────────────────────────


def test_of_several_machines_the_first_alone_is_the_trainer(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        a, b = await house.welcomed("trainer", "a"), await house.welcomed("trainer", "b")
        machines = [TrainerMachine("a", ""), TrainerMachine("b", "")]
        assert await a.receive() == await b.receive() == Assembled(1, machines)
        assert [(n.name, n.role) for n in house.scheduler.nodes.all()] == [("a", "trainer"), ("b", "machine")]
        await b.send(Take(0))
        await b.send(StoreGet("trainer-1", "hub"))
        await a.send(StoreSet("trainer-1", "hub", b"tcp://a:1"))
        assert await b.receive() == StoreValue("trainer-1", "hub", b"tcp://a:1")
        assert house.scheduler.training.awaited_step is None
        third = await house.joined("trainer", "c")
        reason = "this run has its 2 trainer machines already (trainer.nodes): a, b"
        assert await third.receive() == Reject(reason)

    assert len(run(tmp_path, script, MACHINES).events("trainer.assembled")) == 1


def test_a_lost_machine_ends_the_group_for_the_others_at_once_and_is_named(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        a, b = await house.welcomed("trainer", "a"), await house.welcomed("trainer", "b")
        for link in (a, b):
            assert isinstance(await link.receive(), Assembled)
        await b.send(Bye("RankDied: b-rank-1 was killed by SIGKILL"))
        cause = "b on an unnamed host (rank 1) left: RankDied: b-rank-1 was killed by SIGKILL"
        assert await a.receive() == Disbanded(cause)
        assert house.scheduler.nodes.trainer() is None
        await a.send(Take(0))
        again = [await house.joined("trainer", name, "1") for name in "ba"]
        for link in again:
            assert isinstance(await link.receive(), Welcome)
            assert await link.receive() == Assembled(2, [TrainerMachine("a", ""), TrainerMachine("b", "")])
        assert house.scheduler.training.awaited_step is None, "a Take of the ended session counts for nothing"

    house = run(tmp_path, script, MACHINES)
    (disbanded,) = house.events("trainer.disbanded")
    assert disbanded["cause"] == "b on an unnamed host (rank 1) left: RankDied: b-rank-1 was killed by SIGKILL"


def test_a_machine_that_is_to_stop_leaves_once_the_trainer_has_saved_its_steps(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        a, b = await house.welcomed("trainer", "a"), await house.welcomed("trainer", "b")
        for link in (a, b):
            assert isinstance(await link.receive(), Assembled)
        await b.send(Draining())
        assert await a.receive() == Drain("b")
        await a.send(Draining())
        reason = "b on an unnamed host (rank 1) is to stop, and a checkpoint has just been written"
        assert await a.receive() == await b.receive() == Disbanded(reason)

    (disbanded,) = run(tmp_path, script, MACHINES).events("trainer.disbanded")
    assert disbanded["cause"] == "b on an unnamed host (rank 1) is to stop, and a checkpoint has just been written"


def test_a_missing_machine_that_comes_joins_at_the_next_checkpoint(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        a = await house.welcomed("trainer", "a")
        house.now_s += 5.0
        assert await a.receive() == Assembled(1, [TrainerMachine("a", "")])
        b = await house.welcomed("trainer", "b")
        house.scheduler.handle("a.0", Commit(0, "step_000001"), house.now_s)
        reason = "a missing machine of the trainer has come, and a checkpoint has just been written"
        assert await a.receive() == Disbanded(reason)
        again = await house.joined("trainer", "a", "1")
        assert isinstance(await again.receive(), Welcome)
        machines = [TrainerMachine("a", ""), TrainerMachine("b", "")]
        assert await again.receive() == await b.receive() == Assembled(2, machines)

    run(tmp_path, script, a_config(trainer={"nodes": 2, "min_nodes": 1, "wait_s": 5.0}))


# ── samples ─────────────────────────────────────────────────────────────────────────────────


class FakeSamples(SampleFiles):
    """Samples files without a spool: a write ends when ``may_write`` is set."""

    def __init__(self, payloads: PayloadClient, images: ImageCache, writer: SamplesWriter, *_: Any, **__: Any) -> None:
        super().__init__(payloads, images, writer)
        self.written: list[tuple[int, int]] = []
        """Step and policy version of each file."""
        self.begun: list[int] = []
        self.may_write = asyncio.Event()

    async def write(self, stepped: Stepped, groups: Sequence[Group]) -> None:
        assert groups
        self.begun.append(stepped.step)
        await self.may_write.wait()
        self.written.append((stepped.step, stepped.policy_version))


SAMPLED = replace(CONFIG, broker=replace(CONFIG.broker, samples=True))


def samples_of(house: House) -> FakeSamples:
    assert isinstance(house.broker._samples, FakeSamples)
    return house.broker._samples


async def played(house: House, *, until: Callable[[], bool], trainer: Trainer | None = None) -> None:
    """Play a run until the condition holds after a message."""
    await house.joined("spool", "spool")
    spool: list[Stored] = []
    nodes = [trainer or Trainer("t", SAMPLED), Rollout("a", 0, spool, 8), Reward("r")]
    tasks = [asyncio.create_task(house.play(node, spool)) for node in nodes]
    async with asyncio.timeout(30):
        while not until():
            house.directory.appended.clear()
            await house.directory.appended.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def test_samples_that_a_broker_died_before_writing_are_written_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor, "SampleFiles", FakeSamples)

    async def killed() -> None:
        house = House(tmp_path, SAMPLED)
        running = asyncio.create_task(house.broker.run())
        await played(house, until=lambda: len(house.directory.read_metrics()) == 2)
        running.cancel()
        await asyncio.wait([running])
        house.ledger.close()
        assert samples_of(house).written == []

    async def next_life(house: House) -> None:
        samples_of(house).may_write.set()
        while len(samples_of(house).written) < 2:
            await asyncio.sleep(0)

    asyncio.run(killed())
    house = run(tmp_path, next_life, SAMPLED)
    assert sorted(samples_of(house).written) == [(0, 0), (1, 1)]


def test_a_commit_lets_no_payload_go_before_its_samples_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor, "SampleFiles", FakeSamples)

    async def script(house: House) -> None:
        def committed() -> list[object]:
            return [event["step"] for event in house.events("checkpoint.written")]

        samples = samples_of(house)
        await played(house, until=lambda: len(house.directory.read_metrics()) == 3)
        assert committed() == [0], "the next checkpoint would let step 0 go"
        assert samples.begun == [0, 1, 2]
        samples.may_write.set()
        while committed() != [0, 1, 2]:
            await asyncio.sleep(0)
        assert sorted(samples.written) == [(0, 0), (1, 1), (2, 2)]

    run(tmp_path, script, SAMPLED)


# ── a whole run ─────────────────────────────────────────────────────────────────────────────


def test_a_node_that_is_admitted_again_is_an_event_and_no_end_of_the_run(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        faults = house.scheduler.faults
        able: dict[str, Role] = {"rollout-0": "rollout", "rollout-1": "rollout"}
        for name in able:
            await house.welcomed("rollout", name)
            faults.attempted(name, "rollout", 100)
        for _ in range(100):
            faults.failed("rollout-0", "rollout", "out of memory")
        assert [barred.name for barred in faults.judge(able, house.now_s)] == ["rollout-0"]
        house.scheduler.admit("rollout-0", house.now_s)
        await house.welcomed("reward", "reward-0")
        await house.happened("node.admitted")

    assert [event["node"] for event in run(tmp_path, script).events("node.admitted")] == ["rollout-0"]


def test_a_run_leaves_its_metrics_events_accounts_and_summary(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        supervisor = await house.welcomed("supervisor", "supervisor")
        await house.joined("spool", "spool")
        spool: list[Stored] = []
        nodes = [Trainer("t", CONFIG), Rollout("a", 0, spool, 4), Rollout("b", 0, spool, 4), Reward("r")]
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            for node in nodes:
                tasks.create_task(house.play(node, spool))
            shown = [await supervisor.receive()]
            while not isinstance(shown[-1], Finished):
                shown.append(await supervisor.receive())
            await supervisor.send(Bye("done"))
        assert shown[-1] == Finished("finished", "")
        assert [(m.step, m.steps) for m in shown if isinstance(m, Progress)] == [(0, 3), (1, 3), (2, 3)]

    house = run(tmp_path, script)
    summary = house.summary

    assert (summary.status, summary.cause, summary.seed) == ("finished", "", 5)
    assert (summary.steps, summary.steps_planned, summary.versions) == (3, 3, 3)
    assert (summary.base_accuracy, summary.held_out_accuracy) == (1.0, 1.0)
    assert (summary.base_reward, summary.held_out_reward) == (1.0, 1.0)
    assert summary.trained_tokens == 3 * 2 * 2 * 8
    assert summary.staleness_max <= 1
    lines = house.directory.read_metrics()
    assert [(line["step"], line["version"], line["loss"], line["reward"]) for line in lines] == [
        (step, step, 0.5, 1.0) for step in range(3)
    ]
    assert {(line["pause_s"], line["receive_s"]) for line in lines} == {(0.01, 0.1)}
    assert [e["policy_version"] for e in house.events("eval.finished")] == [0, 3]
    assert sorted(str(e["node"]) for e in house.events("node.left")) == ["a", "b", "r", "t"]
    assert house.events("node.lost") == []
    counts = Counter(type(record).__name__ for record in read_records(house.directory.ledger))
    assert (counts["Admitted"], counts["Taken"], counts["Committed"], counts["VersionLive"]) == (6, 3, 3, 4)
    assert counts["Result"] == counts["Rewarded"] == 6 * 2 + 2 * 2


def test_log_probs_that_differ_are_warned_of_once_in_all_lives_and_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scheduler, "refuses", lambda *_: False)  # No batch of these steps was taken.

    def steps(*numbers: int) -> Callable[[House], Awaitable[None]]:
        async def script(house: House) -> None:
            trainer = await house.welcomed("trainer", "t")
            for step in numbers:
                gap = {
                    "logprob_gap_mean": 0.25 * (step + 1),
                    "logprob_gap_max": 2.0 - step,
                    "logprob_gap_tokens": 100.0,
                }
                await trainer.send(Stepped(step, step, gap))
                await house.stepped(step)

        return script

    run(tmp_path, steps(0, 1))
    house = run(tmp_path, steps(2))

    (warning,) = house.events("logprob_gap.exceeded")
    assert (warning["step"], warning["logprob_gap_mean"]) == (0, 0.25)
    assert (house.summary.logprob_gap_mean, house.summary.logprob_gap_max) == (0.5, 2.0)


def test_joining_and_leaving_nodes_are_in_the_ledger(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        leaver, lost = await house.welcomed("rollout", "leaver"), await house.welcomed("rollout", "lost")
        await lost.send(Ready("plan"))  # First, so that it has been silent since when time moves.
        await leaver.send(Bye("told to stop\x1b[2J"))
        await house.happened("node.left")
        house.now_s += CONFIG.broker.node_ttl_s + 1.0
        await house.happened("node.lost")

    house = run(tmp_path, script)

    records = read_records(house.directory.ledger)
    happened = [(r.node, r.event, r.detail) for r in records if isinstance(r, NodeEvent)]
    assert happened == [
        ("leaver", "joined", ""),
        ("lost", "joined", ""),
        ("leaver", "left", "told to stop\\x1b[2J"),
        ("lost", "lost", "silent for 10 s"),
    ]


def test_a_node_whose_parent_has_died_is_lost_though_it_says_so(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        rollout = await house.welcomed("rollout", "a")
        await rollout.send(Bye(ORPHANED))
        await house.happened("node.lost")

    house = run(tmp_path, script)
    (lost,) = house.events("node.lost")
    assert (lost["node"], lost["cause"]) == ("a", "the process that started it has died")


def test_a_reward_goes_to_the_ledger_with_the_next_record_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor, "TICK_S", 3600)
    rewarded, dropped = Rewarded(Unit(0, 0), 1.0), Dropped(0, "failed", 0)
    committed: list[list[AnyRecord]] = []

    async def commit(_ledger: Ledger, records: list[AnyRecord]) -> None:
        committed.append(records)

    monkeypatch.setattr(Ledger, "commit", commit)

    async def script(house: House) -> None:
        async def happens(*records: AnyRecord) -> list[list[AnyRecord]]:
            committed.clear()
            for record in records:
                house.scheduler.out.record(record)
            await link.send(Beat())
            for _ in range(10):
                await asyncio.sleep(0)
            return committed

        link = await house.welcomed("reward", "r")
        await happens()
        assert await happens(rewarded) == []
        assert await happens(dropped) == [[rewarded, dropped]]

    run(tmp_path, script)


# ── a node that is asked to leave ───────────────────────────────────────────────────────────


def test_a_node_is_asked_to_leave_and_who_wanted_it_hears_when_it_has(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        rollout, operator = await house.welcomed("rollout", "a"), await house.welcomed("supervisor", "operator")
        await operator.send(Drain("a"))
        assert await rollout.receive() == Drain("a")
        await rollout.send(Bye("told to stop"))
        assert await operator.receive() == Drained("a")

    (asked,) = run(tmp_path, script).events("node.draining")
    assert (asked["node"], asked["by"]) == ("a", "operator")


def test_a_node_that_is_lost_before_it_could_leave_is_said_to_be(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        await house.welcomed("rollout", "a")
        operator, supervisor = await house.welcomed("supervisor", "operator"), await house.welcomed("supervisor", "s")
        await operator.send(Drain("a"))
        await supervisor.send(Exited("a", "was killed by SIGKILL", restarting=True))
        assert await operator.receive() == Drained("a", "it was lost before it could leave: was killed by SIGKILL")

    run(tmp_path, script)


def test_an_operator_is_told_the_state_of_the_run_and_others_are_not(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        operator, rollout = await house.welcomed("supervisor", "operator-1"), await house.welcomed("rollout", "a")
        await rollout.send(StatusWanted())
        await rollout.send(Bye("done"))
        await house.happened("node.left")
        house.now_s += 5.0
        await operator.send(StatusWanted())
        while not isinstance(told := await operator.receive(), Status):
            assert isinstance(told, Failures)
        assert (told.run, told.state, told.steps, told.time_s) == ("run", "running", 3, 5.0)
        assert [node.node for node in told.nodes] == ["operator-1"]
        assert house.scheduler.failures.counts == {"message: StatusWanted of a: a rollout may not send StatusWanted": 1}

    run(tmp_path, script)


def test_an_operator_pauses_and_steers_a_run_by_its_name_and_a_wrong_value_changes_nothing(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        operator = await house.welcomed("supervisor", "alice-1")
        await operator.send(SetSettings(["trainer.lr=0.5", "run.seed=3"]))
        refused = await operator.receive()
        assert isinstance(refused, SettingsChanged)
        assert refused.problem.startswith("run.seed cannot be set while the run goes on")

        await operator.send(SetSettings(["trainer.lr=0.5"]))
        assert await operator.receive() == SettingsChanged({"trainer.lr": 0.5}, "alice-1")
        await operator.send(Pause(True))
        assert await operator.receive() == Paused(True, "alice-1")

        link = await house.joined("trainer", "trainer-0")
        welcome = await link.receive()
        assert isinstance(welcome, Welcome)
        assert from_json(welcome.config).trainer.lr == 0.5

    house = run(tmp_path, script)
    records = list(read_records(house.directory.ledger))
    assert [type(record) for record in records if record_by(record) == "alice-1"] == [SettingsSet, SamplingPaused]
    assert house.events("setting.changed")[0]["by"] == "alice-1"


def record_by(record: AnyRecord) -> str:
    return record.by if isinstance(record, SettingsSet | SamplingPaused) else ""


def test_the_staleness_that_a_plan_chooses_is_set_in_the_brokers_name_unless_an_operator_was_faster(
    tmp_path: Path,
) -> None:
    config = a_config(run={"steps": 3}, schedule={"groups_per_step": 2, "group_size": 2, "staleness": "auto"})

    async def script(house: House) -> None:
        house.broker.follow(StalenessChoice(1.0, 1.0, "as fast"))
        house.broker.follow(StalenessChoice(4.0, 1.0, "faster", {"1": 2.0, "4": 1.0}))
        assert house.scheduler.window.size == 10
        operator = await house.welcomed("supervisor", "alice-1")
        await operator.send(SetSettings(["staleness=0"]))
        assert await operator.receive() == SettingsChanged({"schedule.staleness": 0.0}, "alice-1")
        house.broker.follow(StalenessChoice(2.0, 4.0, "asked before"))
        assert house.scheduler.window.size == 2

    house = run(tmp_path, script, config)
    chosen = [(event["before"], event["staleness"]) for event in house.events("staleness.chosen")]
    assert chosen == [(1.0, 1.0), (1.0, 4.0)]
    assert [event["by"] for event in house.events("setting.changed")] == ["auto", "alice-1"]


def test_a_choice_that_the_run_refuses_is_told_and_changes_nothing(tmp_path: Path) -> None:
    bounded = {"groups_per_step": 2, "group_size": 2, "staleness": "auto", "max_staleness": 1}

    async def script(house: House) -> None:
        house.broker.follow(StalenessChoice(4.0, 1.0, "faster"))
        house.broker.unplanned("no program")
        assert house.scheduler.window.size == 4

    house = run(tmp_path, script, a_config(run={"steps": 3}, schedule=bounded))
    causes = [event["cause"] for event in house.events("staleness.unplanned")]
    assert str(causes[0]).startswith("schedule.max_staleness is 1, but staleness=4 admits")
    assert causes[1:] == ["no program"]


def test_many_that_watch_a_run_share_one_look_at_its_books(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        first, second = [await house.welcomed("supervisor", f"operator-{n}") for n in (1, 2)]
        await first.send(StatusWanted())
        told = await first.receive()
        await second.send(StatusWanted())
        assert await second.receive() is told
        house.now_s += STATUS_S
        await second.send(StatusWanted())
        assert await second.receive() is not told

    run(tmp_path, script)


def test_who_cannot_leave_is_said_at_once(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        await house.welcomed("trainer", "t")
        operator = await house.welcomed("supervisor", "operator")
        await operator.send(Drain("t"))
        assert await operator.receive() == Drained(
            "t", "t is a trainer: only rollouts and reward nodes can be drained", is_refused=True
        )

    run(tmp_path, script)


class Watched(Traces):
    """Keeps every span that it hands over."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.spans: list[TraceSpan] = []
        super().__init__(scheduler, TraceIds("run-1", 1), self.spans.extend)


def test_a_traced_run_tells_the_life_of_every_trajectory(tmp_path: Path) -> None:
    told: list[Watched] = []

    async def script(house: House) -> None:
        house.broker._traces = Watched(house.scheduler)
        told.append(house.broker._traces)
        await house.joined("spool", "spool")
        spool: list[Stored] = []
        nodes = [Trainer("t", CONFIG), Rollout("a", 0, spool, 4), Reward("r")]
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            for node in nodes:
                tasks.create_task(house.play(node, spool))

    assert run(tmp_path, script).summary.status == "finished"
    (traces,) = told
    schedule = CONFIG.schedule
    groups = CONFIG.run.steps * schedule.groups_per_step
    counts = Counter(span.name for span in traces.spans if span.name != "waiting")
    assert counts == dict.fromkeys(("group", "waiting for the trainer", "training", "publishing"), groups) | (
        dict.fromkeys(("trajectory", "generating", "grading"), groups * schedule.group_size)
    )
    assert {span.attributes["node"] for span in traces.spans if span.name == "generating"} == {"a"}


def test_a_broker_that_stops_hands_over_what_is_open(tmp_path: Path) -> None:
    told: list[Watched] = []

    async def script(house: House) -> None:
        house.broker._traces = Watched(house.scheduler)
        told.append(house.broker._traces)
        trainer = await house.welcomed("trainer", "t")
        rollout = await house.welcomed("rollout", "a")
        for link in (trainer, rollout):
            await link.send(Ready("plan"))
        await trainer.send(Publishing(0, 0))
        for link in (trainer, rollout):
            while not isinstance(message := await link.receive(), Transfer):
                pass
            await link.send(Transferred(message.transfer_group, 0, 0.1, 100))
        await rollout.send(Live(0, 0.01, 0.1))
        await house.happened("version.live")

    run(tmp_path, script)
    (traces,) = told
    assert {(span.name, span.attributes["outcome"]) for span in traces.spans} == {("group", "open")}


# ── a broker that starts again ──────────────────────────────────────────────────────────────


def live(parent: Path, disk: Disk, until_step: int | None = None, *, saves: bool = False) -> House:
    config = CONFIG if until_step is None or saves else replace(CONFIG, checkpoint=Checkpoint())

    async def main() -> House:
        house = House(parent)
        running = asyncio.create_task(house.broker.run())
        await house.joined("spool", "spool")
        spool: list[Stored] = []
        nodes = [Trainer("t", config, disk=disk), Rollout("a", 0, spool, 4), Reward("r")]
        playing = [asyncio.create_task(house.play(node, spool)) for node in nodes]
        try:
            async with asyncio.timeout(30):
                await (running if until_step is None else house.stepped(until_step))
        finally:
            for task in (running, *playing):
                task.cancel()
            await asyncio.gather(running, *playing, return_exceptions=True)
            house.ledger.close()
        return house

    return asyncio.run(main())


def test_a_broker_that_died_goes_on_where_it_was_and_counts_every_step_once(tmp_path: Path) -> None:
    disk = Disk()
    first = live(tmp_path, disk, until_step=1)  # The trainer restarts and repeats its steps.
    before = first.directory.read_metrics()
    house = live(tmp_path, disk)

    lines = house.directory.read_metrics()
    assert lines[: len(before)] == before
    assert [line["step"] for line in JsonLines(house.directory.metrics).read()] == [0, 1, 2]
    assert [event["step"] for event in house.events("step.repeated")] == [0, 1]
    assert len(house.events("run.started")) == len(house.events("run.resumed")) == 1
    summary = house.summary
    assert (summary.status, summary.steps, summary.versions) == ("finished", 3, 3)
    assert summary.trained_tokens == 3 * 2 * 2 * 8
    assert (summary.base_accuracy, summary.held_out_accuracy) == (1.0, 1.0)


def test_steps_that_a_trainer_reports_from_its_checkpoint_are_not_repeated(tmp_path: Path) -> None:
    disk = Disk()
    before = live(tmp_path, disk, until_step=1, saves=True).directory.read_metrics()
    saved = disk.checkpoints[-1]
    assert saved > 0
    house = live(tmp_path, disk)
    assert [event["step"] for event in house.events("step.repeated")] == list(range(saved, len(before)))


def test_the_summary_of_a_failed_life_gives_way_to_the_next_one(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        house.broker.stop("the broker was told to stop")

    assert run(tmp_path, script).summary.status == "failed"

    assert live(tmp_path, Disk()).summary.status == "finished"


def test_time_goes_on_from_where_it_was(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        house.now_s += 50.0

    assert run(tmp_path, script).summary.wall_s == 50.0
    assert run(tmp_path, script).summary.wall_s == 100.0


# ── how a run fails ─────────────────────────────────────────────────────────────────────────


def test_everybody_hears_why_the_run_failed(tmp_path: Path) -> None:
    cause = "t exited with code 70: OutOfMemoryError: 3 GiB missing"

    async def script(house: House) -> None:
        await house.welcomed("trainer", "t")
        rollout, supervisor = await house.welcomed("rollout", "a"), await house.welcomed("supervisor", "s")
        await supervisor.send(Exited("t", "exited with code 70: OutOfMemoryError: 3 GiB missing", restarting=False))
        assert await ended(rollout, supervisor) == [Stop(cause, failed=True), Finished("failed", cause)]

    house = run(tmp_path, script)

    assert (house.summary.status, house.cause, house.summary.steps) == ("failed", cause, 0)
    assert [(e["status"], e["cause"]) for e in house.events("run.finished")] == [("failed", cause)]


def test_a_run_that_its_callers_function_interrupted_says_so(tmp_path: Path) -> None:
    cause = "on_step raised ValueError: no figure (plot.py:3)"

    async def script(house: House) -> None:
        supervisor = await house.welcomed("supervisor", "s")
        await supervisor.send(Interrupt(cause))
        assert await ended(supervisor) == [Finished("interrupted", cause)]

    house = run(tmp_path, script)

    assert (house.summary.status, house.summary.cause) == ("interrupted", cause)


def test_a_broker_that_stood_still_blames_nobody_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "SLEPT_S", -1.0)  # Every tick counts as one that came too late.

    async def script(house: House) -> None:
        await house.welcomed("trainer", "t")
        await house.happened("broker.slept")

    house = run(tmp_path, script)

    assert not house.events("node.lost")


def test_a_silent_trainer_is_noticed_and_named_and_the_run_waits_for_the_next_one(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        await house.welcomed("trainer", "t")
        house.now_s += CONFIG.broker.node_ttl_s + 1.0
        await house.happened("node.lost")
        await house.welcomed("trainer", "other")

    house = run(tmp_path, script)

    assert [(event["node"], event["cause"]) for event in house.events("node.lost")] == [("t", "silent for 10 s")]
    assert house.cause == ""


def test_weights_that_can_never_be_published_end_the_run(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        trainer, rollout = await house.welcomed("trainer", "t"), await house.welcomed("rollout", "a")
        await rollout.send(Ready("plan"))
        await trainer.send(Publishing(0, 0))
        for _ in range(5):
            transfer = await rollout.receive()
            assert isinstance(transfer, Transfer)
            for link in (trainer, rollout):
                await link.send(TransferFailed(transfer.transfer_group, 0, "connection refused"))
        await ended(rollout, trainer)

    house = run(tmp_path, script)

    assert house.cause.startswith("version 0 could not be published in 5 tries: t: connection refused")


def test_a_child_that_is_not_needed_may_stay_away(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        supervisor, operator = await house.welcomed("supervisor", "s"), await house.welcomed("supervisor", "operator")
        await supervisor.send(Exited("tracker-wandb", "exited with 70", restarting=False, is_needed=False))
        await operator.send(Drain("nobody"))
        assert isinstance(await operator.receive(), Drained), "the run goes on"

    house = run(tmp_path, script)

    assert [(e["node"], e["restarting"]) for e in house.events("node.exited")] == [("tracker-wandb", False)]


def test_a_trainer_that_is_started_again_is_told_until_it_is_back(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        supervisor = await house.welcomed("supervisor", "s")
        trainer = await house.welcomed("trainer", "t")
        await supervisor.send(Exited("t", "was killed by SIGKILL", restarting=True))
        with pytest.raises(LinkReset):
            await trainer.receive()
        house.now_s += 5
        starting, lacking = (await asked(supervisor)).notes
        assert starting == "t was killed by SIGKILL 5 s ago and is starting again"
        assert lacking == "no trainer and no rollout and no spool and no reward node is connected"
        again = await house.joined("trainer", "t", "1")
        assert isinstance(await again.receive(), Welcome)
        await again.send(Ready())
        assert await supervisor.receive() == Returned("t", 5.0, 0)
        house.now_s += 1
        assert (await asked(supervisor)).notes == ["no rollout and no spool and no reward node is connected"]

    async def asked(supervisor: MemoryLink) -> Status:
        await supervisor.send(StatusWanted())
        while not isinstance(told := await supervisor.receive(), Status):
            pass
        return told

    house = run(tmp_path, script)
    assert [(e["node"], e["away_s"], e["step"]) for e in house.events("node.returned")] == [("t", 5.0, 0)]


def test_a_child_that_is_not_restarted_ends_the_run_with_how_it_ended(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        supervisor, rollout = await house.welcomed("supervisor", "s"), await house.welcomed("rollout", "a")
        await supervisor.send(Exited("a", "was killed by SIGKILL", restarting=True))
        with pytest.raises(LinkReset):
            await rollout.receive()
        await house.welcomed("trainer", "t")
        await supervisor.send(Exited("t", "was killed by SIGKILL", restarting=False))
        await ended(supervisor)

    house = run(tmp_path, script)

    assert house.cause == "t was killed by SIGKILL"
    assert [(e["node"], e["cause"]) for e in house.events("node.lost")] == [
        ("a", "was killed by SIGKILL"),
        ("t", "was killed by SIGKILL"),
    ]


def test_a_ledger_that_cannot_be_written_ends_the_run_and_everybody_hears_it(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        rollout = await house.welcomed("rollout", "a")
        house.ledger.close()
        await house.joined("rollout", "b")
        (stop,) = await ended(rollout)
        assert isinstance(stop, Stop)
        assert "was closed" in stop.reason

    house = run(tmp_path, script)

    assert house.summary.status == "failed"
    assert "the ledger" in house.cause


def test_a_locked_ledger_is_told_of_once_and_the_run_goes_on_when_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the run after five seconds: an honest look with `sqlite3` did so, or any user who read the file."""
    monkeypatch.setattr(actor, "LOCKED_S", 0.001)

    async def script(house: House) -> None:
        with closing(sqlite3.connect(house.directory.ledger, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await house.welcomed("rollout", "a")
            await house.happened("ledger.locked")
            await house.welcomed("rollout", "b")
            assert not list(read_records(house.directory.ledger, is_writer_process=True))
            other.execute("COMMIT")
        await house.happened("ledger.unlocked")

    house = run(tmp_path, script)

    assert house.cause == ""
    assert len(house.events("ledger.locked")) == 1
    (event,) = house.events("ledger.locked")
    assert event["cause"] == "another program has locked the ledger: the run waits until its transaction ends"
    nodes = [record.node for record in read_records(house.directory.ledger) if isinstance(record, NodeEvent)]
    assert nodes[:2] == ["a", "b"]


def test_a_broker_that_is_told_to_stop_does_not_wait_for_a_locked_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "LEAVE_S", 0.0)

    async def main() -> House:
        house = House(tmp_path)
        running = asyncio.create_task(house.broker.run())
        with closing(sqlite3.connect(house.directory.ledger, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await house.welcomed("rollout", "a")
            house.broker.suspend("told to stop")
            await running
            house.ledger.close()
        return house

    house = asyncio.run(main())
    (event,) = house.events("ledger.left_locked")
    assert "has locked it, and has not let go in time" in str(event["cause"])
    assert house.directory.read_summary() is None, "the run goes on when a broker serves it again"


def test_a_bug_is_named_by_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(*_: object) -> None:
        raise AssertionError("a bug")

    async def script(house: House) -> None:
        rollout = await house.welcomed("rollout", "a")
        monkeypatch.setattr(Scheduler, "handle", handle)
        await rollout.send(Offer(1))
        await ended(rollout)

    with pytest.raises(BaseExceptionGroup):
        run(tmp_path, script)
    summary = RunDirectory(tmp_path / "run").read_summary()
    assert summary
    assert summary.cause.startswith("AssertionError: ")


def test_a_broken_invariant_ends_the_run(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        rollout = await house.welcomed("rollout", "a")

        def handle(*_: object) -> None:
            raise BrokenInvariant("group 3 retired twice")

        house.scheduler.handle = handle  # type: ignore[method-assign, assignment]
        await rollout.send(Ready())
        assert await ended(rollout) == [Stop("group 3 retired twice", failed=True)]

    assert run(tmp_path, script).cause == "group 3 retired twice"


# ── rendezvous ──────────────────────────────────────────────────────────────────────────────


def test_members_of_a_weight_group_find_each_other_through_the_broker(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        early, setter = await house.welcomed("rollout", "early"), await house.welcomed("trainer", "setter")
        late = await house.welcomed("rollout", "late")
        await early.send(StoreGet("group-1", "address"))
        await setter.send(StoreSet("group-1", "address", b"here"))
        await late.send(StoreGet("group-1", "address"))
        value = StoreValue("group-1", "address", b"here")
        assert [await early.receive(), await late.receive()] == [value, value]

    run(tmp_path, script)


def test_a_disk_that_takes_no_events_ends_the_run_and_the_nodes_hear_why(tmp_path: Path) -> None:
    async def main() -> None:
        house = House(tmp_path)
        running = asyncio.create_task(house.broker.run())
        await house.happened("run.started")
        house.directory.events.unlink()
        house.directory.events.mkdir()
        link = await house.welcomed("rollout", "ann")
        with pytest.raises(RunFailed, match=r"cannot write .*events\.jsonl: Is a directory; free space"):
            await running
        stop = await link.receive()
        assert isinstance(stop, Stop)
        assert stop.failed
        assert "events.jsonl: Is a directory" in stop.reason
        assert house.directory.read_summary() is None
        house.ledger.close()

    asyncio.run(main())
