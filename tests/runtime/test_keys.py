import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.broker.nodes.node import NodeBook
from asyncrl.errors import ConfigError, LinkError, UnknownKey
from asyncrl.files.access import new_secret, write_secret
from asyncrl.messages.session import Hello
from asyncrl.messages.spool import Accepted, AcceptedKey, Put, SpoolAddress
from asyncrl.messages.wire import CODEC, PROTOCOL
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.held_run import HeldRun
from asyncrl.runtime.keys import LOCAL, SpoolKeys, broker_keys, cut_revoked, require_keys, tell_spools
from asyncrl.wire.curve import LinkKeys, Owner, local_pair, new_pair, public_of
from asyncrl.wire.keys.key import Key, write_key
from asyncrl.wire.keys.key_folder import AllowedKeys, KeyFolder
from asyncrl.wire.memory import MemoryHub, MemoryLink
from asyncrl.wire.run_address import RunAddress, read_credentials
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink
from tests.config.configs import made


@pytest.fixture
def run(tmp_path: Path) -> HeldRun:
    secret = new_secret()
    write_secret(tmp_path / "secret", secret)
    return HeldRun(RunDirectory(tmp_path), made(), secret, tmp_path / "secret")


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    folder = KeyFolder(tmp_path / "keys")
    folder.init()
    return folder


def test_without_a_key_folder_the_secret_decides(run: HeldRun) -> None:
    keys = broker_keys(run, None)
    assert (keys.hub.owner_of, keys.credentials_file) == (None, run.secret_file)
    assert read_credentials(keys.credentials_file).keys.hub == keys.hub.public


def test_owners_are_those_of_the_allow_list_and_local_nodes(run: HeldRun, folder: KeyFolder) -> None:
    added = folder.add("gpu-1", ["rollout", "reward"])
    keys = broker_keys(run, folder.path)
    assert keys.hub.owner_of
    assert keys.hub.owner_of(added.public) == Owner("gpu-1", frozenset(("rollout", "reward")))
    assert keys.hub.owner_of(local_pair(run.secret)[0]) == LOCAL
    assert keys.hub.owner_of(bytes(32)) is None
    assert public_of(keys.hub.private) == keys.hub.public == folder.broker().public


def test_local_nodes_find_a_key_that_only_their_user_can_read(run: HeldRun, folder: KeyFolder) -> None:
    keys = broker_keys(run, folder.path)
    assert keys.credentials_file == run.directory.path / "key"
    assert keys.credentials_file.stat().st_mode & 0o777 == 0o600
    local = read_credentials(keys.credentials_file)
    assert (local.keys.public, local.keys.hub) == (local_pair(run.secret)[0], keys.hub.public)
    broker_keys(run, None)
    assert not keys.credentials_file.exists()


def test_a_broker_that_other_machines_reach_needs_keys(run: HeldRun, folder: KeyFolder) -> None:
    open_run = replace(run, config=made(broker={"bind": "tcp://0.0.0.0:5570"}))
    with pytest.raises(ConfigError, match=r"tcp://0\.0\.0\.0:5570 is not a loopback address: .* give --keys DIR"):
        broker_keys(open_run, None)
    assert broker_keys(open_run, folder.path).allowed


def test_keys_are_checked_before_there_is_a_run(folder: KeyFolder) -> None:
    exposed = made(broker={"bind": "tcp://*:5570"}).broker
    require_keys(exposed, folder.path)
    with pytest.raises(ConfigError, match="is not a loopback address: its connections need keys; give --keys DIR"):
        require_keys(exposed, None)
    folder.path.chmod(0o755)
    with pytest.raises(ConfigError, match=r"other users can enter .* \(mode 0755\): chmod 700 it"):
        require_keys(exposed, folder.path)


def test_a_folder_without_keys_is_refused(run: HeldRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="asyncrl keys init"):
        broker_keys(run, tmp_path / "nowhere")


