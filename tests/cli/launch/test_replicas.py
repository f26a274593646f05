"""Several rollouts of one machine: kept alive, drained together, and the first cause is the exit code's."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.actor.supervise import Child
from asyncrl.actor.zmq_link import ZmqHub
from asyncrl.cli.launch.replicas import Replicas, run_replicas
from asyncrl.config.sections import Config, Data, Model, Rollout, Supervisor, Vllm, to_json
from asyncrl.errors import AsyncrlError, ConfigError, LinkError, RunFailed
from asyncrl.messages import Hello, Welcome

CONFIG = Config(model=Model(path="m"), data=Data(train="t"), supervisor=Supervisor(max_restarts=1))
WAIT = 'trap "exit 0" TERM; echo up; while :; do sleep 0.02; done'
"""A replica that serves until it is told to leave, and then leaves."""


def run(*scripts: str, stop: bool = False) -> None:
    """Replicas that do these; told to leave once each has begun, if ``stop``."""

    async def scene() -> None:
        stopping = asyncio.Event()
        children = [Child(f"gpu-{i}", ["sh", "-c", script], None, {}) for i, script in enumerate(scripts)]
        running = asyncio.create_task(Replicas(children, CONFIG, stopping).run())
        while stop and not all(child.last_line() == "up" for child in children):
            await asyncio.sleep(0.01)
        if stop:
            stopping.set()
        async with asyncio.timeout(30):
            await running

    asyncio.run(scene())


def test_it_ends_when_all_have_left():
    run("exit 0", "exit 0")


def test_told_to_leave_they_all_do():
    run(WAIT, WAIT, stop=True)


def test_the_message_names_the_first_that_stays_away_and_its_last_words():
    with pytest.raises(RunFailed, match=r"^gpu-0 exited with 70: the engine died$"):
        run('echo "asyncrl: the engine died"; exit 70', "exit 0")


def test_while_one_stays_away_the_others_go_on(tmp_path):
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


def test_a_mistake_in_the_configuration_makes_all_leave_and_nothing_is_started_again(tmp_path):
    with pytest.raises(ConfigError, match="gpu-1 exited with 78"):
        run(WAIT, f"echo x >> {tmp_path}/starts; exit 78")
    assert (tmp_path / "starts").read_text() == "x\n"


def test_what_goes_wrong_while_leaving_is_told():
    with pytest.raises(RunFailed, match="gpu-1 exited with 70"):
        run(WAIT, WAIT.replace("exit 0", "exit 70"), stop=True)


# ── the whole way ───────────────────────────────────────────────────────────────────────────


def ask(config: Config, *, count: int | None = None, only: list[str] | None = None) -> None:
    """Start replicas by the configuration of a broker that answers one Hello."""

    async def scene() -> None:
        hub = ZmqHub("tcp://127.0.0.1:0")
        answering = asyncio.create_task(answer(hub, config))
        try:
            stopping = asyncio.Event()
            await run_replicas(hub.address, "gpu", count=count, only=only, wait_s=5.0, stopping=stopping)
        finally:
            answering.cancel()
            await hub.aclose()

    asyncio.run(scene())


async def answer(hub: ZmqHub, config: Config) -> None:
    while True:
        peer, message = await hub.receive()
        if isinstance(message, Hello):
            hub.send(peer, Welcome(1, str(Path.cwd()), to_json(config), "tcp://127.0.0.1:1", 0.5))


def vllm(each: int) -> Config:
    return Config(
        model=Model(path="m"),
        data=Data(train="t"),
        rollout=Rollout(engine="vllm", vllm=Vllm(tensor_parallel_size=each)),
    )


def test_what_one_replica_needs_is_asked_of_the_broker(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ConfigError, match=r"--replicas = 4 with .*tensor_parallel_size = 2 needs 8 devices, .* has 2"):
        ask(vllm(2), count=4)
    with pytest.raises(ConfigError, match=r"--replicas = 1 with .*tensor_parallel_size = 4 needs 4 devices, .* has 2"):
        ask(vllm(4))
    with pytest.raises(ConfigError, match=r"--replicas = 1 with .*tensor_parallel_size = 2 needs 2 devices, .* has 1"):
        ask(vllm(2), only=["1"])


def test_each_gets_a_name_and_devices_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    asked = []

    def role_process(role, name, config, log, *options, devices):
        asked.append((role, name, log, devices))
        return Child(name, ["true"], log, devices)

    monkeypatch.setattr("asyncrl.cli.launch.replicas.role_process", role_process)
    ask(vllm(2))
    assert asked == [
        ("rollout", "gpu-0", None, {"CUDA_VISIBLE_DEVICES": "4,5"}),
        ("rollout", "gpu-1", None, {"CUDA_VISIBLE_DEVICES": "6,7"}),
    ]
