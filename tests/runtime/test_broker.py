"""The broker's process asks for a staleness when it is due, and goes on if there is none."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from asyncrl.broker.actor import BrokerActor
from asyncrl.broker.ledger.database import LockWait
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.staleness_control import StalenessChoice, steps_between
from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.data.images import describe
from asyncrl.data.prompts import held_out_stream, train_stream
from asyncrl.errors import AsyncrlError, ConfigError, DataError
from asyncrl.files.access import write_secret
from asyncrl.messages.session import Hello
from asyncrl.messages.spool import Fetch, Fetched, SpoolRef
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import read_run
from asyncrl.runtime import broker
from asyncrl.runtime.broker import (
    Choose,
    _report_shared_prompts,
    _report_skipped_rows,
    _status,
    control_staleness,
    open_ledger,
    require_same_data,
    run_broker,
)
from asyncrl.runtime.keys import BrokerKeys
from asyncrl.wire.curve import hub_keys_of
from asyncrl.wire.handshake import identity, join, leave, spool_connector, spool_links
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.spools import ImageCache, reached_spools
from tests.broker.driver import a_config, a_scheduler
from tests.config.configs import made
from tests.conftest import draw_picture

AUTO = a_config(run={"steps": 60}, schedule={"groups_per_step": 2, "group_size": 2, "staleness": "auto"})
CHOICE = StalenessChoice(2.0, 1.0, "because")


class Broker:
    """Records what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def follow(self, choice: StalenessChoice) -> None:
        self.told.append(choice)

    def unplanned(self, cause: str) -> None:
        self.told.append(cause)


def played(choose: Choose, *, looks: int = 3, prepare: Callable[[object], None] = lambda _: None) -> list[object]:
    """What the broker is told while a step is trained between two looks."""
    scheduler, broker, left = a_scheduler(AUTO), Broker(), looks
    prepare(scheduler)

    async def sleep(seconds: float) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise asyncio.CancelledError
        scheduler.training.batches.next_step += 1

    async def main() -> None:
        await control_staleness(cast("BrokerActor", broker), scheduler, Path("run"), choose, sleep)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    return broker.told


async def chosen(path: Path) -> StalenessChoice:
    assert path == Path("run")
    return CHOICE


async def failed(_: Path) -> StalenessChoice:
    raise AsyncrlError("no such program")


def test_it_asks_once_until_as_many_steps_have_passed_again() -> None:
    every = steps_between(AUTO.schedule)
    assert played(chosen, looks=every - 1) == []
    assert played(chosen, looks=every) == [CHOICE]
    assert played(chosen, looks=2 * every) == [CHOICE, CHOICE]


def test_a_plan_that_cannot_be_fitted_is_told_and_asked_for_again_later() -> None:
    assert played(failed, looks=2 * steps_between(AUTO.schedule)) == ["no such program"] * 2


def test_nothing_is_asked_after_an_operator_has_decided() -> None:
    def decide(scheduler: object) -> None:
        scheduler.settings.apply({"schedule.staleness": 0.0}, "alice")  # type: ignore[attr-defined]

    assert played(chosen, looks=60, prepare=decide) == []


# ── test broker ───────────────────────────────────────────────────────────────────────────────
# Reports of a broker before it serves, and where nodes reach its sockets.

SECRET = bytes(range(32))
DEADLINE_S = 30.0


def test_held_out_prompts_that_are_trained_on_are_an_event(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "run")
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "answer": 1}\n{"prompt": "b", "answer": 1}\n')
    (tmp_path / "held.jsonl").write_text('{"prompt": "a", "answer": 1}\n{"prompt": "c", "answer": 1}\n')
    data = Data(train=str(tmp_path / "train.jsonl"), held_out=str(tmp_path / "held.jsonl"))

    _report_shared_prompts(directory, train_stream(data, seed=0), held_out_stream(data, 0))

    assert read_run(directory.path).shared_prompts() == (1, 2)


def test_rows_that_are_skipped_are_counted_with_their_reasons(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "run")
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": "a", "answer": 1}\n{"prompt": "", "answer": 1}\n{"prompt": "b"}\n{"prompt": "", "answer": 1}\n'
    )
    prompts = train_stream(Data(train=str(tmp_path / "rows.jsonl"), on_bad_row="skip"), seed=0)

    _report_skipped_rows(directory, {"train": prompts, "held_out": None})

    (event,) = directory.read_events()
    assert (event["event"], event["split"], event["num_rows"]) == ("data.rows_skipped", "train", 3)
    assert list(event["reasons"].items()) == [
        ("'prompt' is empty", 2),
        ("'answer' must be text or a number, got null", 1),
    ]


