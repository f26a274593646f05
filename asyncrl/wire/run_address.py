"""
Address of a run's broker, and the file with the credentials that open its sockets.

    RUN                     RUN/broker.address, and the first of: --key or --secret; a key of this process; RUN/key; a
                            secret of this process; RUN/secret
    tcp://HOST:PORT         the first of: --key or --secret; a key of this process; a secret of this process; what a
                            broker of this user on this machine left for the address
    ipc://PATH              none: the permissions of the folder decide

A key of this process is named by $ASYNCRL_KEY_FILE, or is asyncrl.key in $CREDENTIALS_DIRECTORY; a secret likewise.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from asyncrl.errors import ConfigError, LinkError
from asyncrl.files.access import is_secret, read_secret, user_folder, write_private
from asyncrl.log import get_logger
from asyncrl.wire.addresses import check_address, is_loopback
from asyncrl.wire.curve import LinkKeys, link_keys_of, needs_keys
from asyncrl.wire.keys.key import read_key

# ── credentials ───────────────────────────────────────────────────────────────────────────────
# Credentials of a node: a file with its key, or with the secret of the run.
#
#     key      32 bytes for this node alone, made by ``asyncrl keys add``, beside the public key of the broker
#     secret   32 bytes that all nodes of a run share, made with the run


class Credentials(Struct, frozen=True):
    """Keys with which a node proves who it is."""

    name: str
    """Name of the key; empty for a secret."""
    keys: LinkKeys


def read_credentials(path: Path) -> Credentials:
    """
    Read a key file or a secret file.

    Raises:
        ConfigError: There is no such file, other users can read it, or it is neither.
    """
    if is_secret(path):
        return Credentials("", link_keys_of(read_secret(path)))
    key = read_key(path)
    if not key.broker:
        raise ConfigError(
            f"{path} is the key of the broker: give the key of a node, made by `asyncrl keys add NAME --role ROLE`"
        )
    return Credentials(key.name, LinkKeys(key.public, key.private, key.broker))


# ── run address ───────────────────────────────────────────────────────────────────────────────

log = get_logger()

KEY_VARIABLE = "ASYNCRL_KEY_FILE"
SECRET_VARIABLE = "ASYNCRL_SECRET_FILE"
POLL_S, WARNING_S = 0.1, 5.0
"""Seconds between two looks for a run, and until the warning that there is none."""


class RunAddress(Struct, frozen=True):
    """Address of a broker, and the file with this node's credentials; None for a unix socket."""

    broker: str
    credentials_file: Path | None = None

    def credentials(self) -> Credentials | None:
        """This node's credentials. Raises `ConfigError` if their file cannot be read."""
        return read_credentials(self.credentials_file) if self.credentials_file else None

    def keys(self) -> LinkKeys | None:
        """Keys of a link to the broker; raises as `credentials`."""
        found = self.credentials()
        return found.keys if found else None

    def environment(self) -> dict[str, str]:
        """Environment variables that give a child process the credentials."""
        return {KEY_VARIABLE: str(self.credentials_file)} if self.credentials_file else {}


def check_location(where: str, setting: str) -> None:
    """Raise `ConfigError` unless ``where`` is the address of a broker, or a directory; ``setting`` names it."""
    if not Path(where).is_dir():
        check_address(where, setting)


def locate(where: str, credentials: Path | None = None, environment: Mapping[str, str] = os.environ) -> RunAddress:
    """
    Address of a run, given the broker's address or a run directory of this machine.

    Raises:
        ConfigError: ``where`` is neither, or the address needs credentials and there are none.
    """
    given = credentials or configured_key(environment)
    secret = configured_secret(environment)
    if "://" not in where:
        address = Path(where) / "broker.address"
        if not address.is_file():
            raise ConfigError(f"{where} is neither a broker's address nor a run directory with {address.name} in it")
        file = given or _existing(Path(where) / "key") or secret or Path(where) / "secret"
        # One that other machines use too, if there is one: the route to it leads to their network.
        return _with_credentials(min(address.read_text().split(), key=is_loopback), file)
    return _with_credentials(
        where, given or secret or (_existing(left) if (left := _state_file(where, environment)) else None)
    )


async def find_run(
    where: str,
    credentials: Path | None,
    wait_s: float | None,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> RunAddress:
    """
    Address of a run as `locate` finds it, once its broker has started; the log has the reason of a long wait.

    Raises:
        LinkError: No broker has started within ``wait_s`` seconds; None waits for ever.
    """
    began_s, warned = clock(), False
    while True:
        try:
            return locate(where, credentials)
        except ConfigError as error:
            waited_s = clock() - began_s
            if wait_s is not None and waited_s >= wait_s:
                raise LinkError(f"no broker was found within {wait_s:g} s: {error}; is it running?") from error
            if not warned and waited_s >= WARNING_S:
                log.warning("run.awaited", cause=str(error))
                warned = True
        await sleep(POLL_S)


def leave_credentials(address: str, file: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Let nodes of this user on this machine find credentials by the broker's address. A failure is no error."""
    if needs_keys(address) and (left := _state_file(address, environment)):
        with suppress(OSError):
            left.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(left, file.read_text())


def remove_credentials(address: str, environment: Mapping[str, str] = os.environ) -> None:
    """Undo `leave_credentials`."""
    if left := _state_file(address, environment):
        with suppress(OSError):
            left.unlink(missing_ok=True)


def configured_key(environment: Mapping[str, str]) -> Path | None:
    """Key file named by the environment of this process."""
    return _configured(KEY_VARIABLE, "asyncrl.key", environment)


def configured_secret(environment: Mapping[str, str]) -> Path | None:
    """Secret file named by the environment of this process."""
    return _configured(SECRET_VARIABLE, "asyncrl.secret", environment)


def _configured(variable: str, credential: str, environment: Mapping[str, str]) -> Path | None:
    if named := environment.get(variable):
        return Path(named)
    return _existing(Path(environment.get("CREDENTIALS_DIRECTORY", os.devnull)) / credential)


def _with_credentials(address: str, file: Path | None) -> RunAddress:
    if not needs_keys(address):
        return RunAddress(address)
    if file is None:
        raise ConfigError(
            f"no broker of this user has left credentials for {address} on this machine: name the key file that "
            f"`asyncrl keys add` made on the broker's machine by --key or ${KEY_VARIABLE}, or the secret in the run "
            f"directory by ${SECRET_VARIABLE}"
        )
    return RunAddress(address, file)


def _existing(file: Path) -> Path | None:
    return file if file.is_file() else None


def _state_file(address: str, environment: Mapping[str, str]) -> Path | None:
    state = user_folder("state", environment)
    return state / "asyncrl" / "credentials" / quote(address, safe="") if state else None
