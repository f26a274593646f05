"""Opens what a run left behind, or is leaving right now, for the commands that look at it."""

from pathlib import Path
from typing import Any

from asyncrl.broker.ledger.audit import Audit, audit
from asyncrl.broker.ledger.dead_letters import DeadLetter, dead_letters
from asyncrl.broker.ledger.reader import LedgerReader
from asyncrl.config.run_file import load
from asyncrl.errors import ConfigError
from asyncrl.observe.run_directory import RunDirectory


def audit_of(path: Path) -> Audit:
    """
    The accounts of a run, measured by its own configuration.

    Raises:
        ConfigError: ``path`` is no run directory.
        LedgerError: It has no ledger, or a damaged one.
    """
    directory = _opened(path)
    schedule = load(directory.config).schedule
    with LedgerReader(directory.ledger) as ledger:
        return audit(ledger.records(), schedule)


def dead_letters_of(path: Path) -> list[DeadLetter]:
    """The dead letters of a run. Raises as `audit_of`."""
    with LedgerReader(_opened(path).ledger) as ledger:
        return dead_letters(ledger.records())


def events_of(path: Path, kinds: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """
    The events of a run, in order; only those of ``kinds`` if there are any.

    Raises:
        ConfigError: ``path`` is no run directory.
        LedgerError: The file is damaged.
    """
    return [event for event in _opened(path).read_events() if not kinds or event.get("event") in kinds]


def _opened(path: Path) -> RunDirectory:
    directory = RunDirectory(path)
    if not directory.config.is_file():
        raise ConfigError(f"{path} is not a run directory: there is no {directory.config.name} in it")
    return directory
