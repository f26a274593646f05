"""Of two processes of one name the older one stays displaced, until the name is free."""

from pathlib import Path
from typing import cast

import pytest

from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import NodeEvent
from asyncrl.broker.sessions import DisplacedBook, is_late
from asyncrl.config.config import from_json
from asyncrl.errors import LinkReset
from asyncrl.messages.session import Bye, Hello, Ready, Reject, Welcome
from asyncrl.messages.spool import SpoolAddress, Spools, SpoolSet
from asyncrl.messages.token_ids import UNKNOWN, TokenIds
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role
from asyncrl.wire.curve import RefusedKey
from tests.broker.house import CONFIG, House, impatient, run


def hello(incarnation: str, node: str = "twin") -> Hello:
    return Hello(PROTOCOL, "rollout", node, incarnation)


def test_a_process_whose_place_is_taken_is_displaced_in_all_its_sessions() -> None:
    book = DisplacedBook()
    book.joined(hello("1-a-7"), [])
    book.joined(hello("2-b-7"), ["1-a-7"])
    assert book.is_displaced(hello("3-a-7"))
    assert not book.is_displaced(hello("3-b-7"))
    assert not book.is_displaced(hello("3-a-7", node="other"))


def test_a_process_that_joins_again_displaces_nobody() -> None:
    book = DisplacedBook()
    book.joined(hello("2-a-7"), ["1-a-7"])
    assert not book.is_displaced(hello("3-a-7"))


def test_a_process_that_got_the_place_back_is_not_displaced() -> None:
    book = DisplacedBook()
    book.joined(hello("2-b-7"), ["1-a-7"])
    book.joined(hello("3-a-7"), [])
    assert not book.is_displaced(hello("4-a-7"))


def test_an_incarnation_that_tells_no_process_is_never_displaced() -> None:
    book = DisplacedBook()
    book.joined(hello("1"), ["0"])
    assert not book.is_displaced(hello("0"))


def test_what_a_process_said_before_its_successor_started_is_late() -> None:
    assert is_late("18ebca6fd756a632-a-7", "18ebca6fd756a633-b-9")
    assert not is_late("18ebca6fd756a633-b-9", "18ebca6fd756a632-a-7")
    assert is_late("1-a-7", "2-a-7"), "an earlier session of one process: its Hello was on the way for long"
    assert not is_late("2-a-7", "1-a-7"), "a later session of one process ends the earlier one"
    assert not is_late("no time", "neither"), "nothing is known"


# ── test sessions ─────────────────────────────────────────────────────────────────────────────
# Sessions: which nodes are welcomed, and which are rejected with which reason.

__all__ = ["impatient"]


