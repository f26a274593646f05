"""Messages that a node may not send, or that cannot be true: each is refused and counted, and the run goes on."""

from pathlib import Path

import pytest

from asyncrl.broker import failures, sessions
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import NodeEvent, Written
from asyncrl.messages.codec import Message
from asyncrl.messages.reward import Scored, ScoredItem
from asyncrl.messages.rollout import Failed, Offer
from asyncrl.messages.session import Beat, Bye, Drain, Hello, Ready, Reject, StoreGet, StoreSet, StoreValue
from asyncrl.messages.spool import SpoolRef, Stored, StoredItem
from asyncrl.messages.supervisor import Exited, Interrupt
from asyncrl.messages.trainer import Commit, Stepped, Take
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.weights import Live, Publishing, Transferred
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role
from tests.broker.house import House, impatient, run

__all__ = ["impatient"]

UNIT = Unit(0, 0)
SUMMARY = TrajectorySummary(4, 4, 0, 0, 1, "stop")
NAN = float("nan")

UNTRUE: list[tuple[Role, Message]] = [
    ("reward", Take(0)),
    ("reward", Drain("trainer-0")),
    ("reward", Exited("trainer-0", "bug", restarting=False)),
    ("reward", Interrupt()),
    ("reward", StoreSet("group", "key", b"value")),
    ("reward", Stored("a", "0", [StoredItem(UNIT, 1, SpoolRef("spool", 0, 0, 1, 0), SUMMARY)])),
    ("reward", Live(0, NAN, 0.0)),
    ("rollout", Scored([ScoredItem(UNIT, NAN)])),
    ("rollout", Commit(0, "checkpoint")),
    ("rollout", Publishing(0, 0)),
    ("rollout", Offer(-1)),
    ("rollout", Beat(lag_s=NAN)),
    ("rollout", Live(10**6, 0.0, 0.0)),
    ("rollout", Transferred(1, 10**6, 0.0, 0)),
    ("rollout", Failed(UNIT, 1, "reward", "no", retryable=True)),
    ("rollout", StoreSet("g" * 10_000, "key", b"value")),
    ("rollout", StoreSet("group", "key", bytes(2 << 20))),
    ("trainer", Ready(ranks=10**9)),
    ("trainer", Take(10**7)),
    ("trainer", Stepped(10**7, 1, {})),
    ("trainer", Commit(10**6, "checkpoint")),
    ("trainer", Publishing(10**6, 10**6)),
    ("trainer", Stepped(0, 0, {"m" * 10_000: 1.0})),
]


def only_nodes(house: House) -> bool:
    """True if the ledger has nothing but nodes that join and leave, and the summary."""
    return all(isinstance(record, NodeEvent | Written) for record in read_records(house.directory.ledger))


@pytest.fixture(autouse=True)
def tell_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "FIRST_S", 0.0)


@pytest.mark.parametrize(
    ("role", "message"), UNTRUE, ids=lambda value: value if isinstance(value, str) else type(value).__name__
)
def test_it_is_counted_under_the_name_of_the_node_and_changes_nothing(
    tmp_path: Path, role: Role, message: Message
) -> None:
    async def script(house: House) -> None:
        node = await house.welcomed(role, "liar")
        await node.send(message)
        await house.happened("units.failed")
        assert house.scheduler.nodes.get("liar.0"), "the node stays"
        await house.welcomed("supervisor", "next")

    house = run(tmp_path, script)
    assert only_nodes(house)

    (event,) = house.events("units.failed")
    assert (event["stage"], event["count"]) == ("message", 1)
    assert str(event["cause"]).startswith(f"{type(message).__name__} of liar: ")
    (cause,) = house.summary.failed
    assert house.summary.failed == {cause: 1}
    assert house.cause == ""


@pytest.mark.parametrize("message", [message for _, message in UNTRUE], ids=lambda message: type(message).__name__)
def test_without_a_hello_nothing_is_heard(tmp_path: Path, message: Message) -> None:
    async def script(house: House) -> None:
        known = await house.welcomed("supervisor", "known")
        before = house.directory.read_events()
        stranger = house.hub.connect("stranger.0")
        await stranger.send(message)
        await known.send(Drain("nobody"))
        await known.receive()
        assert house.directory.read_events() == before

    assert run(tmp_path, script).cause == ""


