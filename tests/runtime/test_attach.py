"""An existing engine is attached to a broker over real sockets, and detached again."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from structlog.testing import capture_logs

from asyncrl.config.config import to_json
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Bye, Hello, Ready, Welcome
from asyncrl.messages.spool import Put
from asyncrl.messages.trajectory import Trajectory
from asyncrl.messages.wire import CODEC, PROTOCOL
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.runtime.attach import OwnJudge, attach, attach_reward
from asyncrl.runtime.rollout import Host
from asyncrl.testing import FakeEngine
from asyncrl.weights.contents.layout import Layout
from asyncrl.wire import handshake
from asyncrl.wire.zmq_hub import ZmqHub
from tests.runtime.attached import CONFIG, LEASE, Run, free_address, only_spool, received


def test_a_host_rolls_out_with_its_own_engine_and_leaves_when_cancelled() -> None:
    engine = FakeEngine(num_tokens=3)

    async def scene() -> list[str]:
        broker, spool = ZmqHub("ipc://*", CODEC), ZmqHub("ipc://*", CODEC)
        try:
            async with asyncio.timeout(60.0):
                attached = asyncio.create_task(attach(engine, broker.address, "server-1", slots=4))
                peer, hello = await received(broker, Hello)
                assert isinstance(hello, Hello)
                assert (hello.protocol, hello.role, hello.node) == (PROTOCOL, "rollout", "server-1")
                broker.send(peer, Welcome(1, "runs/x", to_json(CONFIG), only_spool(spool.address), beat_s=0.05))
                _, ready = await received(broker, Ready)
                assert ready == Ready(Layout(engine.specs(), CONFIG.weights.bucket_bytes).hash)
                broker.send(peer, LEASE)
                _, put = await received(spool, Put)
                assert isinstance(put, Put)
                attached.cancel()
                await asyncio.wait([attached])
                await received(broker, Bye)
                return [msgspec.msgpack.decode(item.payload, type=Trajectory).node for item in put.items]
        finally:
            await broker.aclose()
            await spool.aclose()

    threads = set(threading.enumerate())
    assert asyncio.run(scene()) == ["server-1"]
    assert set(threading.enumerate()) <= threads


def test_a_host_that_starts_first_waits_for_the_broker_with_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "FIRST_WARNING_S", 0.01)
    address = free_address()

    async def scene(logs: list[MutableMapping[str, Any]]) -> None:
        async with asyncio.timeout(60.0):
            attached = asyncio.create_task(attach(FakeEngine(num_tokens=3), address, "server-1", slots=4))
            while len(logs) < 2:
                await asyncio.sleep(0.005)
            broker = ZmqHub(address, CODEC)
            _, hello = await received(broker, Hello)
            assert isinstance(hello, Hello)
            assert hello.node == "server-1"
            attached.cancel()
            await asyncio.wait([attached])
            await broker.aclose()

    with capture_logs() as logs:
        asyncio.run(scene(logs))
    assert {(entry["event"], entry["log_level"], entry["address"]) for entry in logs} == {
        ("broker.awaited", "warning", address)
    }
    assert logs[0]["cause"].startswith("nothing listens there")


HOST = """
import asyncio, logging, sys
from asyncrl import attach
from asyncrl.wire import handshake
from asyncrl.testing import FakeEngine

handshake.FIRST_WARNING_S = 0.05

async def main():
    task = asyncio.create_task(attach(FakeEngine(num_tokens=3), sys.argv[1], "server-1", slots=4, wait_s=0.3))
    await asyncio.wait([task])
    print("the host serves on", type(task.exception()).__name__)

