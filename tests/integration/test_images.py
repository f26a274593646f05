"""The whole loop with pictures, in one process: each node fetches each picture once, also across a broker's death."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from asyncrl.broker.actor import BrokerActor
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.replay import replay
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.data.prompts import held_out_stream, train_stream
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Ready, Stop
from asyncrl.messages.spool import Fetch, SpoolAddress
from asyncrl.messages.token_ids import UNKNOWN
from asyncrl.messages.trainer import Batch, Commit, Stepped, Take
from asyncrl.messages.weights import Published, Publishing, Transfer, Transferred
from asyncrl.messages.words import Role
from asyncrl.records.run_directory import RunDirectory
from asyncrl.reward.actor import RewardActor
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.rollout.actor import RolloutActor, RolloutOptions
from asyncrl.rollout.generations import Generations
from asyncrl.runtime.sessions import Actor
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.images import ImageStore
from asyncrl.spool.segments import Segments
from asyncrl.testing import IMAGE_GRID, FakeEngine
from asyncrl.trainer.loop.fetching import fetch_step, limits_of
from asyncrl.trainer.packing.step import TrainingStep
from asyncrl.wire.handshake import Connection, hello, identity, leave, shake_hands
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.spools import ImageCache, PayloadClient, SpoolLinks
from tests.conftest import draw_picture, make_vision_model
from tests.integration.conftest import ToyRun

STEPS, GROUP_SIZE = 6, 2
PICTURES = [draw_picture(24 + 8 * number, 16, seed=number) for number in range(4)]
HELD_OUT = draw_picture(16, 16, seed=9)
DIGESTS = [hashlib.sha256(content).digest() for content in PICTURES]


class WatchedHub(MemoryHub):
    """Counts the pictures that each node asks for."""

    def __init__(self, fetches: Counter[tuple[str, bytes]]) -> None:
        super().__init__()
        self._fetches = fetches

    async def receive(self) -> tuple[str, Message]:
        peer, message = await super().receive()
        if isinstance(message, Fetch):
            self._fetches.update((peer.partition(".")[0], digest) for digest in message.images)
        return peer, message


class Judge:
    """Pool of one verdict for the first trajectory of a group, and another for the rest."""

    async def judge(self, inputs: VerifierInput) -> Verdict:
        return Verdict(1.0, {"correct": 1.0})


class Receiver:
    """Weights that arrive at once."""

    async def transfer(self, transfer: Transfer) -> float:
        return 0.0

    def weights(self) -> Mapping[str, Any]:
        return {}


class FakeTrainer:
    """Takes, fetches and commits every step; what it has survives its sessions."""

    def __init__(self, config: Config) -> None:
        self.images = ImageCache()
        self.steps: list[TrainingStep] = []
        self._config = config

    def assign_ranks(self, infos: list[Any]) -> list[int]:
        return [0] * len(infos)

    async def run(self, connection: Connection, until_step: int) -> None:
        """One session, up to the end of a step or of the run."""
        link, first = connection.broker, len(self.steps)
        self.images.connect(connection.spools)
        links = asyncio.create_task(connection.spools.run())
        await link.send(Ready(layout_hash="layout"))
        await link.send(Publishing(first, first))
        async for message in link:
            match message:
                case Transfer(transfer_group=group, policy_version=version):
                    await link.send(Transferred(group, version, 0.0, 0))
                case Published(policy_version=version) if version == len(self.steps) < until_step:
                    await link.send(Take(version))
                case Batch():
                    await self._train(connection, message)
                case Stop():
                    break
            if len(self.steps) == until_step < STEPS:
                break
        links.cancel()

    async def _train(self, connection: Connection, batch: Batch) -> None:
        fakes: Any = self, PayloadClient(connection.spools)
        limits = limits_of(self._config, UNKNOWN, batch.step)
        fetched = await fetch_step(batch, *fakes, images=self.images, rank=0, config=self._config, limits=limits)
        assert fetched.refused == []
        self.steps.append(fetched.step)
        await connection.broker.send(Stepped(batch.step, batch.step, {"num_tokens": 1.0}))
        await connection.broker.send(Publishing(batch.step + 1, batch.step + 1))
        await connection.broker.send(Commit(batch.step, f"step_{batch.step}"))


class Cluster:
    """Nodes that outlive the broker, each life of which is one call of `live`."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.config = config
        self.directory = RunDirectory.create(folder, "run")
        self.fetches = Counter[tuple[str, bytes]]()
        self.engine = FakeEngine(num_tokens=3)
        self.trainer = FakeTrainer(config)

    async def live(self, until_step: int) -> None:
        """Serve the run until its trainer has done so many steps, then die without a word."""
        async with AsyncExitStack() as files, asyncio.TaskGroup() as tasks:
            control, payloads = MemoryHub(), WatchedHub(self.fetches)
            ledger, store = Ledger(self.directory.ledger), ImageStore(self.directory.spool)
            segments = Segments(self.directory.spool)
            for file in (ledger, store, segments):
                files.callback(file.close)
            held_out = [draw.prompt for draw in held_out_stream(self.config.data, 9, store.add).since(0)]
            stream = train_stream(self.config.data, 0, store.add)
            scheduler = Scheduler(self.config, stream, held_out, ledger.broker_term)
            replay(scheduler, read_records(self.directory.ledger, is_writer_process=True))
            broker = BrokerActor(
                self.config,
                scheduler,
                control,
                ledger,
                self.directory,
                connect=lambda _: payloads.connect("broker"),
                broker_term=ledger.broker_term,
                run_id=ledger.run_id,
            )

            async def connect(role: Role, generations: Generations | None = None) -> Connection:
                who = identity(role, role)
                held = generations.begin_session() if generations else []
                spool = SpoolAddress("spool", "memory") if role == "spool" else None
                link = control.connect(who.peer)
                welcome = await shake_hands(link, who, lambda who: replace(hello(who), spool=spool, held=held))
                return Connection(who, link, SpoolLinks(lambda _: payloads.connect(who.peer), welcome.spools))

            async def host(actor: Actor, connection: Connection) -> None:
                await actor.run()
                await leave(connection.broker, "the run is over")

            running = [tasks.create_task(broker.run())]
            connection = await connect("spool")
            spool = SpoolActor("spool", segments, payloads, connection.broker, images=store)
            running.append(tasks.create_task(host(spool, connection)))
            fakes: Any = Receiver(), Judge()
            connection = await connect("rollout", self.generations)
            rollout = RolloutActor(
                self.engine,
                connection,
                RolloutOptions(group_size=GROUP_SIZE, layout_hash="layout"),
                receiver=fakes[0],
                generations=self.generations,
            )
            running.append(tasks.create_task(host(rollout, connection)))
            connection = await connect("reward")
            running.append(tasks.create_task(host(RewardActor(pool=fakes[1], connection=connection), connection)))
            connection = await connect("trainer")
            await self.trainer.run(connection, until_step)
            if until_step == STEPS:
                await leave(connection.broker, "the run is over")
                await asyncio.wait(running)
            for task in running:
                task.cancel()
        await payloads.aclose()

    async def play(self, *until_steps: int) -> None:
        self.generations = Generations(self.engine, "rollout")
        for until_step in until_steps:
            async with asyncio.timeout(10):
                await self.live(until_step)
        await self.generations.aclose()


