"""
Credentials of a node: a file with its key, or with the secret of the run.

    key      32 bytes for this node alone, made by ``asyncrl keys add``, beside the public key of the broker
    secret   32 bytes that all nodes of a run share, made with the run
"""

from pathlib import Path

from msgspec import Struct

from asyncrl.actor.sockets.curve import LinkKeys, link_keys_of
from asyncrl.errors import ConfigError
from asyncrl.files.secret_file import is_secret, read_secret
from asyncrl.keys.key_file import read_key


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
