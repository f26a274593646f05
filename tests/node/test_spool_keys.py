"""A spool with a key lets in the keys that its broker names, and no others."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.actor.sockets.curve import LinkKeys, new_pair
from asyncrl.actor.sockets.zmq_hub import ZmqHub
from asyncrl.actor.sockets.zmq_link import ZmqLink
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import LinkError, UnknownKey
from asyncrl.files.secret_file import write_secret
from asyncrl.keys.key import Key
from asyncrl.keys.key_file import write_key
from asyncrl.messages.spool import AcceptedKey, Put
from asyncrl.messages.wire import CODEC
from asyncrl.node.spool_keys import SpoolKeys

PUT = Put("rollout-0", "1", [])


def with_key(folder: Path) -> SpoolKeys:
    own, broker = new_pair(), new_pair()
    write_key(folder / "spool.key", Key("spool-0", ("spool",), *own, broker[0]))
    return SpoolKeys(RunAddress("tcp://127.0.0.1:5570", folder / "spool.key"))


def test_only_accepted_keys_reach_a_spool_and_a_revoked_one_is_cut(tmp_path: Path) -> None:
    async def scene() -> None:
        keys = with_key(tmp_path)
        hub = ZmqHub("tcp://127.0.0.1:0", CODEC, keys=keys.hub)
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


def test_a_secret_gives_the_key_of_every_hub_and_a_unix_socket_needs_none(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret", bytes(32))
    keys = SpoolKeys(RunAddress("tcp://127.0.0.1:5570", tmp_path / "secret"))
    assert (keys.public, keys.hub is not None) == (b"", True)
    assert SpoolKeys(RunAddress("ipc:///run/broker")).hub is None