def test_a_run_does_not_continue_with_other_rows(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    data = Data(train=str(rows))

    def start(*answers: int) -> None:
        rows.write_text("".join(f'{{"prompt": "a", "answer": {answer}}}\n' for answer in answers))
        ledger = Ledger(tmp_path / "ledger.sqlite")
        try:
            require_same_data(data, ledger, {"train": train_stream(data, seed=0), "held_out": None})
        finally:
            ledger.close()

    start(1, 2)
    start(1, 2)
    with pytest.raises(DataError, match=r"data\.train: .*rows\.jsonl has other rows than when this run began"):
        start(2, 1)


def not_started(tmp_path: Path) -> RunDirectory:
    """The run of a broker that no reward is for the rows of."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": 1, "data_source": "mine"}\n')
    config = made(data={"train": str(tmp_path / "rows.jsonl")}, model={"path": "/nowhere"})
    directory = RunDirectory.create(tmp_path, "run")

    async def scene() -> None:
        keys = BrokerKeys(hub_keys_of(SECRET), directory.secret)
        never = asyncio.Event()
        await run_broker(
            config, directory, bind=[], keys=keys, listening=lambda _: pytest.fail("it listens"), stopping=never
        )

    with pytest.raises(ConfigError, match="no reward is for rows with data_source 'mine'"):
        asyncio.run(scene())
    return directory


def test_rows_that_no_reward_is_for_stop_the_broker_before_it_listens(tmp_path: Path) -> None:
    not_started(tmp_path)


def test_a_model_that_the_brokers_machine_lacks_is_told_because_only_nodes_may_have_it(tmp_path: Path) -> None:
    (told,) = not_started(tmp_path).read_events()
    assert told["event"] == "config.advice"
    assert str(told["advice"]).startswith("model.path '/nowhere' is not on this machine: nodes cannot fetch it")


@asynccontextmanager
async def served(config: Config, directory: RunDirectory) -> AsyncIterator[list[str]]:
    """Serve a run, and give the addresses that its broker listens at."""
    stopping: asyncio.Event = asyncio.Event()
    listening: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    serve = run_broker(
        config,
        directory,
        bind=config.broker.binds,
        keys=BrokerKeys(hub_keys_of(SECRET), directory.secret),
        listening=listening.set_result,
        stopping=stopping,
    )
    serving = asyncio.create_task(serve)
    yield await listening
    stopping.set()
    await serving


@pytest.mark.parametrize(
    ("settings", "via", "expected"),
    [
        ({"bind": "tcp://0.0.0.0:0"}, "127.0.0.1", "tcp://127.0.0.1:"),
        ({"bind": "tcp://*:0"}, "localhost", "tcp://localhost:"),
        (
            {"bind": ["tcp://127.0.0.1:0", "tcp://127.0.0.2:0"], "advertise": "localhost"},
            "127.0.0.2",
            "tcp://localhost:",
        ),
        ({"bind": "tcp://127.0.0.1:0"}, "127.0.0.1", "ipc://"),
    ],
    ids=str,
)
def test_a_node_reaches_the_spool_of_a_broker_that_it_reached(
    tmp_path: Path, settings: dict[str, Any], via: str, expected: str
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "answer": 1, "data_source": "openai/gsm8k"}\n')
    config = made(data={"train": str(rows)}, schedule={"groups_per_step": 1}, broker=settings)
    directory = RunDirectory.create(tmp_path, "run")
    write_secret(directory.secret, SECRET)

    async def scene() -> None:
        async with asyncio.timeout(DEADLINE_S), served(config, directory) as bound:
            assert len(bound) == len(config.broker.binds)
            run = RunAddress(f"tcp://{via}:{bound[0].rpartition(':')[2]}", directory.secret)
            who = identity("reward", "reward-0")
            link, welcome = await join(run, who, DEADLINE_S)
            (address,) = reached_spools(welcome.spools, run.broker).spools
            assert address.address.startswith(expected)
            spool = spool_connector(who, run.keys())(address)
            await spool.send(Fetch(1, [SpoolRef("spool", 0, 0, 1, 0)]))
            answer = await spool.receive()
            assert isinstance(answer, Fetched)
            assert [bytes(payload) for payload in answer.payloads] == [b""], "the spool is empty"
            await spool.aclose()
            await leave(link, "done")
        if expected == "ipc://":
            assert not Path(address.address.removeprefix(expected)).parent.exists(), "it goes with the broker"

    asyncio.run(scene())


def test_a_node_that_joins_before_the_brokers_own_spool_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "_run_spool", lambda *_: asyncio.Event().wait())
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "answer": 1, "data_source": "openai/gsm8k"}\n')
    config = made(data={"train": str(rows)}, schedule={"groups_per_step": 1}, broker={"bind": "tcp://127.0.0.1:0"})
    directory = RunDirectory.create(tmp_path, "run")
    write_secret(directory.secret, SECRET)

    async def scene() -> list[str]:
        async with asyncio.timeout(DEADLINE_S), served(config, directory) as (bound,):
            link, welcome = await join(RunAddress(bound, directory.secret), identity("rollout", "far"), DEADLINE_S)
            await leave(link, "done")
        return [spool.name for spool in welcome.spools.spools]

    assert asyncio.run(scene()) == ["spool"]


def with_picture(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Settings of a dataset of one prompt with a picture, and the file."""
    content = draw_picture(24, 16)
    (folder / "red.png").write_bytes(content)
    row = '{"prompt": "<image>?", "answer": 1, "data_source": "openai/gsm8k", "images": ["red.png"]}\n'
    (folder / "rows.jsonl").write_text(row)
    return {"train": str(folder / "rows.jsonl")}, content


def test_a_broker_sends_the_pictures_of_its_prompts(tmp_path: Path) -> None:
    data, content = with_picture(tmp_path)
    config = made(data=data, schedule={"groups_per_step": 1})
    directory = RunDirectory.create(tmp_path, "run")
    write_secret(directory.secret, SECRET)

    async def scene() -> None:
        stopping: asyncio.Event = asyncio.Event()
        listening: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        serve = run_broker(
            config,
            directory,
            bind=["tcp://127.0.0.1:0"],
            keys=BrokerKeys(hub_keys_of(SECRET), directory.secret),
            listening=listening.set_result,
            stopping=stopping,
        )
        serving = asyncio.create_task(serve)
        async with asyncio.timeout(DEADLINE_S):
            run = RunAddress((await listening)[0], directory.secret)
            who = identity("reward", "reward-0")
            link, welcome = await join(run, who, DEADLINE_S)
            links = spool_links(welcome.spools, who, run)
            running = asyncio.create_task(links.run())
            assert await ImageCache(links).fetch([describe(content)] * 2, DEADLINE_S) == [content] * 2
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await leave(link, "done")
            stopping.set()
            await serving

    with capture_logs() as logs:
        asyncio.run(scene())
    reading = [line["event"] for line in logs if line["event"].startswith("ledger.") and line["num_records"] == 1]
    assert reading == ["ledger.reading", "ledger.read"]
    (sent,) = [event for event in directory.read_events() if event["event"] == "images.sent"]
    assert (sent["num_images"], sent["by_node"]) == (1, {"reward-0": 1})


def test_pictures_without_the_spool_that_sends_them_stop_the_broker(tmp_path: Path) -> None:
    data, _ = with_picture(tmp_path)
    config = made(data=data, broker={"spool": False})
    directory = RunDirectory.create(tmp_path, "run")
    keys = BrokerKeys(hub_keys_of(SECRET), directory.secret)
    serve = run_broker(config, directory, bind=[], keys=keys, listening=lambda _: None, stopping=asyncio.Event())
    with pytest.raises(ConfigError, match=r"prompts with pictures need the spool .*: set broker\.spool to true"):
        asyncio.run(serve)


def test_the_state_for_a_service_manager_counts_no_sessions_of_operators() -> None:
    config = a_config(run={"steps": 5})
    scheduler = a_scheduler(config)
    sessions: list[tuple[Role, str]] = [("rollout", "a"), ("supervisor", "operator-7")]
    for role, name in sessions:
        node = scheduler.joined(f"{name}.0", Hello(PROTOCOL, role, name, "0"), 0.0)
        node.is_quiet = True
    assert _status(config, scheduler, 0.0) == "step 0 of 5, v-1, 1 nodes, not heard: a"


def test_the_state_for_a_service_manager_names_a_spool_that_is_away() -> None:
    config = a_config(run={"steps": 5})
    scheduler = a_scheduler(config)
    scheduler.spools.expect(["spool-7"])
    scheduler.spools.overdue(0.0)
    told = _status(config, scheduler, 12.0)
    assert told == "step 0 of 5, v-1, 0 nodes; spool-7 has been away for 12 s: no group waits for it"


# ── test opening ──────────────────────────────────────────────────────────────────────────────
# A broker that starts waits for a locked ledger, and hears meanwhile that it is to stop.


def test_a_ledger_that_nobody_has_locked_is_opened_and_prepared(tmp_path: Path) -> None:
    async def main() -> None:
        ledger = await open_ledger(
            tmp_path / "ledger.sqlite", lambda ledger: ledger.write_meta("a", 7), asyncio.Event()
        )
        assert ledger
        assert ledger.read_meta("a") == 7
        assert not ledger.lock_wait.has_given_up
        ledger.close()

    asyncio.run(main())


def test_a_locked_ledger_is_told_of_and_left_when_the_broker_is_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "LOCKED_S", 0.0)
    monkeypatch.setattr(broker, "LOOK_S", 0.001)
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()

    async def main() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()

        def told_to_stop(_: float) -> None:
            loop.call_soon_threadsafe(stopping.set)

        lock_wait = LockWait(sleep=told_to_stop)
        assert await open_ledger(path, lambda _: None, stopping, lock_wait) is None

    with closing(sqlite3.connect(path, isolation_level=None)) as other, capture_logs() as logs:
        other.execute("BEGIN IMMEDIATE")
        asyncio.run(main())
    assert [line["event"] for line in logs] == ["ledger.locked", "ledger.left_locked"]


def test_a_ledger_that_cannot_be_prepared_is_closed(tmp_path: Path) -> None:
    opened = []

    def prepare(ledger: Ledger) -> None:
        opened.append(ledger)
        raise ConfigError("other data")

    with pytest.raises(ConfigError, match="other data"):
        asyncio.run(open_ledger(tmp_path / "ledger.sqlite", prepare, asyncio.Event()))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].read_meta("run_id")
