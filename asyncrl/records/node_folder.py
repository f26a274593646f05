"""
Folder of the services of a machine that is not the broker's: their logs alone, of a run whose files are elsewhere.

    logs/ROLE.log: node.joined, with run, path and broker ─▶ which run it is, where its files are, and whom to ask
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from asyncrl.terminal import command_line

JOINED = "node.joined"
BROKER = "broker"
"""Beginning of the name of a broker's log: its folder is, or is about to be, the run's own."""


class _Joined(Struct):
    """Line of a log that tells which run a node has joined."""

    event: str
    run: str
    broker: str
    timestamp: str = ""
    path: str = ""
    """Run directory on the broker's machine; empty in logs of earlier versions."""


def node_folder(path: Path) -> str:
    """Sentence about a folder of nodes alone, which says where the run is and what to run; empty for any other path."""
    logs = sorted((path / "logs").glob("*.log*"))
    if not logs or (path / "config.toml").exists() or any(log.name.startswith(BROKER) for log in logs):
        return ""
    here = f"{path} is no run directory, but the folder of services of this machine"
    shows = f"`{command_line('asyncrl', 'logs', path)}` shows their logs"
    joined = max((line for log in logs for line in _joined(log)), key=lambda line: line.timestamp, default=None)
    if joined is None:
        return f"{here}, which have joined no run yet; {shows}"
    place = f"its directory, {joined.path}," if joined.path else "its directory"
    asks = command_line("asyncrl", "status", joined.broker)
    return (
        f"{here}, which have joined the run {joined.run}: {place} is on the machine of its broker, {joined.broker}; "
        f"give this command there; here, {shows}, and `{asks}` with an operator's key asks the broker"
    )


def _joined(log: Path) -> Iterator[_Joined]:
    """Lines of a log, which may be cut, or be no JSON."""
    with log.open("rb") as file:
        for line in file:
            if JOINED.encode() in line:
                try:
                    found = msgspec.json.decode(line, type=_Joined)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
                if found.event == JOINED:
                    yield found