def test_a_welcome_has_all_a_node_needs(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        welcome = await (await house.joined("rollout", "a")).receive()
        assert isinstance(welcome, Welcome)
        assert from_json(welcome.config) == CONFIG
        assert (welcome.spools, welcome.broker_term, welcome.beat_s) == (SpoolSet(), 1, 0.5)
        assert Path(welcome.run_dir) == house.directory.path.resolve()

    house = run(tmp_path, script)

    assert [(e["node"], e["role"]) for e in house.events("node.joined")] == [("a", "rollout")]


def test_a_node_is_told_which_spools_there_are_and_a_rollout_with_which_it_stores(tmp_path: Path) -> None:
    address = SpoolAddress("s", "tcp://127.0.0.1:5555")

    async def script(house: House) -> None:
        early = await house.welcomed("rollout", "early")
        spool = await house.welcomed("spool", "s")
        assert await early.receive() == Spools(SpoolSet([address], "s"))
        for role, own in (("rollout", "s"), ("reward", "")):
            welcome = await (await house.joined(cast("Role", role), role)).receive()
            assert isinstance(welcome, Welcome)
            assert welcome.spools == SpoolSet([address], own)
        await spool.send(Bye("told to stop"))
        assert await early.receive() == Spools(SpoolSet())

    house = run(tmp_path, script)

    assert [event["spool"] for event in house.events("spool.away")] == ["s"]


def test_a_spool_of_another_run_is_told_to_take_another_folder(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        link = house.hub.connect("s.0")
        await link.send(Hello(PROTOCOL, "spool", "s", "0", run_id="run-2", spool=SpoolAddress("s", "tcp://s:1")))
        rejected = await link.receive()
        assert isinstance(rejected, Reject)
        assert rejected.reason.endswith("give it another --dir to join this run")

    run(tmp_path, script)


def test_another_protocol_is_refused_with_both_numbers(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        link = await house.joined("rollout", "a", protocol=PROTOCOL + 1)
        assert await link.receive() == Reject(
            f"this broker speaks protocol {PROTOCOL}, a speaks {PROTOCOL + 1}: install one version"
        )

    house = run(tmp_path, script)

    assert house.events("node.joined") == []
    assert [event["node"] for event in house.events("node.rejected")] == ["a"]


def test_a_second_trainer_is_refused(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        await house.welcomed("trainer", "first")
        link = await house.joined("trainer", "second", "1")
        assert await link.receive() == Reject("this run has a trainer already: first (started as 0)")

    assert run(tmp_path, script).events("node.lost") == []


def test_the_next_start_of_the_trainer_takes_its_place_at_once_and_cuts_it_off(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        old = await house.welcomed("trainer", "t")
        new = await house.joined("trainer", "t", "1")
        assert isinstance(await new.receive(), Welcome)
        reason = (
            "another process has joined as t, and takes its place: give each process another --name, or each service a "
            "key of its own"
        )
        assert await old.receive() == Reject(reason), "the two would displace each other for ever"
        with pytest.raises(LinkReset):
            await old.receive()
        trainer = house.scheduler.nodes.trainer()
        assert trainer
        assert trainer.incarnation == "1"

    (lost,) = run(tmp_path, script).events("node.lost")
    assert (lost["node"], lost["incarnation"], lost["cause"]) == ("t", "0", "another process joined under its name")


def test_a_process_whose_place_was_taken_is_refused_until_the_name_is_free(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        await house.joined("rollout", "twin", "1-a-7")
        newer = await house.joined("rollout", "twin", "2-b-7")
        assert isinstance(await newer.receive(), Welcome)
        refused = await house.joined("rollout", "twin", "3-a-7")
        answer = await refused.receive()
        assert isinstance(answer, Reject)
        assert answer.reason.startswith("another process has joined as twin")
        await newer.send(Bye("done"))
        again = await house.joined("rollout", "twin", "4-a-7")
        assert isinstance(await again.receive(), Welcome)

    run(tmp_path, script)


def test_a_late_hello_of_a_killed_process_does_not_displace_its_successor(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        successor = await house.joined("rollout", "a", "2-successor-8")
        assert isinstance(await successor.receive(), Welcome)
        await house.joined("rollout", "a", "1-killed-7")
        await house.happened("hello.late")
        (node,) = house.scheduler.nodes.named("a")
        assert node.incarnation == "2-successor-8"

    assert not run(tmp_path, script).events("node.lost")


def test_a_node_with_another_model_is_refused_with_both_layouts(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        trainer, rollout = await house.welcomed("trainer", "t"), await house.welcomed("rollout", "a")
        await trainer.send(Ready("1" * 64))
        await rollout.send(Ready("2" * 64))
        reject = await rollout.receive()
        assert reject == Reject(
            "a has another model than t: weight layouts 222222222222 and 111111111111 differ; "
            "give both the same model.path"
        )

    (lost,) = run(tmp_path, script).events("node.lost")
    assert lost["node"] == "a"


def test_a_node_with_other_token_ids_is_refused_with_both_counts(tmp_path: Path) -> None:
    trainers = TokenIds(40)
    others = {"more": TokenIds(41), "a hole": TokenIds(40, (7,)), "an end": TokenIds(40, ends=(1,))}

    async def script(house: House) -> None:
        trainer = await house.welcomed("trainer", "t")
        await trainer.send(Ready.of(trainers, "1" * 64))
        for name, ids in others.items():
            rollout = await house.welcomed("rollout", name.replace(" ", "-"))
            await rollout.send(Ready.of(ids, "1" * 64))
            reject = await rollout.receive()
            assert isinstance(reject, Reject)
            assert reject.reason == (
                f"{name.replace(' ', '-')} has another model than t: the token ids that can be sampled, "
                f"{ids.num_sampled} ({ids.digest[:12]}) and 40 ({trainers.digest[:12]}), differ; give both the same "
                f"model.path, and one version of transformers"
            )
        for name, ids in {"same": trainers, "cannot-tell": UNKNOWN}.items():
            rollout = await house.welcomed("rollout", name)
            await rollout.send(Ready.of(ids, "1" * 64))
        await house.happened("node.ready", 3)

    house = run(tmp_path, script)
    assert len(house.events("node.lost")) == len(others)


def test_the_trainer_decides_the_model_also_if_a_rollout_came_before_it(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        early, right = await house.welcomed("rollout", "early"), await house.welcomed("rollout", "right")
        await early.send(Ready("2" * 64))
        await right.send(Ready("1" * 64))
        await house.happened("node.ready", 2)
        trainer = await house.welcomed("trainer", "t")
        await trainer.send(Ready("1" * 64))
        assert await early.receive() == Reject(
            "early has another model than t: weight layouts 222222222222 and 111111111111 differ; "
            "give both the same model.path"
        )
        await house.happened("node.ready", 3)

    house = run(tmp_path, script)
    assert [lost["node"] for lost in house.events("node.lost")] == ["early"]
    assert [ready["node"] for ready in house.events("node.ready")] == ["early", "right", "t"]


def test_sessions_of_operators_are_no_events_unless_they_are_refused(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        operator = await house.welcomed("supervisor", "operator-7")
        await operator.send(Bye("done"))
        await house.joined("supervisor", "operator-8", protocol=PROTOCOL + 1)
        await house.welcomed("reward", "a")
        await house.joined("supervisor", "operator-7", "killed")
        for seconds, kind in ((5.0, "node.quiet"), (60.0, "node.lost")):
            house.now_s += seconds
            await house.happened(kind)

    house = run(tmp_path, script)
    assert [e["node"] for e in house.events("node.joined")] == ["a"]
    assert "operator-7" not in house.directory.events.read_text()
    assert [e["node"] for e in house.events("node.rejected")] == ["operator-8"]
    records = [one for one in read_records(house.directory.ledger) if isinstance(one, NodeEvent)]
    assert ("operator-7", "joined") in [(one.node, one.event) for one in records]


def test_a_session_that_only_asks_for_the_configuration_joins_nothing(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        link = house.hub.connect("gpu2.0")
        await link.send(Hello(PROTOCOL, "rollout", "gpu2", "0", only_asks=True))
        welcome = await link.receive()
        assert isinstance(welcome, Welcome)
        assert from_json(welcome.config) == CONFIG
        await link.send(Bye("done"))
        with pytest.raises(LinkReset):
            await link.receive()
        assert house.scheduler.nodes.all() == []

    house = run(tmp_path, script)
    assert "gpu2" not in house.directory.events.read_text()


def test_a_peer_whose_key_nobody_owns_is_an_event_once(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        for number in range(1, 4):  # It tries again.
            house.hub.refused_key = RefusedKey("00ff", "10.0.0.7", number)
            await house.happened("key.refused")
        house.hub.refused_key = RefusedKey("00aa", "10.0.0.7", 4)
        await house.happened("key.refused", 2)

    events = run(tmp_path, script).events("key.refused")
    assert [(event["key"], event["address"], event["num_refused"]) for event in events] == [
        ("00ff", "10.0.0.7", 1),
        ("00aa", "10.0.0.7", 4),
    ]


def test_a_node_that_joins_after_the_end_is_refused(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        rollout = await house.welcomed("rollout", "a")
        house.broker.stop("the broker was told to stop")
        await rollout.receive()
        late = await house.joined("rollout", "late")
        assert await late.receive() == Reject("this run is over: the broker was told to stop")
        await rollout.send(Bye("done"))

    assert run(tmp_path, script).cause == "the broker was told to stop"
