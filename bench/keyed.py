"""
Child processes with keys of their own, and the same ones without any encryption.

The library encrypts every TCP connection. To measure what that costs, `PlainProcesses` replace the function that says
so; only they do.
"""

import os
import runpy
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from processes import ENVIRONMENT, Processes

from asyncrl.wire import curve
from asyncrl.wire.curve import HubKeys, LinkKeys, Owner
from asyncrl.wire.keys.allow_list import AllowedKey, AllowList, write_allow_list
from asyncrl.wire.keys.key import new_key, write_key
from asyncrl.wire.keys.key_folder import KEYS_VARIABLE, AllowedKeys, KeyFolder
from asyncrl.wire.run_address import read_credentials
from asyncrl.workers.child import Child


class KeyedProcesses(Processes):
    """Child processes that find a key for each node, by its name, in ``folder``; ``roles`` are theirs."""

    def __init__(self, parent: Path, roles: Mapping[str, str]) -> None:
        super().__init__(parent)
        self.folder = make_keys(self.path / "keys", roles)

    async def command(self, name: str, arguments: list[str], environment: Mapping[str, str] = ENVIRONMENT) -> Child:
        return await super().command(name, arguments, {**environment, KEYS_VARIABLE: str(self.folder.path)})


class PlainProcesses(Processes):
    """Child processes whose TCP connections are neither encrypted nor authenticated."""

    async def command(self, name: str, arguments: list[str], environment: Mapping[str, str] = ENVIRONMENT) -> Child:
        start = "import sys, keyed; keyed.run_plain(sys.argv[1:])"
        return await super().command(name, ["-c", start, *arguments], environment)


def make_keys(path: Path, roles: Mapping[str, str]) -> KeyFolder:
    """Make a folder with a key for each node, by its name. The list is written once, not once for each key."""
    folder = KeyFolder(path)
    broker, today = folder.init(), datetime.now(UTC).date()
    (path / "nodes").mkdir()
    allowed = []
    for name, role in roles.items():
        key = new_key(name, [role], broker.public)
        write_key(folder.node_file(name), key)
        allowed.append(AllowedKey(name, key.roles, key.public, today))
    write_allow_list(folder.allow_list_file, AllowList(allowed))
    return folder


def key_file(node: str) -> Path | None:
    """In a child: the key file of a node; None if there are no keys."""
    return KeyFolder(Path(os.environ[KEYS_VARIABLE])).node_file(node) if KEYS_VARIABLE in os.environ else None


def link_keys(node: str) -> LinkKeys | None:
    """In a child: the keys of a node; None if there are none."""
    file = key_file(node)
    return read_credentials(file).keys if file else None


def hub_keys() -> HubKeys | None:
    """In a child: the broker's keys, with the allow-list; None if there are none."""
    if KEYS_VARIABLE not in os.environ:
        return None
    folder = KeyFolder(Path(os.environ[KEYS_VARIABLE]))
    own, allowed = folder.broker(), AllowedKeys(folder.path)

    def owner_of(public: bytes) -> Owner | None:
        entry = allowed.owner_of(public)
        return Owner(entry.name, frozenset(entry.roles)) if entry else None

    return HubKeys(own.public, own.private, owner_of)


def run_plain(arguments: list[str]) -> None:
    """In a child: run a script, or ``-m MODULE``, with its arguments."""
    curve.needs_keys = lambda address: False  # before any other module has imported it
    sys.path[0] = os.environ["PYTHONPATH"].partition(os.pathsep)[0]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
