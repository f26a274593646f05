"""Somebody on another machine without a key reads nothing of a run and changes nothing of it."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import NodeEvent
from asyncrl.records.run_directory import RunDirectory
from asyncrl.wire.zmq_hub import PROVED_BYTES
from tests.cluster.machine import Machine
from tests.cluster.namespace import Process
from tests.cluster.network import Network
from tests.integration.node_processes import CONFIG
from tests.patience import PATIENCE_S

pytestmark = [
    pytest.mark.slow("whole runs of real processes on several machines"),
    pytest.mark.usefixtures("machines_permitted"),
]
CONTROL, SPOOL, PROXY = 5570, 5571, 5580
TASK = "/root/task"
RECORDED = "/root/recorded"
INTRUDER = (sys.executable, "-m", "tests.cluster.intruder")
GREETING_BYTES = 64


class Scene:
    """A broker with keys, an honest node whose connection passes through the intruder's machine, and the intruder."""

    def __init__(self, network: Network) -> None:
        self.broker, self.honest, self.intruder = network.add("broker", "honest", "intruder")
        self.run = RunDirectory(self.broker.path("/root/run"))
        self._task = self.broker.path(TASK)
        for machine in (self.broker, self.honest):
            write_task(machine.path(TASK))
        network.boot()

    def start(self) -> None:
        asyncrl(self.broker, "keys", "init", "--keys", "/root/keys")
        for name in ("honest", "later"):
            asyncrl(self.broker, "keys", "add", name, "--role", "reward", "--keys", "/root/keys")
            made = self.broker.path(f"/root/keys/nodes/{name}.key")
            copy = self.honest.path(f"/root/{name}.key")
            copy.write_bytes(made.read_bytes())
            copy.chmod(0o600)
        proxy = self.intruder.start("proxy.log", *INTRUDER, "record", str(PROXY), self.address(CONTROL), RECORDED)
        proxy.until_ready()
        options = ["--config", f"{TASK}/run.toml", "--run-dir", "/root/run", "--keys", "/root/keys"]
        options += ["--set", f'broker.spool_bind="tcp://{self.address(SPOOL)}"']
        self.node(self.broker, "broker", self.address(CONTROL), *options)
        self.join("honest", f"{self.intruder.ipv4}:{PROXY}")

    def join(self, name: str, address: str) -> None:
        node = self.node(self.honest, "reward", address, "--name", name, "--key", f"/root/{name}.key")
        until(lambda: name in self.joined(), node)

    def node(self, machine: Machine, role: str, address: str, *options: str) -> Process:
        command = [sys.executable, "-m", "asyncrl.cli.node", "--role", role, "--broker", f"tcp://{address}"]
        return machine.start(f"{role}.log", *command, *options)

    def address(self, port: int) -> str:
        return f"{self.broker.ipv4}:{port}"

    def joined(self) -> list[str]:
        """Names of the nodes that joined, in the ledger and in the events."""
        events = self.run.read_events() if self.run.events.exists() else []
        in_events = [event["node"] for event in events if event["event"] == "node.joined"]
        records = read_records(self.run.ledger) if events else []
        in_ledger = [record.node for record in records if isinstance(record, NodeEvent) and record.event == "joined"]
        return in_ledger if in_ledger == in_events else []

    def attack(self, port: int) -> dict[str, int]:
        """What comes back from a port of the broker's machine, by what was sent."""
        shown = asyncrl(self.broker, "keys", "list", "--keys", "/root/keys")
        public = next(word for word in shown.split() if len(word) == 64)
        found: dict[str, int] = json.loads(
            self.intruder.run(*INTRUDER, "attack", self.address(port), public, RECORDED, seconds=120)
        )
        return found

    def state(self) -> tuple[object, ...]:
        """Everything that a run leaves on its disk, without what it says of refused keys."""
        files = [path for path in self.run.spool.rglob("*") if path.is_file()]
        spool = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        return list(read_records(self.run.ledger)), spool, self.events(refused=False)

    def events(self, *, refused: bool) -> list[dict[str, Any]]:
        """Events of refused keys, or all others."""
        return [event for event in self.run.read_events() if (event["event"] == "key.refused") == refused]


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Network() as network:
        scene = Scene(network)
        scene.start()
        yield scene


def test_an_intruder_reads_nothing_and_changes_nothing(scene: Scene) -> None:
    before = scene.state()
    for port in (CONTROL, SPOOL):
        found = scene.attack(port)
        assert found.pop("unknown key") == found.pop("wrong server key") == 0
        # A handshake is answered up to WELCOME: the recorded INITIATE is of another connection's keys.
        assert GREETING_BYTES < found.pop("replay step by step") <= PROVED_BYTES
        assert max(found.values()) <= GREETING_BYTES, found

    assert scene.state() == before
    assert {event["address"] for event in scene.events(refused=True)} == {scene.intruder.ipv4}
    scene.join("later", scene.address(CONTROL))
    assert sorted(scene.joined()) == ["honest", "later", "spool"]
    for kept in ("", ".answers"):
        wire = scene.intruder.path(f"{RECORDED}{kept}").read_bytes()
        assert len(wire) > PROVED_BYTES
        assert all(word not in wire for word in (b"Hello", b"Welcome", b"honest", b"reward", TASK.encode()))


def write_task(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n' * 8)
    (folder / "score.py").write_text("def score(sample):\n    return 1.0\n")
    (folder / "run.toml").write_text(CONFIG.format(folder=TASK))


def asyncrl(machine: Machine, *arguments: str) -> str:
    return machine.run(sys.executable, "-m", "asyncrl", *arguments)


def until(condition: Callable[[], bool], process: Process) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, process.last_lines()
        assert time.monotonic() < deadline_s, process.last_lines()
        time.sleep(0.05)
