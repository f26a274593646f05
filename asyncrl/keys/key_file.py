"""Key files: one key pair as TOML, readable by its user alone."""

from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.files.private_file import read_private, write_private
from asyncrl.keys.key import Key, is_pair
from asyncrl.keys.strict_toml import convert, parse, quoted

HEADER = """\
# Key pair of an asyncrl node or broker, made by `asyncrl keys`.
# Whoever has the private key is taken for its owner: keep this file secret (mode 0600).
"""


def write_key(path: Path, key: Key) -> None:
    """Write a key file of mode 0600, atomically; raises OSError."""
    write_private(path, to_text(key))


def create_key(path: Path, key: Key) -> None:
    """Write a key file that does not exist yet; raises `ConfigError` if it does, or cannot be written."""
    if path.exists():
        raise ConfigError(f"{path} exists and is not overwritten: give another path, or remove it")
    try:
        write_key(path, key)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; give a path that can be written") from error


def read_key(path: Path) -> Key:
    """
    Read a key file.

    Raises:
        ConfigError: There is no such file, other users may read it, it is not a key file, or its private key does not
            belong to its public one.
    """
    if not path.exists():
        raise ConfigError(f"no such key file: {path}; `asyncrl keys add` makes one on the broker's machine")
    text = read_private(path, "key file")
    try:
        return from_text(text)
    except ConfigError as error:
        raise ConfigError(f"{path} is not a key file: {error}") from None


def to_text(key: Key) -> str:
    return (
        f'{HEADER}name = "{key.name}"\nroles = {quoted(key.roles)}\n'
        f'public = "{key.public.hex()}"\nprivate = "{key.private.hex()}"\nbroker = "{key.broker.hex()}"\n'
    )


def from_text(text: str) -> Key:
    """Parse the text of a key file; raises `ConfigError`."""
    key = convert(parse(text), Key)
    if not is_pair(key):
        raise ConfigError("its private key does not belong to its public key")
    return key
