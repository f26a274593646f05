"""A host's side of an attached rollout: users' requests go in, health comes out."""

import asyncio
import threading
import zlib
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec
import pytest
import torch
from msgspec import structs
from structlog.testing import capture_logs

from asyncrl.config.config import Config, to_json
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.rollout import Rollout, Vllm
from asyncrl.config.sections.run import Model
from asyncrl.config.sections.weights import Weights
from asyncrl.engine import Completion, Engine, Request
from asyncrl.errors import ConfigError, LinkReset, LinkSilent
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Beat, Hello, Ready, Welcome
from asyncrl.messages.trajectory import Prompt, Sampling, Span, Unit
from asyncrl.messages.weights import FetchWeights, ListWeights, Live, PutWeights, Transfer, TransferFailed, WeightsList
from asyncrl.messages.wire import CODEC
from asyncrl.rollout.generations import Generations
from asyncrl.runtime.attach import attach
from asyncrl.runtime.process import StopEvent
from asyncrl.runtime.rollout import (
    Host,
    RolloutHealth,
    most_episodes,
    open_episodes,
    receiving_ranks,
    roll_out,
    run_rollout,
)
from asyncrl.runtime.sessions import RunNode
from asyncrl.spool.weights import WeightStore
from asyncrl.testing import FakeEngine
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.shared import SharedTensors
from asyncrl.wire import zmq_link
from asyncrl.wire.handshake import Identity
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub
from tests.config.configs import made
from tests.runtime.attached import CONFIG, LEASE, Run, free_address, only_spool, received
from tests.runtime.refusing import refused
from tests.weights.shared_memory import shared_memory
from tests.weights.stored import versions


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_before_attach_it_waits_for_the_broker() -> None:
    assert Host(clock=Clock()).health == RolloutHealth(state="waiting_for_broker", since=0.0)


def test_a_state_keeps_its_time_until_another_one_begins() -> None:
    clock = Clock()
    host = Host(clock=clock)
    times: list[tuple[str, float]] = []
    for now_s, state in [(1.0, "joining"), (2.0, "joining"), (3.0, "rolling_out"), (4.0, "ended")]:
        clock.now_s = now_s
        host.enter(state)  # type: ignore[arg-type]
        times.append((host.health.state, host.health.since))
    assert times == [("joining", 1.0), ("joining", 1.0), ("rolling_out", 3.0), ("ended", 4.0)]


def test_users_pause_a_rollout_that_rolls_out_and_no_other() -> None:
    async def scene() -> None:
        clock = Clock()
        host = Host(grace_s=0.0, clock=clock)
        host.users.watch(lambda: None)
        with host.user_request():
            assert host.health.state == "waiting_for_broker"
        await host.users.until_idle()
        host.enter("rolling_out")
        clock.now_s = 5.0
        with host.user_request():
            assert (host.health.state, host.health.since) == ("paused_for_users", 5.0)
            clock.now_s = 6.0
        await host.users.until_idle()
        assert (host.health.state, host.health.since) == ("rolling_out", 6.0)

    asyncio.run(scene())


def test_tokens_of_all_sessions_are_counted_and_the_last_error_is_kept() -> None:
    async def scene() -> None:
        host = Host()
        for num_tokens in (3, 4):
            generations = Generations(FakeEngine(), "server-1")
            generations.calls.num_tokens = generations.policy_version = num_tokens
            host.rolls_out(generations)
        assert (host.health.num_tokens, host.health.policy_version, host.health.in_hand) == (7, 4, 0)
        host.rolls_out(None)
        host.failed(LinkSilent("tcp://b:1 has not answered for 30 s"))
        assert (host.health.num_tokens, host.health.policy_version) == (7, -1)
        assert host.health.last_error == "LinkSilent: tcp://b:1 has not answered for 30 s"

    asyncio.run(scene())