def test_a_verdict_for_a_unit_that_was_never_leased_changes_nothing(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        reward, known = await house.welcomed("reward", "r"), await house.welcomed("supervisor", "known")
        spool = await house.welcomed("spool", "spool")
        await spool.send(Stored("a", "0", [StoredItem(UNIT, 7, SpoolRef("spool", 0, 0, 1, 0), SUMMARY)]))
        for verdict in (NAN, 1.0):
            await reward.send(Scored([ScoredItem(Unit(10**6, 3), verdict, lease_id=5)]))
        await known.send(Drain("nobody"))
        await known.receive()

    assert only_nodes(run(tmp_path, script))


def test_a_rendezvous_of_hundreds_of_megabytes_is_refused_from_its_bound_on(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        trainer = await house.welcomed("trainer", "t")
        for number in range(70):
            await trainer.send(StoreSet("group", str(number), bytes(1 << 20)))
        await house.happened("units.failed")
        await trainer.send(StoreGet("group", "0"))
        assert await trainer.receive() == StoreValue("group", "0", bytes(1 << 20))

    house = run(tmp_path, script)

    assert sum(house.summary.failed.values()) == 7
    assert next(iter(house.summary.failed)).startswith("message: StoreSet of t: the values of all groups would have ")


def test_a_name_of_megabytes_is_refused_and_not_recorded(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        link = house.hub.connect("long.0")
        await link.send(Hello(PROTOCOL, "rollout", "n" * (36 << 20), "0"))
        answer = await link.receive()
        assert isinstance(answer, Reject)
        assert answer.reason.startswith("its Hello is invalid: node is 'nnnn")

    house = run(tmp_path, script)

    assert house.directory.events.stat().st_size < 10_000
    assert house.directory.ledger.stat().st_size < 1 << 20


def test_a_session_is_one_node_for_ever(tmp_path: Path) -> None:
    """A second Hello with another name or role would leave the first node among the nodes, for ever."""

    async def script(house: House) -> None:
        link = await house.welcomed("trainer", "t")
        for second in (Hello(PROTOCOL, "rollout", "t", "0"), Hello(PROTOCOL, "trainer", "other", "0")):
            await link.send(second)
        await house.happened("units.failed")
        await link.send(Bye("done"))
        await house.happened("node.left")
        assert await house.welcomed("trainer", "next")

    house = run(tmp_path, script)

    assert house.summary.failed == {"message: Hello of t: it has said Hello before": 2}
    assert [(e["node"], e["role"]) for e in house.events("node.joined")] == [("t", "trainer"), ("next", "trainer")]


def test_a_session_has_the_name_of_its_node(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        link = house.hub.connect("a.0")
        await link.send(Hello(PROTOCOL, "rollout", "b", "0"))
        assert await link.receive() == Reject("its Hello is invalid: the session of a.0 is not that of b.0")

    assert run(tmp_path, script).events("node.joined") == []


def test_a_node_that_is_rejected_again_and_again_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "BURST_REJECTIONS", 5)

    async def script(house: House) -> None:
        link = house.hub.connect("a.0")
        for _ in range(200):
            await link.send(Hello(PROTOCOL + 1, "rollout", "a", "0"))
            assert isinstance(await link.receive(), Reject)

    told = run(tmp_path, script).events("node.rejected")

    assert [event["num_rejected"] for event in told] == [1, 2, 3, 4, 5]


def test_a_node_of_another_run_is_refused_with_both_runs(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        link = house.hub.connect("a.0")
        await link.send(Hello(PROTOCOL, "rollout", "a", "0", run_id="run-0"))
        assert await link.receive() == Reject(
            f"a belongs to run run-0, this broker serves run run-1 in {house.directory.path.resolve()}: start the node "
            f"again to join this run"
        )

    assert run(tmp_path, script).events("node.joined") == []
