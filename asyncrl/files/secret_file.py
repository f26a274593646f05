"""File with the secret of a run: 64 hexadecimal digits, readable by its user alone."""

import secrets
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.files.private_file import read_private, write_private

SECRET_BYTES = 32


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def write_secret(path: Path, secret: bytes) -> None:
    """Write a file that only its user can read, atomically; raises OSError."""
    write_private(path, secret.hex() + "\n")


def is_secret(path: Path) -> bool:
    """True if the file has the form of a secret."""
    try:
        return _secret(path.read_text(encoding="utf-8")) is not None
    except (OSError, UnicodeDecodeError):
        return False


def read_secret(path: Path) -> bytes:
    """
    Read a secret.

    Raises:
        ConfigError: There is no such file, other users may read it, or it is not a secret.
    """
    if (secret := _secret(read_private(path, "secret file"))) is None:
        raise ConfigError(f"{path} is not a secret file: expected {2 * SECRET_BYTES} hexadecimal digits")
    return secret


def _secret(text: str) -> bytes | None:
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        return None
    return secret if len(secret) == SECRET_BYTES else None
