"""
Folder of keys on the broker's machine, of mode 0700, and the allow-list of a running broker, read again when it
changes.

    broker.key          the broker's key pair
    allowed.toml        keys that may connect
    nodes/NAME.key      key pairs made here, to be copied to their machines
    lock                held by a command that changes the folder

Each file is replaced atomically. A key file is written before the list that allows it, and deleted after it is revoked:
a command that is killed leaves no key allowed whose pair is lost, and is simply given again.
"""

import os
import pwd
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from asyncrl.errors import ConfigError
from asyncrl.files.access import user_folder
from asyncrl.files.lock import locked
from asyncrl.log import get_logger
from asyncrl.wire.keys.allow_list import AllowedKey, AllowList, read_allow_list, utc_date, write_allow_list
from asyncrl.wire.keys.key import BROKER, Key, new_key, read_key, write_key

KEYS_VARIABLE = "ASYNCRL_KEYS"
LOCK_WAIT_S = 10.0


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Folder of keys: ``$ASYNCRL_KEYS``, else ``asyncrl/keys`` below ``$XDG_CONFIG_HOME`` or ``~/.config``."""
    if named := environment.get(KEYS_VARIABLE):
        return Path(named)
    if (configuration := user_folder("config", environment)) is None:
        raise ConfigError(f"no folder of keys: give --keys DIR, or set {KEYS_VARIABLE}")
    return configuration / "asyncrl" / "keys"


class KeyFolder:
    """
    Keys of one broker. Every method raises `ConfigError` if the folder or a file in it cannot be used, and `LinkError`
    if another process changes it for longer than `LOCK_WAIT_S`.

    Args:
        clock: Seconds since the epoch, for the dates of keys.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.broker_file = path / "broker.key"
        self.allow_list_file = path / "allowed.toml"
        self._clock = clock

    def node_file(self, name: str) -> Path:
        return self.path / "nodes" / f"{name}.key"

    def init(self) -> Key:
        """Make the folder, the broker's key pair and an empty allow-list; refused if there are keys already."""
        with _as_config_error(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._changing():
            for file in (self.broker_file, self.allow_list_file):
                if file.exists():
                    raise ConfigError(f"{file} exists and is not overwritten: give another --keys DIR, or remove it")
            key = new_key(BROKER, ())
            write_allow_list(self.allow_list_file, AllowList())
            write_key(self.broker_file, key)
            return key

    def broker(self) -> Key:
        """The broker's key pair."""
        self.require_private()
        if not self.broker_file.exists():
            raise ConfigError(self._no_keys())
        return read_key(self.broker_file)

    def allow_list(self) -> AllowList:
        return read_allow_list(self.allow_list_file)

    def add(self, name: str, roles: Sequence[str], public: bytes | None = None) -> AllowedKey:
        """
        Allow one more key.

        Args:
            public: Public key of a node that made its own pair; None makes a pair, and writes `node_file`.
        """
        with self._changing():
            broker, allowed = self.broker(), self.allow_list()
            pair = new_key(name, roles, broker.public)
            key = AllowedKey(name, tuple(roles), public or pair.public, utc_date(self._clock()))
            self._write(allowed.add(key), key, pair)
            return key

    def revoke(self, name: str) -> AllowedKey:
        """Refuse a key from now on, and delete its key file. A running broker cuts it off when it looks again."""
        with self._changing():
            allowed = self.allow_list()
            write_allow_list(self.allow_list_file, allowed.revoke(name))
            self.node_file(name).unlink(missing_ok=True)
            return allowed.named(name)

    def rotate(self, name: str, overlap_s: float = 0.0, public: bytes | None = None) -> AllowedKey:
        """
        Give a name another key.

        Args:
            overlap_s: Seconds for which the present key is accepted too.
            public: As in `add`.
        """
        with self._changing():
            broker, allowed = self.broker(), self.allow_list()
            pair = new_key(name, allowed.named(name).roles, broker.public)
            changed = allowed.rotate(name, public or pair.public, self._clock(), overlap_s)
            self._write(changed, changed.named(name), pair)
            return changed.named(name)

    def rotate_broker(self) -> tuple[Key, list[Path]]:
        """Replace the broker's key pair; returns it, and the key files of nodes that were rewritten with it."""
        with self._changing():
            self.broker()
            nodes = {path: read_key(path) for path in sorted(self.path.glob("nodes/*.key"))}
            key = new_key(BROKER, ())
            write_key(self.broker_file, key)
            for path, node in nodes.items():
                write_key(path, structs.replace(node, broker=key.public))
            return key, list(nodes)

    def _write(self, allowed: AllowList, key: AllowedKey, pair: Key) -> None:
        """Write a list with a new key, and the key file of ``pair`` if the key is of this pair."""
        if key.public == pair.broker:
            raise ConfigError(f"that is the public key of the broker itself, not of {key.name}")
        file, is_made_here = self.node_file(key.name), key.public == pair.public
        if is_made_here:
            file.parent.mkdir(mode=0o700, exist_ok=True)
            write_key(file, pair)
        write_allow_list(self.allow_list_file, allowed)
        if not is_made_here:
            file.unlink(missing_ok=True)  # It has the pair before.

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._check_folder()
        with (
            _as_config_error(self.path),
            locked(self.path / "lock", f"another process changes the keys in {self.path}", LOCK_WAIT_S),
        ):
            yield

    def require_private(self) -> None:
        """Refuse a folder that is missing, or that other users can enter."""
        if not self.path.is_dir():
            raise ConfigError(self._no_keys())
        mode = self.path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"other users can enter {self.path} (mode {stat.S_IMODE(mode):04o}): chmod 700 it, or give another "
                "folder"
            )

    def _no_keys(self) -> str:
        folder = shlex.quote(str(self.path))
        return f"there are no keys in {self.path}: make them with `asyncrl keys init --keys {folder}`"

    def _check_folder(self) -> None:
        """Refuse a folder of somebody else, in which the broker could not read what is written, or an open one."""
        self.require_private()
        found = self.path.stat()
        if found.st_uid != os.geteuid():
            owner = _user(found.st_uid)
            raise ConfigError(f"{self.path} belongs to {owner}: give the command as {owner}, with `sudo -u {owner}`")
        if not os.access(self.path, os.W_OK):
            raise ConfigError(f"{self.path} cannot be written: give another --keys DIR")


