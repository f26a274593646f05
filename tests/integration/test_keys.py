"""A broker with keys of its own: who may join it, as what, and for how long."""

import asyncio
import re
import subprocess
import time
from pathlib import Path

import pytest

from asyncrl.errors import LinkRefused, UnknownKey
from asyncrl.messages.trainer import Commit
from asyncrl.records.run_directory import RunDirectory
from asyncrl.wire.handshake import identity, join
from asyncrl.wire.keys.key_folder import KeyFolder
from asyncrl.wire.run_address import RunAddress
from tests.integration.node_processes import EX_CONFIG, Nodes, joined, until
from tests.patience import PATIENCE_S

CUT_OFF_S = 5.0


class Keyed:
    """A broker with keys, which runs in the folder of ``nodes``."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.folder = KeyFolder(nodes.folder / "keys")
        self.folder.init()
        self.folder.add("reward-0", ["reward"])
        self.process, self.run = nodes.broker("a", "--keys", str(self.folder.path))

    def run_address(self, name: str) -> RunAddress:
        return RunAddress(self.nodes.address, self.folder.node_file(name))

    def reward(self) -> "subprocess.Popen[str]":
        """Start a node with a copy of its key file, as on another machine: revoking removes the original."""
        copy = self.nodes.folder / "node.key"
        copy.touch(mode=0o600)
        copy.write_bytes(self.folder.node_file("reward-0").read_bytes())
        return self.nodes.start("reward", "--key", str(copy), "--wait", "30")


@pytest.fixture
def keyed(nodes: Nodes) -> Keyed:
    return Keyed(nodes)


def test_a_node_with_a_key_joins_and_is_cut_off_within_seconds_when_it_is_revoked(keyed: Keyed) -> None:
    reward = keyed.reward()
    until(lambda: joined(keyed.run) == ["reward-0"], reward)
    keyed.folder.revoke("reward-0")
    revoked_s = time.monotonic()
    _, errors = reward.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - revoked_s < CUT_OFF_S
    assert reward.returncode == EX_CONFIG
    assert "it was revoked, or never added" in errors
    assert [event["cause"] for event in keyed.run.read_events() if event["event"] == "node.lost"] == [
        "its key was revoked"
    ]
    assert keyed.process.poll() is None


@pytest.mark.slow("nodes are real processes")
def test_another_key_and_the_secret_are_refused_in_one_sentence_within_seconds(keyed: Keyed, tmp_path: Path) -> None:
    other = KeyFolder(tmp_path / "other")
    other.init()
    other.add("reward-0", ["reward"])
    unknown = KeyFolder(keyed.folder.path)
    unknown.add("reward-1", ["reward"])
    removed = tmp_path / "reward-1.key"
    removed.write_text(unknown.node_file("reward-1").read_text())
    removed.chmod(0o600)
    unknown.revoke("reward-1")
    for option, file, expected in (
        ("--key", removed, r"does not accept the key reward-1 \([0-9a-f]{16}\) in \S+: it was revoked, or never added"),
        ("--key", other.node_file("reward-0"), r"does not have the public key [0-9a-f]{16} that \S+ names"),
        ("--secret", keyed.run.secret, r"does not share the secret in"),
    ):
        node = keyed.nodes.start("reward", option, str(file), "--name", file.stem)
        _, errors = node.communicate(timeout=PATIENCE_S)
        assert node.returncode == EX_CONFIG, errors
        sentence = errors.splitlines()[-1]
        assert re.search(expected, sentence), sentence
        if file == removed:
            assert f"({refused_key(keyed)})" in sentence, "operator and node name the same digits"
    assert joined(keyed.run) == []


def refused_key(keyed: Keyed) -> str:
    """Digits of the key of a peer that the broker did not let in."""
    until(lambda: "key.refused" in [event["event"] for event in keyed.run.read_events()], keyed.process)
    return next(event["key"] for event in keyed.run.read_events() if event["event"] == "key.refused")


def test_a_key_is_for_its_roles_and_its_name(keyed: Keyed) -> None:
    async def scene() -> None:
        run = keyed.run_address("reward-0")
        with pytest.raises(LinkRefused, match="the key reward-0 is for reward, not for a trainer"):
            await join(run, identity("trainer", "reward-0"), PATIENCE_S)
        with pytest.raises(LinkRefused, match=r"is for nodes called reward-0 or reward-0-\.\.\., not reward-1"):
            await join(run, identity("reward", "reward-1"), PATIENCE_S)
        link, _ = await join(run, identity("reward", "reward-0-worker"), PATIENCE_S)
        await link.send(Commit(7, "nowhere"))
        await link.aclose()

    asyncio.run(scene())
    until(lambda: refused(keyed.run) != [], keyed.process)
    assert refused(keyed.run) == ["Commit of reward-0-worker: a reward may not send Commit"]


def refused(run: RunDirectory) -> list[str]:
    return [event["cause"] for event in run.read_events() if event["event"] == "units.failed"]


def test_nodes_of_the_brokers_user_need_no_key_file_on_its_machine(keyed: Keyed) -> None:
    reward = keyed.nodes.start("reward")
    until(lambda: joined(keyed.run) == ["reward-0"], reward)


def test_a_revoked_link_fails_with_its_cause(keyed: Keyed) -> None:
    async def scene() -> None:
        link, _ = await join(keyed.run_address("reward-0"), identity("reward", "reward-0"), PATIENCE_S)
        keyed.folder.revoke("reward-0")
        with pytest.raises(UnknownKey):
            await asyncio.wait_for(link.receive(), CUT_OFF_S)
        await link.aclose()

    asyncio.run(scene())