def test_connections_of_revoked_keys_are_cut_at_the_next_look(
    folder: KeyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = folder.add("gpu-1", ["rollout"])
    lost: list[tuple[list[str], str]] = []
    monkeypatch.setattr(ZmqHub, "cut", lambda _, publics: [public.hex() for public in publics])
    turns = iter((lambda: None, lambda: folder.revoke("gpu-1"), lambda: None))

    async def sleep(_: float) -> None:
        if (turn := next(turns, None)) is None:
            raise asyncio.CancelledError
        turn()

    def told(peers: list[str], cause: str) -> None:
        lost.append((peers, cause))

    async def scene() -> None:
        hub = ZmqHub("ipc://*", CODEC)
        following = asyncio.create_task(cut_revoked(AllowedKeys(folder.path), [hub], told, sleep))
        await asyncio.wait([following])
        await hub.aclose()

    asyncio.run(scene())
    assert lost == [([added.public.hex()], "its key was revoked")]


def test_every_spool_is_told_which_keys_may_connect_when_it_joins_and_when_they_change() -> None:
    nodes, told = NodeBook(), list[list[str]]()
    entries: dict[bytes, SimpleNamespace] = {}
    hub, allowed = MemoryHub(), SimpleNamespace(accepted=lambda: entries)
    always = AcceptedKey(b"local", "", ["rollout"])
    keys: Any = SimpleNamespace(allowed=allowed, always=(always,))

    def join(name: str) -> MemoryLink:
        nodes.join(f"{name}.1", Hello(PROTOCOL, "spool", name, "1", spool=SpoolAddress(name, "tcp://s:1")), 0.0)
        return hub.connect(f"{name}.1")

    async def scene() -> None:
        first = join("a")
        turns = iter(
            [lambda: join("b"), lambda: entries.update({b"new": SimpleNamespace(name="r", roles={"rollout"})})]
        )

        async def sleep(_seconds: float) -> None:
            if (turn := next(turns, None)) is None:
                raise asyncio.CancelledError
            turn()

        with contextlib.suppress(asyncio.CancelledError):
            await tell_spools(keys, nodes, hub, sleep)
        for _ in range(2):
            message = await first.receive()
            assert isinstance(message, Accepted)
            told.append([key.name for key in message.keys])

    asyncio.run(scene())
    assert told == [[""], ["", "r"]]


# ── test spool keys ───────────────────────────────────────────────────────────────────────────
# A spool with a key lets in the keys that its broker names, and no others.

PUT = Put("rollout-0", "1", [])


def with_key(folder: Path) -> SpoolKeys:
    own, broker = new_pair(), new_pair()
    write_key(folder / "spool.key", Key("spool-0", ("spool",), *own, broker[0]))
    return SpoolKeys(RunAddress("tcp://127.0.0.1:5570", folder / "spool.key"))


def test_only_accepted_keys_reach_a_spool_and_a_revoked_one_is_cut(tmp_path: Path) -> None:
    async def scene() -> None:
        keys = with_key(tmp_path)
        hub = keys.listen("tcp://127.0.0.1:0")
        public, private = new_pair()
        keys.accept([AcceptedKey(public, "rollout-0", ["rollout"])], hub)
        known = ZmqLink(hub.address, "rollout-0.1", CODEC, keys=LinkKeys(public, private, keys.public))
        await known.send(PUT)
        assert await hub.receive() == ("rollout-0.1", PUT)
        stranger = ZmqLink(hub.address, "rollout-1.1", CODEC, keys=LinkKeys(*new_pair(), keys.public))
        with pytest.raises(UnknownKey):
            await stranger.receive()
        keys.accept([], hub)
        with pytest.raises(LinkError):
            await known.receive()
        for end in (known, stranger, hub):
            await end.aclose()

    async def in_time() -> None:
        async with asyncio.timeout(30):
            await scene()

    asyncio.run(in_time())


def test_a_spool_refuses_no_key_before_the_broker_has_told_which_may_connect(tmp_path: Path) -> None:
    async def scene() -> None:
        keys = with_key(tmp_path)
        hub = keys.listen("tcp://127.0.0.1:0")
        public, private = new_pair()
        link = ZmqLink(hub.address, "rollout-0.1", CODEC, keys=LinkKeys(public, private, keys.public))
        await link.send(PUT)
        assert hub._zap
        while not hub._zap._fd._socket.poll(0):  # until it asks to be let in
            await asyncio.sleep(0.01)
        assert hub.refused_key is None
        keys.accept([AcceptedKey(public, "rollout-0", ["rollout"])], hub)
        assert await hub.receive() == ("rollout-0.1", PUT)
        assert hub.refused_key is None
        for end in (link, hub):
            await end.aclose()

    async def in_time() -> None:
        async with asyncio.timeout(30):
            await scene()

    asyncio.run(in_time())


def test_a_secret_gives_the_key_of_every_hub_and_a_unix_socket_needs_none(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret", bytes(32))
    keys = SpoolKeys(RunAddress("tcp://127.0.0.1:5570", tmp_path / "secret"))
    assert (keys.public, keys.hub is not None) == (b"", True)
    assert SpoolKeys(RunAddress("ipc:///run/broker")).hub is None
