"""Text files that only their user can read: keys and secrets."""

import os
import stat
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.files.atomic import replacing


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, atomically; raises OSError."""
    with replacing(path) as unfinished:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)


def read_private(path: Path, what: str) -> str:
    """
    Read a file that no other user can read; ``what`` is the kind of file, such as "key file", for the error message.

    Raises:
        ConfigError: The file cannot be read, or other users may read it.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {what} {path}: {getattr(error, 'strerror', None) or error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and not _is_credential(path):
        raise ConfigError(f"other users can read the {what} {path} (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}")
    return text


def _is_credential(path: Path) -> bool:
    """True for a file of systemd's LoadCredential=, which grants access by an ACL that shows as a group permission."""
    return path.parent == Path(os.environ.get("CREDENTIALS_DIRECTORY", os.devnull))