def dataset(folder: Path) -> Config:
    """Four prompts with a picture each, taken three times, and one that is held out."""

    def write(name: str, contents: list[bytes]) -> str:
        rows = [
            {"prompt": f"<image> what is {number}?", "answer": "1", "images": [{"bytes": content, "path": None}]}
            for number, content in enumerate(contents)
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / name)
        return str(folder / name)

    return decode(
        {
            "run": {"steps": STEPS},
            "model": {"path": "model"},
            "data": {"train": write("train.parquet", PICTURES), "held_out": write("held_out.parquet", [HELD_OUT])},
            "schedule": {"groups_per_step": 2, "group_size": GROUP_SIZE},
            "evaluation": {"every_versions": 3},
        }
    )


def check_steps(steps: list[TrainingStep]) -> None:
    """Every trajectory was trained with the picture of its prompt, and the sampler's grid."""
    assert len(steps) == STEPS
    seen = Counter[bytes]()
    for step in steps:
        assert len(step.trajectories) == 2 * GROUP_SIZE
        for trajectory in step.trajectories.values():
            (image,) = trajectory.images
            row = int(trajectory.prompt_ids[-1])
            assert PICTURES[DIGESTS.index(image.digest)] == image.content
            assert image.grid == IMAGE_GRID
            assert row == 2, "the word that ends the prompt"
            seen[image.digest] += 1
    assert seen == dict.fromkeys(DIGESTS, STEPS * 2 * GROUP_SIZE // 4)


def test_each_picture_is_fetched_once_by_each_node(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, dataset(tmp_path))
    asyncio.run(cluster.play(STEPS))

    check_steps(cluster.trainer.steps)
    all_digests = [*DIGESTS, hashlib.sha256(HELD_OUT).digest()]
    once = {("rollout", digest): 1 for digest in all_digests} | {("trainer", digest): 1 for digest in DIGESTS}
    assert {key: count for key, count in cluster.fetches.items() if key[0] != "broker"} == once
    assert not {peer for peer, _ in cluster.fetches} - {"rollout", "trainer", "broker"}
    assert {request.images for request in cluster.engine.requests} == {(content,) for content in [*PICTURES, HELD_OUT]}


def test_pictures_that_a_node_has_survive_the_death_of_the_broker(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, dataset(tmp_path))
    asyncio.run(cluster.play(1, 3, STEPS))

    check_steps(cluster.trainer.steps)
    assert {count for (node, _), count in cluster.fetches.items() if node != "broker"} == {1}
    assert cluster.directory.read_summary().status == "finished"  # type: ignore[union-attr]


def test_samples_have_the_picture_of_each_group_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, dataset(tmp_path))
    asyncio.run(cluster.play(STEPS))

    rows = [
        row
        for path in sorted(cluster.directory.samples.glob("*.parquet"))
        for row in pq.read_table(path, columns=["group_id", "images"]).to_pylist()
    ]
    assert len(rows) == STEPS * 2 * GROUP_SIZE
    assert {row["images"][0]["path"] for row in rows} == {digest.hex() for digest in DIGESTS}
    with_bytes = [row["group_id"] for row in rows if row["images"][0]["bytes"]]
    assert sorted(with_bytes) == list(range(STEPS * 2))


