"""Brokers and nodes that do not belong together: other runs on one port, impostors, strangers without the secret."""

import asyncio
import os
import socket
from pathlib import Path

import pytest
import zmq

from asyncrl.broker.ledger.reader import read_records
from asyncrl.config.config import to_json
from asyncrl.config.run_file import load_config
from asyncrl.files.access import write_secret
from asyncrl.messages.codec import Envelope, encode
from asyncrl.messages.session import Hello, Welcome
from asyncrl.messages.spool import SpoolSet
from asyncrl.messages.wire import CODEC, PROTOCOL
from asyncrl.wire.curve import hub_keys_of
from asyncrl.wire.handshake import identity, join, leave
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub
from tests.integration.node_processes import EX_CONFIG, EX_UNAVAILABLE, Nodes, joined, until
from tests.patience import PATIENCE_S

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


@pytest.mark.long("two whole runs; the handshake is shown below")
def test_a_node_never_joins_the_next_run_on_its_brokers_port(nodes: Nodes) -> None:
    first, run_a = nodes.broker("a")
    reward = nodes.start("reward", "--secret", str(run_a.path / "secret"), "--wait", "8")
    until(lambda: joined(run_a) == ["reward-0"], reward)
    first.kill()
    first.wait()
    _, run_b = nodes.broker("b")

    _, errors = reward.communicate(timeout=PATIENCE_S)
    assert reward.returncode in (EX_UNAVAILABLE, EX_CONFIG)
    assert "does not share the secret" in errors
    assert "it serves another run" in errors
    assert joined(run_b) == []


@pytest.mark.slow("whole runs of real processes")
def test_with_one_secret_for_both_runs_it_is_refused_by_the_identity_of_the_run(nodes: Nodes) -> None:
    secret = nodes.folder / "shared"
    write_secret(secret, bytes(range(32)))
    imported = nodes.folder / "imported"
    (nodes.folder / "score.py").write_text(f"open({str(imported)!r}, 'w')\nscore = len\n")
    first, _ = nodes.broker("a", "--secret", str(secret))
    imported.unlink(missing_ok=True)
    reward = nodes.start("reward", "--secret", str(secret), "--wait", "30")
    until(imported.exists, reward)  # it has had its welcome, and knows which run it belongs to
    first.kill()
    first.wait()
    _, run_b = nodes.broker("b", "--secret", str(secret))

    _, errors = reward.communicate(timeout=PATIENCE_S)
    assert reward.returncode == EX_CONFIG
    (said,) = [line for line in errors.splitlines() if line.startswith("asyncrl: ")]
    assert said.startswith("asyncrl: reward-0 belongs to run ")
    assert said.endswith(f"in {run_b.path}: start the node again to join this run")
    assert joined(run_b) == []


@pytest.mark.slow("nodes are real processes")
def test_an_impostor_at_the_brokers_port_hears_nothing_and_no_file_is_imported(nodes: Nodes) -> None:
    (nodes.folder / "score.py").write_text(f"open({str(nodes.folder / 'imported')!r}, 'w')\nscore = len\n")
    secret = nodes.folder / "secret"
    write_secret(secret, bytes(range(32)))
    config = to_json(load_config(nodes.folder / "run.toml"))

    async def scene() -> tuple[int, str, list[object]]:
        impostor = ZmqHub(nodes.address, CODEC, keys=hub_keys_of(bytes(32)))
        heard: list[object] = []

        async def answer() -> None:
            while True:
                peer, message = await impostor.receive()
                heard.append(message)
                impostor.send(peer, Welcome(1, str(nodes.folder), config, SpoolSet(), 0.5))

        answering = asyncio.create_task(answer())
        node = nodes.start("reward", "--secret", str(secret))
        _, errors = await asyncio.to_thread(node.communicate, timeout=PATIENCE_S)
        answering.cancel()
        await impostor.aclose()
        return node.returncode, errors, heard

    code, errors, heard = asyncio.run(scene())
    assert (code, heard) == (EX_CONFIG, [])
    assert f"the broker at {nodes.address} does not share the secret in {secret}" in errors
    assert not (nodes.folder / "imported").exists()


def test_strangers_are_not_read_and_change_nothing(nodes: Nodes) -> None:
    broker, run = nodes.broker("a")
    before = (run.events.read_bytes(), list(read_records(run.ledger)))
    memory_kib = resident_kib(broker.pid)
    attacked = [
        GREETING,
        GREETING + b"\x06" + (1 << 62).to_bytes(8, "big") + bytes(10_000),
        GREETING + b"\x06" + (4 << 20).to_bytes(8, "big") + bytes(1 << 20),
        GREETING + (b"\x01\xff" + bytes(255)) * 100,
        os.urandom(5000),
        b"",
    ]
    crowd = []
    for number in range(120):
        stranger = socket.create_connection(("127.0.0.1", nodes.port), timeout=5)
        crowd.append(stranger)
        try:
            stranger.sendall(attacked[number % len(attacked)])
        except OSError:
            continue
    context = zmq.Context()
    dealers = [context.socket(zmq.DEALER) for _ in range(20)]
    for number, dealer in enumerate(dealers):
        dealer.setsockopt(zmq.ROUTING_ID, f"trainer-0.{number}".encode())
        dealer.connect(nodes.address)
        dealer.send(encode(Envelope(1, 0, Hello(PROTOCOL, "trainer", "trainer-0", str(number)))))

    async def honest() -> None:
        found = RunAddress(nodes.address, run.path / "secret")
        link, welcome = await join(found, identity("reward", "honest"), PATIENCE_S)
        assert welcome.run_dir == str(run.path)
        await leave(link, "done")

    asyncio.run(honest())
    until(lambda: b"node.left" in run.events.read_bytes(), broker)
    for stranger in crowd:
        stranger.close()
    for dealer in dealers:
        dealer.close(linger=0)
    context.destroy(linger=0)
    events, records = run.events.read_bytes(), list(read_records(run.ledger))
    assert events.startswith(before[0])
    assert {event["node"] for event in run.read_events() if "node" in event} == {"spool", "honest"}
    assert records[: len(before[1])] == before[1]
    assert resident_kib(broker.pid) - memory_kib < 64 << 10


def resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0])
