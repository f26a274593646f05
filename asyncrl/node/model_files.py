"""
Model directories of a run on several machines, that of an adapter to start from included.

    the node has the path      compared with that of the broker's machine, before anything is loaded
    it has not                 fetched from there into the node's cache
"""

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from asyncrl.client.files import cache_folder, fetch_folder
from asyncrl.client.handshake import Identity, hosted_links
from asyncrl.client.run_address import RunAddress
from asyncrl.config.config import Config, from_json, to_json
from asyncrl.config.model.files import describe, difference
from asyncrl.errors import ConfigError
from asyncrl.messages.files import ModelFiles
from asyncrl.messages.session import Welcome


def model_files(config: Config) -> list[ModelFiles]:
    """
    Model directories of the configuration that this machine has.

    Raises:
        ConfigError: A file cannot be read.
    """
    paths = dict.fromkeys(path for path in (config.model.path, config.critic.path, config.trainer.lora.path) if path)
    found = [ModelFiles(path, describe(Path(path))) for path in paths]
    return [model for model in found if model.files]


def require_same_models(welcome: Welcome) -> None:
    """
    Compare the model directories of this machine with those of the broker's. One that is not here is not compared.

    Raises:
        ConfigError: They differ; names the path and the file. The caller names this machine.
    """
    for model in welcome.models:
        path = Path(model.path)
        if path.is_dir() and (problem := difference(path, model.files)):
            raise ConfigError(
                f"{path} is not the model of this run: {problem} as on the broker's machine; copy the directory from "
                f"there"
            )


async def local_copies(welcome: Welcome, run: RunAddress, who: Identity, *, may_fetch: bool) -> dict[str, str]:
    """
    Fetch the model directories that this machine lacks from the broker's.

    Returns:
        Directory of this machine for each missing one of the configuration.

    Raises:
        ConfigError: One is missing and may not be fetched, or the broker hosts no spool to fetch it from.
        LinkError, RunFailed: It cannot be fetched, or not be stored.
    """
    missing = _missing(welcome)
    if not missing:
        return {}
    connect = hosted_links(welcome.spools, who, run, ".models")
    if not may_fetch or connect is None:
        why = "the broker hosts no spool to fetch it from" if may_fetch else "--fetch is never"
        raise ConfigError(f"there is no {missing[0]}, and {why}: copy the directory from the broker's machine")
    link = connect()
    try:
        return {path: str(await fetch_folder(link, path, cache_folder())) for path in missing}
    finally:
        await link.aclose()


def with_copies(welcome: Welcome, copies: Mapping[str, str]) -> Welcome:
    """The welcome, whose configuration names the `local_copies` of model directories."""
    return replace(welcome, config=to_json(_with_paths(from_json(welcome.config), copies))) if copies else welcome


def _missing(welcome: Welcome) -> list[str]:
    """Model directories of the broker's machine that are not on this one."""
    return [model.path for model in welcome.models if not Path(model.path).is_dir()]


def _with_paths(config: Config, copies: Mapping[str, str]) -> Config:
    model = replace(config.model, path=copies.get(config.model.path, config.model.path))
    critic = replace(config.critic, path=copies.get(config.critic.path, config.critic.path))
    lora = replace(config.trainer.lora, path=copies.get(config.trainer.lora.path, config.trainer.lora.path))
    return replace(config, model=model, critic=critic, trainer=replace(config.trainer, lora=lora))
