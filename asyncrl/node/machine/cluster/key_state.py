"""State of a key file: its name and roles, and what keeps a node from using it. Its private key is not told."""

from pathlib import Path

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.keys.key_file import read_key


class KeyState(Struct, frozen=True, kw_only=True):
    """Public part of a key file."""

    problem: str = ""
    """Sentence that says why a node cannot use the file; empty: it can."""
    name: str = ""
    """Nodes that use the key are named so, or so with a dash and anything."""
    roles: list[str] = []
    """Roles that the key was made for; empty: the file does not tell."""

    def others(self, roles: list[str]) -> list[str]:
        """Roles among ``roles`` that the key is not for; the broker has keys of its own."""
        return [role for role in roles if role != "broker" and role not in self.roles] if self.roles else []


def read_key_state(path: Path) -> KeyState:
    """Name and roles of a key file, or its problem."""
    try:
        key = read_key(path)
    except ConfigError as error:
        return KeyState(problem=str(error))
    return KeyState(name=key.name, roles=list(key.roles))
