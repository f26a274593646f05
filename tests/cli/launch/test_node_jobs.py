"""Jobs of nodes that join a broker: bad options are refused before anything is started."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.cli.launch.node_jobs import NodeOptions, finder, node_job, replicas_job, spool_job, until_run_is_over
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import ConfigError, ToldToLeave
from asyncrl.messages.words import Role
from asyncrl.node.process.process import Stopping
from asyncrl.node.runner import ToldToStop

OPTIONS = NodeOptions("collective", may_fetch=True, wait_s=1.0)
FOUND = RunAddress("ipc:///nowhere")


async def find() -> RunAddress:
    return FOUND


@pytest.mark.parametrize("replicas", ["0", "-1", "two", "1.5", ""])
def test_a_bad_number_of_replicas_is_refused(replicas: str) -> None:
    with pytest.raises(ConfigError, match=f"--replicas is {replicas!r}: expected auto or a number of at least 1"):
        replicas_job(find, "gpu-7", replicas, None, OPTIONS)


def test_devices_without_replicas_are_refused() -> None:
    with pytest.raises(ConfigError, match="--devices works only with --replicas"):
        replicas_job(find, "gpu-7", None, "0", OPTIONS)


def test_without_replicas_there_is_one_rollout_in_this_process() -> None:
    assert replicas_job(find, "gpu-7", None, None, OPTIONS) is None


@pytest.mark.parametrize(("address", "run_dir"), [(None, None), ("tcp://127.0.0.1:5570", Path("runs/a"))])
def test_a_node_is_told_the_brokers_address_or_the_run_directory(address: str | None, run_dir: Path | None) -> None:
    with pytest.raises(ConfigError, match="a reward needs the broker's address, --broker tcp://HOST:PORT, or on its"):
        finder("reward", address, run_dir, None, 1.0)


def test_a_spool_needs_a_folder_and_an_address_that_it_can_bind() -> None:
    with pytest.raises(ConfigError, match="--dir FOLDER is missing"):
        spool_job(find, "s", None, None, 1.0)
    with pytest.raises(ConfigError, match=r"--bind is 'tcp://10\.0\.0\.7': expected tcp://HOST:PORT"):
        spool_job(find, "s", Path("payloads"), "tcp://10.0.0.7", 1.0)


@pytest.mark.parametrize("role", ["rollout", "reward", "trainer"])
def test_each_role_has_its_own_work(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[tuple[RunAddress, str]] = []

    async def work(run: RunAddress, who: object, **_: object) -> None:
        began.append((run, role))

    module = "asyncrl.node.reward" if role == "reward" else f"asyncrl.node.{role}.{role}"
    monkeypatch.setattr(f"{module}.run_{role}", work)
    asyncio.run(_run(role))
    assert began == [(FOUND, role)]


async def _run(role: Role) -> None:
    await node_job(role, find, "n", OPTIONS)(Stopping())


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_node_that_a_signal_ended_is_to_come_back_and_one_that_the_broker_ended_is_not(is_waiting: bool) -> None:
    async def work(_: asyncio.Event) -> None:
        if is_waiting:
            raise ToldToStop

    async def scene(*, by_signal: bool) -> None:
        stopping = Stopping()
        stopping.by_signal = by_signal
        stopping.set()
        await until_run_is_over(work, None)(stopping)

    asyncio.run(scene(by_signal=False))
    with pytest.raises(ToldToLeave, match="a signal told this process to leave, and its run goes on"):
        asyncio.run(scene(by_signal=True))
