"""
State of a run: from its broker, or from its files if there is no broker to ask.

    RUN, broker.lock held     ─▶ broker ─▶ Status
    RUN otherwise, no answer  ─▶ files ─▶ RunOverview, and the reason why the broker could not be asked
    ADDRESS                   ─▶ broker ─▶ Status, or an error
"""

from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from asyncrl.cli.operate.session import operator
from asyncrl.client.run_address import RunAddress, locate
from asyncrl.errors import AsyncrlError, ConfigError, LinkError
from asyncrl.messages.supervisor import Status, StatusWanted
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.run_overview import RunOverview, is_run, is_served, is_starting, is_supervised, overview
from asyncrl.similar_path import did_you_mean

STARTING = "the broker is starting: it reads the prompts and the ledger"


class RunState(Struct, frozen=True):
    """Exactly one of ``live`` and ``files`` is set."""

    live: Status | None = None
    files: RunOverview | None = None
    unasked: str = ""
    """Reason why the broker could not be asked."""
    is_supervised: bool = False
    """True if `asyncrl run` runs it."""

    @property
    def is_unknown(self) -> bool:
        """True if the run is not over, and its broker could not be asked."""
        return self.files is not None and self.files.status in ("running", "stopped")


async def run_state(where: str, key: Path | None = None) -> RunState:
    """
    State of a run, named by its directory or by its broker's address; ``key`` is the file of the operator's key.

    Raises `ConfigError` if there is no such run or no key for the address, and `LinkError` if the broker at an address
    does not answer.
    """
    if "://" in where:
        return RunState(live=await ask_status(locate(where, key)))
    directory = opened(where)
    if not is_served(directory):
        files = overview(directory.path)
        return RunState(None, files, _no_broker(files, directory), is_supervised(directory))
    if is_starting(directory):
        return RunState(None, overview(directory.path), STARTING, is_supervised(directory))
    try:
        return RunState(live=await ask_status(locate(where, key)))
    except AsyncrlError as error:
        return RunState(files=overview(directory.path), unasked=f"its broker could not be asked: {error}")


async def ask_status(run: RunAddress) -> Status:
    """Ask the broker at an address. Raises `LinkError` if it does not answer."""
    async with operator(run) as session:
        return await session.ask(StatusWanted(), Status)


def live_address(where: str, key: Path | None = None) -> RunAddress:
    """
    Address of the broker of a run that is to be steered.

    Raises `ConfigError` as `opened` and `locate`, and `LinkError` if no broker serves the run.
    """
    if "://" not in where and not is_served(directory := opened(where)):
        files = overview(directory.path)
        raise LinkError(f"{where} cannot be steered ({files.status}): {_no_broker(files, directory)}")
    return locate(where, key)


def opened(where: str) -> RunDirectory:
    """A run directory; raises `ConfigError` if ``where`` is none, naming the runs there are."""
    path = Path(where)
    if not is_run(path):
        raise ConfigError(
            f"{where} is neither a run directory nor a broker's address: there is no config.toml in it; `asyncrl ls` "
            f"lists the runs below runs/, and an address is tcp://HOST:PORT{did_you_mean(path, is_run)}"
        )
    return RunDirectory(path)


def plain(value: Any) -> Any:
    """Messages as dicts, for JSON: on the wire they are arrays."""
    if isinstance(value, Struct):
        return {name: plain(field) for name, field in structs.asdict(value).items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def _no_broker(files: RunOverview, directory: RunDirectory) -> str:
    if is_supervised(directory):
        return "its broker does not run at this moment, but `asyncrl run` does, and starts or ends it"
    if files.status == "stopped":
        return (
            "its broker does not run, and no end of the run is recorded: the broker was told to stop, was killed, or "
            "its machine went down"
        )
    return "its broker has ended, because the run is over"