@contextmanager
def _as_config_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write the keys in {path}: {error.strerror or error}") from error


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


# ── allowed keys ──────────────────────────────────────────────────────────────────────────────
# Allow-list of a running broker: answers from memory, and reads its file again when it has changed.

log = get_logger()

Stamp = tuple[int, int, int, int]


class AllowedKeys:
    """
    Keys that may connect now. An invalid file changes nothing: the last valid list stays.

    Args:
        path: Folder of keys, or the file of the allow-list.
        clock: Seconds since the epoch; overlaps of rotations end by it.

    Raises:
        ConfigError: The file cannot be read, or is no allow-list.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = KeyFolder(path).allow_list_file if path.is_dir() else path
        self._clock = clock
        self._stamp = _stamp(self._path)
        self._allowed = read_allow_list(self._path)
        self._accepted = self._allowed.accepted(clock())

    def owner_of(self, public: bytes) -> AllowedKey | None:
        """Entry of the allow-list for a public key; None refuses it."""
        return self._allowed.owner_of(public, self._clock())

    def accepted(self) -> dict[bytes, AllowedKey]:
        """Entries by each public key that may connect now."""
        return self._allowed.accepted(self._clock())

    def refresh(self) -> list[bytes]:
        """
        Read the file again if it has changed.

        Returns:
            Public keys whose connections must end: they were accepted at the last look, and are refused, or are allowed
            under another name or without a role that they had.
        """
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            self._read()
        before, self._accepted = self._accepted, self._allowed.accepted(self._clock())
        return [public for public, key in before.items() if not _as_before(key, self._accepted.get(public))]

    def _read(self) -> None:
        try:
            self._allowed = read_allow_list(self._path)
        except ConfigError as error:
            log.error("allow_list.refused", reason=str(error), kept_keys=len(self._allowed))
        else:
            log.info("allow_list.read", keys=len(self._allowed))


def _as_before(before: AllowedKey, after: AllowedKey | None) -> bool:
    """True if a connection made with a key may go on."""
    return after is not None and after.name == before.name and set(before.roles) <= set(after.roles)


def _stamp(path: Path) -> Stamp | None:
    """Changes whenever the file is written, replaced, or made readable; None if there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