def test_any_thread_reads_the_health() -> None:
    host, seen = Host(), list[RolloutHealth]()
    thread = threading.Thread(target=lambda: seen.append(host.health))
    thread.start()
    thread.join(10)
    assert seen == [host.health]


# ── test episodes ─────────────────────────────────────────────────────────────────────────────
# The environments of a rollout's process.

TILL = """
from asyncrl.environment import Step

class Till:
    def reset(self, task):
        self.left = int(task.answer)

    def step(self, said):
        self.left -= 1
        return Step(messages=[{"role": "user", "content": "again"}], reward=1.0, done=self.left == 0)
"""


class TwoTokens(FakeEngine):
    async def generate(self, request: Request) -> Completion:
        return Completion(
            completion_ids=[7, 8],
            behavior_logprobs=[-0.5, -0.5],
            spans=[Span(0, 0, 2)],
            finish_reason="stop",
            generate_s=0.0,
        )


def config(folder: Path, **environment: object) -> Config:
    (folder / "till.py").write_text(TILL)
    return made(environment={"function": f"{folder}/till.py:Till", "workers": 1, **environment})


def play(config: Config, engine: Engine) -> list[int]:
    async def scene() -> list[int]:
        async with asyncio.timeout(60), open_episodes(config, engine, run_id="r", node="n", slots=4) as episodes:
            assert episodes is not None
            episode = episodes.begin(
                Unit(0, 0),
                Prompt(text="how many", answer="3"),
                [1, 2],
                sample=engine.generate,
                written=engine.written,
                sampling=Sampling(4),
                seed=1,
            )
            sampled = await episode.run()
            assert sum(turn.reward for turn in sampled.turns) == 3.0
            return [turn.parent for turn in sampled.turns]

    return asyncio.run(scene())


def test_an_episode_is_played_with_an_environment_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert play(config(tmp_path), TwoTokens()) == [-1, 0, 1]


def test_an_environment_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Tall"):
        play(config(tmp_path, function=f"{tmp_path}/till.py:Tall"), TwoTokens())


def test_an_engine_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    class Mute:
        generate = written = None

    with pytest.raises(ConfigError, match="episodes of several turns need an engine"):
        play(config(tmp_path), Mute())  # type: ignore[arg-type]


def test_without_an_environment_there_are_no_episodes() -> None:
    async def scene() -> None:
        async with open_episodes(made(), FakeEngine(), run_id="r", node="n", slots=4) as episodes:
            assert episodes is None

    asyncio.run(scene())
    assert most_episodes(made(), 4) == 0


def test_twice_as_many_episodes_as_slots_are_in_hand_unless_set(tmp_path: Path) -> None:
    assert most_episodes(config(tmp_path), 4) == 8
    assert most_episodes(made(environment={"function": "a.py:A"}, rollout={"episodes": 5}), 4) == 5


def test_programs_are_four_for_each_core_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    command = {"command": ["agent"]}
    assert most_episodes(made(environment=command), 64) == 12
    assert most_episodes(made(environment=command), 2) == 4
    assert most_episodes(made(environment=command, rollout={"episodes": 50}), 2) == 50


# ── test receivers ────────────────────────────────────────────────────────────────────────────
# Weights reach an attached engine by the way that it has named.


