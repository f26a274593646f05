"""Several rollouts on one machine: restarted, drained together; the first failure decides the exit code."""

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.config import Config, to_json
from asyncrl.config.sections.broker import Supervisor
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.rollout import Rollout, Vllm
from asyncrl.config.sections.run import Model
from asyncrl.errors import AsyncrlError, ConfigError, LinkError, RunFailed
from asyncrl.messages.session import Hello, Welcome
from asyncrl.messages.spool import SpoolSet
from asyncrl.messages.wire import CODEC
from asyncrl.runtime.metrics_server import MetricsOptions
from asyncrl.runtime.node_jobs import ChildStates, Replicas, run_replicas
from asyncrl.runtime.service_manager import ServiceManager, report_to
from asyncrl.runtime.sessions import ToldToStop
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.workers.child import Child

CONFIG = Config(model=Model(path="m"), data=Data(train="t"), supervisor=Supervisor(max_restarts=1))
WAIT = 'trap "exit 0" TERM; echo up; while :; do sleep 0.02; done'
"""Shell script of a replica that runs until SIGTERM, then exits with 0."""


def run(*scripts: str, stop: bool = False) -> None:
    """Run replicas with these scripts; with ``stop`` drain them once each has started."""

    async def scene() -> None:
        stopping = asyncio.Event()
        children = [Child(f"gpu-{i}", ["sh", "-c", script], None, {}) for i, script in enumerate(scripts)]
        running = asyncio.create_task(Replicas(children, ChildStates(), CONFIG, stopping).run())
        while stop and not all(child.last_line() == "up" for child in children):
            await asyncio.sleep(0.01)
        if stop:
            stopping.set()
        async with asyncio.timeout(30):
            await running

    asyncio.run(scene())


def test_the_run_ends_when_all_replicas_have_left():
    run("exit 0", "exit 0")


def test_all_replicas_are_drained_together():
    run(WAIT, WAIT, stop=True)


def test_a_replica_that_a_signal_ended_comes_back_and_all_leave_when_their_node_does(tmp_path):
    leaves = WAIT.replace("exit 0", "exit 143")
    once = f"echo x >> {tmp_path}/starts; [ -e {tmp_path}/once ] && {{ {leaves}; }}; touch {tmp_path}/once; exit 143"
    run(once, leaves, stop=True)
    assert (tmp_path / "starts").read_text() == "x\n" * 2


def test_the_error_names_the_first_failed_replica_and_its_message():
    with pytest.raises(RunFailed, match=r"^gpu-0 exited with 70: the engine died$"):
        run('echo "asyncrl: the engine died"; exit 70', "exit 0")


def test_the_other_replicas_continue_after_one_has_failed(tmp_path):
    died = f"{tmp_path}/died"
    with pytest.raises(RunFailed, match="gpu-0 was killed by SIGKILL"):
        run(
            f"echo x >> {died}; kill -KILL $$",
            f"touch {died}; until [ $(wc -l < {died}) = 2 ]; do sleep 0.02; done; touch {tmp_path}/done",
        )
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize(("code", "error"), [(78, ConfigError), (69, LinkError), (1, RunFailed), (70, RunFailed)])
def test_the_exit_code_is_that_of_the_cause(code, error):
    with pytest.raises(AsyncrlError, match=f"gpu-0 exited with {code}") as raised:
        run(f"exit {code}")
    assert type(raised.value) is error


def test_a_configuration_error_ends_all_replicas_without_a_restart(tmp_path):
    with pytest.raises(ConfigError, match="gpu-1 exited with 78"):
        run(WAIT, f"echo x >> {tmp_path}/starts; exit 78")
    assert (tmp_path / "starts").read_text() == "x\n"


def test_a_failure_while_draining_is_reported():
    with pytest.raises(RunFailed, match="gpu-1 exited with 70"):
        run(WAIT, WAIT.replace("exit 0", "exit 70"), stop=True)


REPORTER = """
import os, signal, sys
from asyncrl.runtime.service_manager import ServiceManager
manager = ServiceManager.from_environment(os.environ, os.getpid())
manager.ready(lambda: "v1")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    signal.pause()
"""
"""A replica that is ready until SIGTERM."""


class Manager(ServiceManager):
    """Remembers the time that the process needs to drain."""

    stop_s = 0.0

    def ready(self, describe: Callable[[], str], *, stop_s: float = 0.0) -> None:
        self.stop_s = stop_s
        super().ready(describe, stop_s=stop_s)


def test_the_parent_is_ready_once_one_replica_is() -> None:
    async def scene() -> list[tuple[str, str]]:
        stopping, states = asyncio.Event(), ChildStates()
        report_to(manager := Manager())
        environment = dict(states.environment())
        loading = Child("gpu-0", ["sh", "-c", WAIT], None, environment)
        ready = Child("gpu-1", [sys.executable, "-c", REPORTER], None, environment)
        running = asyncio.create_task(Replicas([loading, ready], states, CONFIG, stopping).run())
        while manager.status == "starting":
            await asyncio.sleep(0.01)
        told: list[tuple[str, str]] = [(manager.state, manager.status)]
        while manager.state == "starting":
            await asyncio.sleep(0.01)
        told.append((manager.state, manager.status))
        stopping.set()
        async with asyncio.timeout(30):
            await running
        assert manager.stop_s == CONFIG.rollout.drain_s, "it waits for the replicas to drain"
        return told

    first, last = asyncio.run(scene())
    assert first == ("starting", "0 of 2 replicas ready")
    assert last == ("ready", "1 of 2 replicas ready")


