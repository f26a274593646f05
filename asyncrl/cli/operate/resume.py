"""The command that continues a run that is not complete, or its services."""

from pathlib import Path

from asyncrl.config.checks.addresses import exposed_addresses
from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError
from asyncrl.observe.run_directory import RunDirectory

COMMANDS = {
    Path("/etc/systemd/system/asyncrl-broker.service"): "systemctl start asyncrl.target",
    Path("asyncrl.conf"): "supervisorctl -c asyncrl.conf start all",
}
"""Files of the services of a broker, where `asyncrl services install` puts them, and what starts these services."""
SERVICES = f"start its services again on every machine: {', or '.join(COMMANDS.values())}"


def how_to_resume(where: str) -> str:
    """The command that continues the run in ``where``; `asyncrl resume` refuses one that other machines reach."""
    try:
        exposed = exposed_addresses(load_config(RunDirectory(Path(where)).config).broker)
    except ConfigError:  # The command then says what is wrong with the configuration.
        exposed = []
    return _services(Path(where)) if exposed else f"asyncrl resume {where}"


def _services(run: Path) -> str:
    """Sentence with the command that starts the services of the run; `SERVICES` unless one manager is known here."""
    known = [command for file, command in COMMANDS.items() if f"--run-dir {run.absolute()} " in _text(file)]
    return f"start its services again on every machine: {known[0]}" if len(known) == 1 else SERVICES


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