asyncio.run(main())
logging.basicConfig(format="%(message)s")
logging.error("configured")
asyncio.run(main())
"""


class Served(NamedTuple):
    """Output of a host whose broker is not there, and its errors before and after it configured logging."""

    address: str
    output: str
    before: list[str]
    after: list[str]


@pytest.fixture(scope="module")
def served() -> Served:
    address = free_address()
    command = [sys.executable, "-c", HOST, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said = done.stderr.splitlines()
    place = said.index("configured")
    return Served(address, done.stdout, said[:place], said[place + 1 :])


@pytest.mark.slow("real processes that import torch")
def test_a_host_that_configured_no_logging_gets_no_output(served: Served) -> None:
    assert served.output == "the host serves on LinkError\n" * 2
    assert served.before == []


@pytest.mark.slow("a host that imports torch")
def test_an_end_that_nobody_awaits_is_an_error_in_the_log_that_the_host_configured(served: Served) -> None:
    address, said = served.address, served.after
    assert said[0].startswith(f"broker.awaited node='server-1' address='{address}' waited_s=0.1 cause='nothing listens")
    cause = f"LinkError: no broker answered at {address} within 0.3 s: nothing listens there: the broker does not run,"
    assert any(line.startswith(f"rollout.ended node='server-1' address='{address}' cause='{cause}") for line in said)


def test_users_who_stay_for_long_have_the_node_hand_back_its_work_and_join_again_later() -> None:
    engine, host = FakeEngine(), Host(grace_s=0.0, hand_back_s=0.05)

    async def scene() -> None:
        states = list[str]()
        async with asyncio.timeout(60.0), Run(engine, host) as run:
            assert (await run.welcome()).run_id == ""
            run.broker.send(run.peer, LEASE)
            await engine.started(1)
            engine.write(2)
            with host.user_request():
                put = await run.settle()
                assert [(item.summary.num_tokens, item.summary.finish_reason) for item in put.items] == [
                    (2, "unfinished")
                ]
                await received(run.broker, Bye)
                states.append(host.health.state)
            assert (await run.welcome()).run_id == "r1", "it joins no other run"
            assert host.health.policy_version == -1
        assert [*states, host.health.state] == ["paused_for_users", "ended"]

    asyncio.run(scene())


LEFTOVERS = """
import asyncio, os, sys
from pathlib import Path
import zmq
from asyncrl import Host
from asyncrl.testing import FakeEngine
sys.path.insert(0, sys.argv[1])
from tests.runtime.attached import LEASE, Run

def links():
    for path in Path("/proc/self/fd").iterdir():
        try:
            yield os.readlink(path)
        except FileNotFoundError:  # the descriptor of this listing
            pass

def children(threads):
    for thread in threads:
        try:
            yield from (thread / "children").read_text().split()
        except FileNotFoundError:  # a thread that has ended meanwhile
            pass

def left():
    threads = list(Path("/proc/self/task").iterdir())
    return sum(link.startswith("socket:") for link in links()), len(threads), list(children(threads))

async def main():
    zmq.Context.instance().socket(zmq.PAIR).close()  # ZeroMQ's context keeps two threads for the process.
    before = left()
    for attempt in range(3):
        async with Run(FakeEngine(), Host()) as run:
            await run.welcome()
            run.broker.send(run.peer, LEASE)
            await run.engine.started(1)
            assert left() > before
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with asyncio.timeout(20):
            while left() != before:  # ZeroMQ's thread closes what was given back.
                await asyncio.sleep(0.01)
    print("nothing left behind")

asyncio.run(main())
"""


@pytest.mark.slow("real processes that import torch")
def test_a_cancelled_node_leaves_no_socket_thread_or_child_behind() -> None:
    command = [sys.executable, "-c", LEFTOVERS, str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("nothing left behind\n", "")


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="address is 'localhost:5570': expected tcp://HOST"):
        asyncio.run(attach(FakeEngine(num_tokens=3), "localhost:5570", "server-1", slots=4))


# ── a grading service ─────────────────────────────────────────────────────────────────────────

INPUTS = VerifierInput(
    prompt="2+2=", completion="4", answer="4", data_source="", extra={}, finish_reason="stop", num_tokens=1
)


async def right(inputs: VerifierInput) -> dict[str, float]:
    return {"score": float(inputs.completion == inputs.answer)}


def test_a_grading_service_joins_as_a_reward_node_and_leaves_when_cancelled() -> None:
    async def scene() -> None:
        broker = ZmqHub("ipc://*", CODEC)
        try:
            async with asyncio.timeout(60.0):
                attached = asyncio.create_task(attach_reward(right, broker.address, "grader-1"))
                peer, hello = await received(broker, Hello)
                assert isinstance(hello, Hello)
                assert (hello.role, hello.node) == ("reward", "grader-1")
                broker.send(peer, Welcome(1, "runs/x", to_json(CONFIG), only_spool("ipc:///none"), beat_s=0.05))
                await received(broker, Offer)
                attached.cancel()
                await asyncio.wait([attached])
                await received(broker, Bye)
        finally:
            await broker.aclose()

    asyncio.run(scene())


def test_a_service_gives_the_verdicts_of_its_own_function_and_no_reward_for_a_failure() -> None:
    async def broken(inputs: VerifierInput) -> float:
        raise KeyError(inputs.answer)

    async def slow(inputs: VerifierInput) -> float:
        await asyncio.Event().wait()
        return float(inputs.num_tokens)

    async def wrong(inputs: VerifierInput) -> str:
        return inputs.answer

    async def verdict(grade: Any) -> Verdict:
        return await OwnJudge(grade, at_once=2, timeout_s=0.01).judge(INPUTS)

    assert asyncio.run(verdict(right)) == Verdict(1.0, {"correct": 1.0})
    for grade, cause in ((broken, "raised KeyError: '4'"), (slow, "took longer than 0.01 s"), (wrong, "returned '4'")):
        with pytest.raises(VerifierError, match=cause):
            asyncio.run(verdict(grade))