class MultiProcessFake(FakeEngine):
    """An engine whose own processes map the weights."""

    ranks = 2

    def __init__(self) -> None:
        super().__init__(num_tokens=3)
        self.loaded: list[dict[str, torch.Tensor]] = []
        """What a process has read, by version."""

    def specs(self) -> list[TensorSpec]:
        return versions.SPECS

    async def receiver(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("it takes part in no collective")

    async def swap(self, policy_version: int, weights: Mapping[str, torch.Tensor]) -> None:
        place = msgspec.json.decode(msgspec.json.encode(SharedTensors.locate(weights)), type=SharedTensors)
        self.loaded.append({name: tensor.clone() for name, tensor in place.map().items()})
        await super().swap(policy_version, {})


async def serve_weights(hub: ZmqHub, store: WeightStore) -> None:
    while True:
        peer, message = await hub.receive()
        if isinstance(message, ListWeights | FetchWeights):
            hub.send(peer, store.answer(message))


def test_the_processes_of_an_engine_map_each_version_that_the_node_has_fetched(tmp_path: Path) -> None:
    engine = MultiProcessFake()
    config = structs.replace(CONFIG, weights=Weights(bucket_bytes=128))

    async def scene(store: WeightStore) -> None:
        broker, spool = ZmqHub("ipc://*", CODEC), ZmqHub("ipc://*", CODEC)
        serving = asyncio.create_task(serve_weights(spool, store))
        async with asyncio.timeout(60.0):
            attached = asyncio.create_task(attach(engine, broker.address, "server-1", slots=4, weights="spool"))
            peer, _ = await received(broker, Hello)
            broker.send(peer, Welcome(1, "runs/x", to_json(config), only_spool(spool.address), beat_s=0.05))
            _, ready = await received(broker, Ready)
            assert ready == Ready(versions.LAYOUT.hash, ranks=1, weights="spool")
            for version, weights in ((3, versions.anchor(3)), (4, versions.delta(4))):
                base = None if weights.is_anchor else versions.contents(version - 1)
                [part] = versions.parts(versions.contents(version), base)
                store.put(PutWeights(weights, 0, zlib.crc32(part), memoryview(part), is_last=True))
                broker.send(peer, Transfer(0, version, members=[], keep=False, deadline_s=0.0))
                _, live = await received(broker, Live)
                assert isinstance(live, Live)
                assert live.policy_version == version
            attached.cancel()
            await asyncio.wait([attached])
        serving.cancel()
        await broker.aclose()
        await spool.aclose()

    with closing(WeightStore(tmp_path)) as store:
        asyncio.run(scene(store))
    for loaded, version in zip(engine.loaded, (3, 4), strict=True):
        expected = versions.tensors(version)
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    assert engine.calls == ["pause", "swap 3", "resume", "pause", "swap 4", "resume"]
    assert shared_memory() == []


def test_the_first_process_of_an_engine_receives_for_all_unless_each_loads_bucket_by_bucket() -> None:
    ranks = [
        receiving_ranks(engine, Weights(staging=staging))
        for engine in (MultiProcessFake(), FakeEngine())
        for staging in ("whole", "bucket")
    ]
    assert ranks == [1, 2, 1, 1]


def test_a_host_that_fetches_its_weights_says_so_and_asks_the_spool() -> None:
    async def scene() -> None:
        broker, spool = ZmqHub("ipc://*", CODEC), ZmqHub("ipc://*", CODEC)
        async with asyncio.timeout(60.0):
            attached = asyncio.create_task(
                attach(FakeEngine(num_tokens=3), broker.address, "server-1", slots=4, weights="spool")
            )
            peer, _ = await received(broker, Hello)
            broker.send(peer, Welcome(1, "runs/x", to_json(CONFIG), only_spool(spool.address), beat_s=0.05))
            _, ready = await received(broker, Ready)
            assert isinstance(ready, Ready)
            assert ready.weights == "spool"
            broker.send(peer, Transfer(0, 3, members=[], keep=False, deadline_s=0.0))
            asking, _ = await received(spool, ListWeights)
            assert asking == f"{peer}.weights.1"
            spool.send(asking, WeightsList([]))
            _, failed = await received(broker, TransferFailed)
            assert failed == TransferFailed(0, 3, "the spool has no files that lead to version 3")
            attached.cancel()
            await asyncio.wait([attached])
        await broker.aclose()
        await spool.aclose()

    asyncio.run(scene())


# ── test rollout ──────────────────────────────────────────────────────────────────────────────
# A rollout that cannot start reports the cause to the broker and to its caller.


async def start(run: RunAddress, who: Identity) -> None:
    await run_rollout(RunNode(who, run, wait_s=10.0), StopEvent())


def with_vllm(each: int = 1) -> Config:
    return Config(
        model=Model(path="m"),
        data=Data(train="t"),
        rollout=Rollout(engine="vllm", vllm=Vllm(tensor_parallel_size=each)),
    )


@pytest.mark.slow("vLLM takes seconds to import")
def test_an_engine_that_needs_more_devices_than_there_are_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    error, reason = refused(with_vllm(2), "rollout", start)
    assert error == reason
    assert error == (
        f"on {gethostname()}: rollout.vllm.tensor_parallel_size = 2 needs 2 devices, but this process may use 1 "
        f"(CUDA_VISIBLE_DEVICES=3)"
    )


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_an_engine_that_is_not_installed_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    error, reason = refused(with_vllm(), "rollout", start)
    assert error == reason
    assert "rollout.engine is 'vllm', but vLLM is not installed" in error
    assert "asyncrl[vllm]" in error


# ── test sessions ─────────────────────────────────────────────────────────────────────────────
# Sessions of a rollout: the broker is lost, joined again, and users come first.


def test_a_broker_that_falls_silent_is_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_link, "SILENT_TICKS", 2)

    async def scene(logs: list[MutableMapping[str, Any]]) -> None:
        broker, spool = ZmqHub(free_address(), CODEC), ZmqHub(free_address(), CODEC)
        address = broker.address
        async with asyncio.timeout(60.0):
            attached = asyncio.create_task(attach(FakeEngine(num_tokens=3), address, "server-1", slots=4))
            peer, _ = await received(broker, Hello)
            broker.send(peer, Welcome(1, "runs/x", to_json(CONFIG), only_spool(spool.address), beat_s=0.05))
            await received(broker, Ready)
            await broker.aclose()
            while "broker.lost" not in {entry["event"] for entry in logs}:
                await asyncio.sleep(0.01)
            assert not attached.done()
            broker = ZmqHub(address, CODEC)
            again, _ = await received(broker, Hello)
            assert again != peer
            attached.cancel()
            await asyncio.wait([attached])
            await broker.aclose()
            await spool.aclose()

    with capture_logs() as logs:
        asyncio.run(scene(logs))


