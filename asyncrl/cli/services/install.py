"""
Writes service files without losing what somebody changed in them by hand, and has the service manager check them.

The first line of a written file names a checksum of the rest. A file whose checksum differs was changed by hand.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from asyncrl.cli.services.render import Manager
from asyncrl.errors import ConfigError
from asyncrl.files.atomic import replacing

MARK = "# Written by `asyncrl services install`; checksum of the rest: "
CHECK_S = 60.0
KEPT: Mapping[Manager, str] = {
    "systemd": "a drop-in, such as UNIT.d/50-local.conf,",
    "supervisord": "a file of its folder asyncrl.d, such as asyncrl.d/local.conf,",
}
"""Place for the changes of an operator, which no install replaces."""


def to_write(manager: Manager, folder: Path, texts: Mapping[str, str], *, force: bool) -> dict[Path, str]:
    """
    The files below ``folder`` that differ from ``texts``, with their new text.

    Raises:
        ConfigError: A file was changed by hand, or written by hand, and ``force`` is false; or it cannot be read.
    """
    paths = {folder / name: _marked(text) for name, text in texts.items()}
    changed = {path: text for path, text in paths.items() if _read(path) != text}
    edited = [path for path in changed if _is_edited(_read(path))]
    if edited and not force:
        raise ConfigError(
            f"changed by hand: {', '.join(map(str, edited))}; keep the changes in {KEPT[manager]} then replace these "
            "files with --force"
        )
    return changed


def write_files(changed: Mapping[Path, str]) -> None:
    """Write the files, each at once; raises `ConfigError` if one cannot be written."""
    for path, text in changed.items():
        try:
            with replacing(path) as unfinished:
                unfinished.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}; choose a folder with --to") from error


def problems(manager: Manager, texts: Mapping[str, str]) -> list[str] | None:
    """Sentences of the service manager's own checker about files with ``texts``; None if it is not installed here."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files({folder / file: text for file, text in texts.items()})
        if manager == "systemd":
            found = _systemd_problems(folder, [file for file in texts if file.endswith((".service", ".target"))])
        else:
            found = _supervisord_problems(folder / "asyncrl.conf")
        return found and [sentence.replace(f"{folder}/", "") for sentence in found]


def _systemd_problems(folder: Path, units: list[str]) -> list[str] | None:
    if not (checker := shutil.which("systemd-analyze")):
        return None
    command = [checker, "verify", "--man=no", *(str(folder / unit) for unit in units)]
    # The trailing colon adds the folders of the machine; units that only the target names are found in this one.
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=CHECK_S, check=False)
    return [line for line in done.stderr.splitlines() if "asyncrl" in line]


def _supervisord_problems(path: Path) -> list[str] | None:
    if find_spec("supervisor") is None:
        return None
    from supervisor.options import ServerOptions

    options = ServerOptions()
    options.configfile = str(path)
    try:
        options.process_config(do_usage=False)
    except ValueError as error:
        return [f"{path}: {error}"]
    return []


def _marked(text: str) -> str:
    return f"{MARK}{_checksum(text)}\n{text}"


def _is_edited(text: str | None) -> bool:
    """True unless there is no file, or `write_files` wrote this text."""
    if text is None:
        return False
    mark, _, rest = text.partition("\n")
    return mark != MARK + _checksum(rest)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