def vision_data(folder: Path) -> list[str]:
    """Settings of a run with a small model that reads pictures, and eight prompts that need them."""
    make_vision_model(folder / "vision")
    rows = [
        {"prompt": "<image> How many a b ?", "answer": "1", "images": [draw_picture(16 + 8 * (n % 3), 16, seed=n)]}
        for n in range(8)
    ]
    for name in ("train", "held_out"):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    files = {name: folder / f"{name}.parquet" for name in ("train", "held_out")}
    return [f"model.path={folder / 'vision'}", *(f"data.{name}={path}" for name, path in files.items())]


@pytest.mark.long("tests above kill the broker in one process")
@pytest.mark.parametrize(("victim", "lives"), [("broker-0", 1), ("rollout-0", 2)])
def test_a_killed_process_costs_no_prompt_and_no_other_node_a_picture(
    start_run: Callable[..., ToyRun], tmp_path: Path, victim: str, lives: int
) -> None:
    run = start_run(*vision_data(tmp_path), "checkpoint.every_steps=2", steps=12)
    run.until(lambda: run.steps_done() >= 4)
    run.kill_node(victim)
    assert run.end().code == 0, (run.errors, run.output)
    assert run.summary.status == "finished"
    run.assert_adds_up()
    assert run.audit().problems == []
    (sent,) = (event for event in run.events if event["event"] == "images.sent")
    assert sent["num_images"] == 8
    assert all(count <= 8 * (lives if node == victim else 1) for node, count in sent["by_node"].items())
