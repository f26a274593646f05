"""The command that continues a run that is not complete, or its services."""

from pathlib import Path

from asyncrl.config.checks.addresses import exposed_addresses
from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError
from asyncrl.observe.run_directory import RunDirectory

SERVICES = "start its services again"


def how_to_resume(where: str) -> str:
    """The command that continues the run in ``where``; `asyncrl resume` refuses one that other machines reach."""
    try:
        exposed = exposed_addresses(load_config(RunDirectory(Path(where)).config).broker)
    except ConfigError:  # The command then says what is wrong with the configuration.
        exposed = []
    return SERVICES if exposed else f"asyncrl resume {where}"
