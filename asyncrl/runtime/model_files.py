"""Models on the machines of a run: compared with the broker's, fetched from it, or from the Hugging Face Hub."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.config.model import adapter
from asyncrl.config.model.directory import snapshot_of
from asyncrl.config.model.tokenizer import PROMPT_FILES, describe, difference
from asyncrl.data.table import no_dataset
from asyncrl.errors import ConfigError
from asyncrl.messages.files import ModelFiles
from asyncrl.messages.session import Welcome
from asyncrl.runtime.machine import INSTALL
from asyncrl.similar_path import did_you_mean
from asyncrl.wire.files import cache_folder, fetch_folder
from asyncrl.wire.handshake import Identity, hosted_links
from asyncrl.wire.run_address import RunAddress

# ── model files ───────────────────────────────────────────────────────────────────────────────
# Model directories of a run on several machines, that of an adapter to start from included.
#
#     the node has the path      compared with that of the broker's machine, before anything is loaded
#     it has not                 fetched from there into the node's cache


def model_files(config: Config) -> list[ModelFiles]:
    """
    Model directories of the configuration that this machine has.

    Raises:
        ConfigError: A file cannot be read.
    """
    found = [ModelFiles(path, describe(Path(path))) for path in dict.fromkeys(_models(config).values())]
    return [model for model in found if model.files]


def models_elsewhere(config: Config) -> list[str]:
    """A sentence for each model directory of the configuration that this machine lacks, the broker's."""
    return [
        f"{setting} {path!r} is not on this machine: nodes cannot fetch it from here, and each machine of the trainer "
        f"and the rollouts needs it at that path{did_you_mean(Path(path), Path.is_dir)}"
        for setting, path in _models(config).items()
        if not model_name(path) and not describe(Path(path))
    ]


def require_data(config: Config) -> None:
    """Raise `DataError` for a file of prompts that is not on this machine, the broker's; a name of the Hub is none."""
    for setting, paths in (("data.train", config.data.train_files), ("data.held_out", config.data.held_out_files)):
        for path in paths:
            if not dataset_name(path) and not Path(path).exists():
                raise no_dataset(Path(path), setting)


def _models(config: Config) -> dict[str, str]:
    """Model directories that are set, by their settings."""
    paths = {
        "model.path": config.model.path,
        "critic.path": config.critic.path,
        "trainer.lora.path": config.trainer.lora.path,
    }
    return {setting: path for setting, path in paths.items() if path}


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


def _missing(welcome: Welcome) -> list[str]:
    """Model directories of the broker's machine that are not on this one."""
    return [model.path for model in welcome.models if not Path(model.path).is_dir()]


def with_copies(config: Config, copies: Mapping[str, str]) -> Config:
    """The configuration, with the `local_copies` in place of the model directories that it names."""
    if not copies:
        return config
    model = replace(config.model, path=copies.get(config.model.path, config.model.path))
    critic = replace(config.critic, path=copies.get(config.critic.path, config.critic.path))
    lora = replace(config.trainer.lora, path=copies.get(config.trainer.lora.path, config.trainer.lora.path))
    return replace(config, model=model, critic=critic, trainer=replace(config.trainer, lora=lora))


# ── hub ───────────────────────────────────────────────────────────────────────────────────────
# Models and datasets of the Hugging Face Hub, by name: from the cache of this machine, else from the network.
#
#     model.path = "org/name"                      ─▶ ~/.cache/huggingface/…/snapshots/COMMIT
#     model.path = "hf://org/name@REVISION"        ─▶ the same, at a branch, tag or commit
#     trainer.lora.path = "org/name"               ─▶ the same, of an adapter
#     data.train = "hf://datasets/org/name:train"  ─▶ the parquet or JSONL files of a split, in …/snapshots/COMMIT
#
# The configuration of a run, in its run directory and its ledger, has the path with the commit, so that a resumed run
# reads the same files. Only safetensors, JSON, tokenizers and templates of a model are downloaded: never code, never
# a pickle. An existing local path is never taken for a name.

SMALL_FILES = ("*.safetensors.index.json", "config.json", "generation_config.json", *PROMPT_FILES)
MODEL_FILES = ("*.safetensors", *SMALL_FILES)
ADAPTER_FILES = (adapter.CONFIG, adapter.WEIGHTS)
DATA_FILES = ("*.parquet", "*.jsonl")
PREFIX, DATASETS = "hf://", "hf://datasets/"

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(rf"(?P<repo>{_PART}/{_PART})(?::(?P<split>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?")

Say = Callable[[str], None]
Download = Callable[..., str]
"""`huggingface_hub.snapshot_download`: returns the folder of a snapshot."""


class HubName(Struct, frozen=True):
    repo: str
    revision: str | None = None
    split: str = ""
    """Split of a dataset; empty: all files."""


def model_name(path: str) -> HubName | None:
    """The name of a model on the Hub; None for a local path, also one that does not exist."""
    if path.startswith(PREFIX):
        return _parsed(path.removeprefix(PREFIX), path)
    owner = path.partition("/")[0]
    if Path(path).exists() or Path(owner).is_dir() or owner == "models" or not _NAME.fullmatch(path):
        return None
    return _parsed(path, path)


def snapshot_name(folder: str) -> HubName | None:
    """The name and commit of a model whose snapshot in the cache this folder is; None for any other folder."""
    found = snapshot_of(folder)
    return HubName(found.repo, found.commit) if found and not found.file else None


def dataset_name(path: str) -> HubName | None:
    """The name of a dataset, ``hf://datasets/org/name`` or ``org/name:split``; None for a local path."""
    if path.startswith(DATASETS):
        return _parsed(path.removeprefix(DATASETS), path)
    found = _NAME.fullmatch(path)
    return _parsed(path, path) if found and found["split"] and not Path(path).exists() else None