def test_a_lost_broker_shows_in_the_health_and_its_return_too() -> None:
    engine, host = FakeEngine(num_tokens=3), Host()

    async def scene() -> None:
        async with asyncio.timeout(60.0), Run(engine, host) as run:
            await run.welcome()
            run.broker.forget(run.peer)  # As a broker that restarted.
            await run.welcome()
        assert host.health.last_error.startswith("LinkReset: ")

    asyncio.run(scene())


def test_users_in_hand_keep_the_node_from_offering_slots_and_from_decoding() -> None:
    engine, host = FakeEngine(num_tokens=3), Host(grace_s=0.0)

    async def scene() -> None:
        async with asyncio.timeout(60.0), Run(engine, host) as run:
            with host.user_request():
                await run.welcome()
                run.broker.send(run.peer, LEASE)
                messages = [(await run.broker.receive())[1] for _ in range(3)]
                assert {type(message) for message in messages} == {Beat}, (
                    "its leases are kept, and no more are asked for"
                )
                assert engine.requests == []
            await received(run.broker, Offer)
            await run.settle()

    asyncio.run(scene())


def test_a_broker_that_is_lost_before_sampling_begins_ends_the_node_which_does_not_load_twice() -> None:
    opened = []

    class Node:
        async def sessions(self) -> AsyncIterator[None]:
            for _ in range(2):
                yield None

    async def open_engine(session: object) -> Any:
        opened.append(session)
        raise LinkReset("it restarted")

    node: Any = Node()
    with pytest.raises(LinkReset, match="it restarted"):
        asyncio.run(roll_out(node, open_engine, weights="collective", host=Host()))
    assert len(opened) == 1