def test_the_parent_says_that_it_waits_for_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/broker"

    async def scene() -> tuple[str, str]:
        report_to(manager := Manager())
        stopping = asyncio.Event()
        asking = run_replicas(RunAddress(address), "gpu", count=1, only=None, wait_s=60.0, stopping=stopping)
        running = asyncio.create_task(asking)
        while manager.state == "starting":
            await asyncio.sleep(0)
        told = manager.state, manager.status
        stopping.set()
        with pytest.raises(ToldToStop):
            await running
        return told

    assert asyncio.run(scene()) == ("waiting", f"waiting for the broker at {address}")


# ── the whole way ───────────────────────────────────────────────────────────────────────────


def ask(config: Config, *, count: int | None = None, only: list[str] | None = None, **options: Any) -> None:
    """Start replicas with the configuration that a fake broker sends."""

    async def scene() -> None:
        hub = ZmqHub("ipc://*", CODEC)
        answering = asyncio.create_task(answer(hub, config))
        try:
            stopping = asyncio.Event()
            run = RunAddress(hub.address)
            await run_replicas(run, "gpu", count=count, only=only, wait_s=5.0, stopping=stopping, **options)
        finally:
            answering.cancel()
            await hub.aclose()

    asyncio.run(scene())


async def answer(hub: ZmqHub, config: Config) -> None:
    while True:
        peer, message = await hub.receive()
        if isinstance(message, Hello) and message.only_asks:
            hub.send(peer, Welcome(1, str(Path.cwd()), to_json(config), SpoolSet(), 0.5))


def vllm(each: int) -> Config:
    return Config(
        model=Model(path="m"),
        data=Data(train="t"),
        rollout=Rollout(engine="vllm", vllm=Vllm(tensor_parallel_size=each)),
    )


def test_the_number_of_devices_per_replica_comes_from_the_broker(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ConfigError, match=r"--replicas = 4 with .*tensor_parallel_size = 2 needs 8 devices, .* has 2"):
        ask(vllm(2), count=4)
    with pytest.raises(ConfigError, match=r"--replicas = 1 with .*tensor_parallel_size = 4 needs 4 devices, .* has 2"):
        ask(vllm(4))
    with pytest.raises(ConfigError, match=r"--replicas = 1 with .*tensor_parallel_size = 2 needs 2 devices, .* has 1"):
        ask(vllm(2), only=["1"])


def test_each_replica_has_a_name_and_devices_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    asked = []

    def role_process(role, name, config, log, *options, environment):
        asked.append((role, name, log, dict(environment)))
        weights.add(options[options.index("--weights") + 1])
        return Child(name, ["true"], log, environment)

    weights: set[str] = set()
    monkeypatch.setattr("asyncrl.runtime.node_jobs.role_process", role_process)
    ask(vllm(2))
    assert weights == {"collective"}
    for *_, environment in asked:
        assert environment.pop("NOTIFY_SOCKET").startswith("@"), "it reports to its parent"
    assert asked == [
        ("rollout", "gpu-0", None, {"CUDA_VISIBLE_DEVICES": "4,5"}),
        ("rollout", "gpu-1", None, {"CUDA_VISIBLE_DEVICES": "6,7"}),
    ]


def test_each_replica_serves_its_metrics_behind_the_port_of_their_parent(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    asked = []

    def role_process(role, name, config, log, *options, environment):
        asked.append(options[options.index("--metrics") :])
        return Child(name, ["true"], log, environment)

    monkeypatch.setattr("asyncrl.runtime.node_jobs.role_process", role_process)
    ask(vllm(1), metrics=MetricsOptions("0.0.0.0", 9400))
    assert asked == [("--metrics", f"0.0.0.0:{port}", "--metrics-open") for port in (9401, 9402)]


# ── test child states ─────────────────────────────────────────────────────────────────────────
# The states of children are those that they report themselves.

PID = os.getpid()


async def after(states: ChildStates, send: object, changed: asyncio.Event) -> bool:
    """Whether this process is ready after ``send``."""
    changed.clear()
    assert callable(send)
    send()
    async with asyncio.timeout(30):
        await changed.wait()
    return states.is_ready(PID)


def test_a_child_is_ready_while_it_says_so() -> None:
    async def scene() -> list[bool]:
        states, changed = ChildStates(), asyncio.Event()
        child = ServiceManager.from_environment(dict(states.environment()), PID)
        with states.received(changed.set):
            return [
                states.is_ready(PID),
                await after(states, lambda: child.waiting("loading"), changed),
                await after(states, lambda: child.ready(lambda: "v1"), changed),
                await after(states, lambda: child.waiting("waiting for the broker"), changed),
                await after(states, lambda: child.ready(lambda: "v1"), changed),
                states.is_ready(None),
                await after(states, lambda: child.stopping("ending"), changed),
            ]

    assert asyncio.run(scene()) == [False, False, True, False, True, False, False]


def test_what_is_no_report_is_passed_over() -> None:
    async def scene() -> bool:
        states, changed = ChildStates(), asyncio.Event()
        (address,) = states.environment().values()
        child = ServiceManager(address)

        def send() -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                for text in (b"", b"\xff", b"STATUS=v1", b"STATE=ready"):
                    out.sendto(text, "\0" + address[1:])
            child.ready(lambda: "v1")

        with states.received(changed.set):
            return await after(states, send, changed)

    assert asyncio.run(scene())