def with_local_copies(
    config: Config,
    say: Say,
    download: Download | None = None,
    *,
    has_weights: bool = True,
    model_setting: str = "model.path",
) -> Config:
    """
    The configuration with the folder of a snapshot in place of each name.

    Args:
        say: Told which commit a name is.
        has_weights: False leaves weights where they are, adapters included; configuration and tokenizer are small.
        download: In place of `huggingface_hub.snapshot_download`, in tests.
        model_setting: What the model was given by, for messages.

    Raises:
        ConfigError: A name is neither in the cache nor can be downloaded, or a dataset has no files of that split.
    """
    model, critic, trainer, data = config.model, config.critic, config.trainer, config.data
    if name := model_name(model.path):
        model = replace(model, path=model_folder(name, model_setting, say, download, has_weights=has_weights))
    if critic.path and (name := model_name(critic.path)):
        critic = replace(critic, path=model_folder(name, "critic.path", say, download, has_weights=has_weights))
    if has_weights and trainer.lora.path and (name := model_name(trainer.lora.path)):
        trainer = replace(
            trainer,
            lora=replace(trainer.lora, path=model_folder(name, "trainer.lora.path", say, download, ADAPTER_FILES)),
        )
    train = _files(config.data.train_files, "data.train", say, download)
    held_out = [] if data.hold_out else _files(data.held_out_files, "data.held_out", say, download)
    if [*train, *held_out] != [*data.train_files, *([] if data.hold_out else data.held_out_files)]:
        data = replace(data, train=train, held_out=held_out)
    return replace(config, model=model, critic=critic, trainer=trainer, data=data)


def model_folder(
    name: HubName,
    setting: str,
    say: Say,
    download: Download | None = None,
    files: Sequence[str] = MODEL_FILES,
    *,
    has_weights: bool = True,
) -> str:
    """Folder of a model's snapshot, or of an adapter's, which has other ``files``; see `with_local_copies`."""

    def has_all(folder: Path) -> bool:
        return any(folder.rglob("*.safetensors")) if has_weights else (folder / "config.json").exists()

    patterns = files if has_weights else SMALL_FILES
    folder = _snapshot(name, patterns, setting, download, repo_type="model", has_all=has_all)
    say(f"{setting} {name.repo} is commit {folder.name}")
    return str(folder)


def _files(paths: Sequence[str], setting: str, say: Say, download: Download | None) -> list[str]:
    found: list[str] = []
    for path in paths:
        name = dataset_name(path)
        if name is None:
            found.append(path)
            continue
        split_files = partial(_split_files, split=name.split)
        patterns = [f"*{name.split}{pattern}" if name.split else pattern for pattern in DATA_FILES]
        folder = _snapshot(name, patterns, setting, download, repo_type="dataset", has_all=split_files)
        files = split_files(folder)
        if not files:
            raise ConfigError(f"{setting} {path!r}: the dataset has no parquet or JSONL file of a split {name.split!r}")
        say(f"{setting} {name.repo} is commit {folder.name}: {len(files)} files")
        found += map(str, files)
    return found


def _split_files(folder: Path, split: str) -> list[Path]:
    """Files whose path has the split as a word, so that ``train`` is not ``untrained``; all without a split."""
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(split)}(?![A-Za-z0-9])")
    found = [file for pattern in DATA_FILES for file in sorted(folder.rglob(pattern))]
    return [file for file in found if not split or word.search(str(file.relative_to(folder)))]


def _snapshot(
    name: HubName,
    patterns: Sequence[str],
    setting: str,
    download: Download | None,
    *,
    repo_type: str,
    has_all: Callable[[Path], object],
) -> Path:
    """Folder of the snapshot in the cache if it ``has_all`` that is needed, else downloaded."""
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  an optional package, and takes 0.2 s
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{setting} {name.repo!r} is on the Hugging Face Hub, which needs: {INSTALL}") from error
    fetch = partial(
        download or snapshot_download,
        name.repo,
        repo_type=repo_type,
        revision=name.revision,
        allow_patterns=list(patterns),
    )
    with suppress(OSError, ValueError, HfHubHTTPError):  # It is not in the cache.
        cached = Path(fetch(local_files_only=True))
        if has_all(cached):
            return cached
    try:
        return Path(fetch())
    except (OSError, ValueError, HfHubHTTPError) as error:
        why = f"cannot be downloaded ({type(error).__name__}: {' '.join(str(error).split())[:100]})"
        if isinstance(error, LocalEntryNotFoundError):  # its text is a paragraph
            why = "the Hugging Face Hub cannot be reached"
        if hint := did_you_mean(Path(name.repo), Path.exists):
            raise ConfigError(f"{setting} {name.repo!r} is neither a local path nor in the cache{hint}") from error
        kind, into = " --repo-type dataset" * (repo_type == "dataset"), f"{repo_type}s/{name.repo.rpartition('/')[2]}"
        raise ConfigError(
            f"{setting} {name.repo!r} is neither a local path nor in the cache, and {why}; correct it, or copy the "
            f"folder from a machine with a network: hf download {name.repo}{kind} --local-dir {into}"
        ) from error


def _parsed(text: str, given: str) -> HubName:
    found = _NAME.fullmatch(text)
    if not found:
        raise ConfigError(
            f"{given!r} is no name on the Hugging Face Hub: expected hf://[datasets/]OWNER/NAME[@REVISION]"
        )
    return HubName(found["repo"], found["revision"], found["split"] or "")
