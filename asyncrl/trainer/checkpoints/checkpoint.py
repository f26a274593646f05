"""
What a trainer needs to go on after it died, on disk, whole or not at all.

    checkpoints/
        step_000060/
            config.json, *.safetensors, tokenizer…    a Hugging Face model directory: serve it as it is
            trainer/optimizer.safetensors              AdamW's moments; in a folder, or engines would load them too
            trainer/*.safetensors                      what else the learner has learned
            manifest.json                              step, frontier, random state; size and digest of every file above
        .step_000070.partial/                          somebody died here
        best.json                                      which of them did best on held-out prompts: retention.py

Everything is written to a hidden folder, the manifest last, flushed to the disk, and renamed: a folder called
``step_*`` is complete, unless the disk lies or a hand meddled, and `verify` finds that out. No pickle anywhere.
There is no scheduler state: the learning rate is a function of the step.
"""

import hashlib
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from asyncrl.actor.failpoints import reach
from asyncrl.errors import LedgerError, RunFailed
from asyncrl.files.atomic import flush
from asyncrl.files.disk import needed
from asyncrl.messages import Stepped
from asyncrl.trainer.checkpoints.snapshot import Snapshot

log = structlog.get_logger()

MANIFEST = "manifest.json"
TENSORS = "trainer"
"""Folder of the tensors that are no weights of the model."""
FORMAT = 1
"""Of the manifest; a later one is refused, not guessed at."""


class Tokenizer(Protocol):
    """A transformers tokenizer."""

    def save_pretrained(self, save_directory: Path, /) -> object:
        """Write Hugging Face files into a folder."""


class FileEntry(Struct, frozen=True):
    """A file as it was written."""

    size: int
    """Bytes."""
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """Where the run stood, and what the other files must be."""

    format: int = FORMAT
    step: int
    """Optimizer steps contained."""
    policy_version: int
    """Of these weights."""
    frontier: dict[str, int] = {}
    """Where the data stood, in the words of whoever resumes."""
    random_state: bytes
    """Torch's CPU generator."""
    stepped: list[Stepped] = []
    """What was said of the last steps: if the broker died just then, nobody heard it."""
    state: dict[str, float] = {}
    """As in `Snapshot`."""
    files: dict[str, FileEntry]


def write(
    directory: Path,
    *,
    step: int,
    policy_version: int,
    frontier: Mapping[str, int],
    stepped: Sequence[Stepped] = (),
    snapshot: Snapshot,
    tokenizer: Tokenizer,
) -> Path:
    """
    Write ``directory/step_<step>``; when this returns it survives a power cut.

    A folder of the same step is replaced: it is there only if it was damaged and the run went on from an older one.

    Returns:
        The folder.

    Raises:
        RunFailed: The disk did not take it. What was written of it is gone, and older ones are as they were.
    """
    final = directory / f"step_{step:06d}"
    partial = directory / f".{final.name}.partial"
    with _needed(final, partial):
        shutil.rmtree(partial, ignore_errors=True)
        (partial / TENSORS).mkdir(parents=True)
        snapshot.model.save_pretrained(partial, state_dict=dict(snapshot.weights))
        _save_tokenizer(tokenizer, partial)
        for name, tensors in snapshot.tensors.items():
            save_file(tensors, _tensors_path(partial, name))
        reach("trainer.checkpoint_partial")
        manifest = Manifest(
            step=step,
            policy_version=policy_version,
            frontier=dict(frontier),
            stepped=list(stepped),
            state=snapshot.state,
            random_state=snapshot.random_state,
            files={str(path.relative_to(partial)): _entry(path) for path in _files(partial)},
        )
        (partial / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        for path in [*_files(partial), *_folders(partial)]:
            flush(path)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        flush(directory)
    return final


@contextmanager
def _needed(final: Path, partial: Path) -> Iterator[None]:
    """A disk that is full is not left full of half a checkpoint."""
    try:
        with needed(final):
            try:
                yield
            except SafetensorError as error:  # Its words for an error of the disk.
                raise OSError(str(error)) from error
    except RunFailed:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # Its Rust half raises nothing narrower when the disk is full.
        raise OSError(str(error)) from error


def newest_sound(directory: Path) -> tuple[Path, Manifest] | None:
    """
    The checkpoint of the highest step of which every byte is as it was written; None if there is none.

    Damaged ones are passed over, and the log says which and why.
    """
    for folder in reversed(_checkpoints(directory)):
        try:
            return folder, verify(folder)
        except (LedgerError, OSError) as error:  # OSError: the disk cannot read what is there.
            log.warning("checkpoint.damaged", path=str(folder), cause=str(error))
    return None


def verify(folder: Path) -> Manifest:
    """
    Read every byte of a checkpoint.

    Raises:
        LedgerError: A file is missing or differs from the manifest; names it, expected and got.
    """
    manifest = read_manifest(folder)
    _check_sizes(folder, manifest)
    for name, expected in manifest.files.items():
        digest = _entry(folder / name).sha256
        if digest != expected.sha256:
            raise LedgerError(
                f"{folder / name} differs from what was written: expected sha256 {expected.sha256}, got {digest}; "
                f"resume from an older checkpoint"
            )
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """
    Raises:
        LedgerError: It is missing, damaged, or of a later format.
    """
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror}; the checkpoint is incomplete") from error
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path} is damaged: {error}; resume from an older checkpoint") from error
    if manifest.format != FORMAT:
        raise LedgerError(f"{path}: expected format {FORMAT}, got {manifest.format}; use the asyncrl that wrote it")
    return manifest


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """
    What `Snapshot.tensors` had under ``name``, bit for bit.

    Raises:
        LedgerError: The file is missing or damaged.
    """
    path = _tensors_path(folder, name)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise LedgerError(f"cannot read {path}: {error}; resume from an older checkpoint") from error


def read_all_tensors(folder: Path, manifest: Manifest) -> dict[str, dict[str, Tensor]]:
    """
    `Snapshot.tensors`, bit for bit.

    Raises:
        LedgerError: A file is missing or damaged.
    """
    paths = (Path(name) for name in manifest.files)
    return {path.stem: read_tensors(folder, path.stem) for path in paths if path.parent.name == TENSORS}


def restore_random_state(manifest: Manifest) -> None:
    """Put torch's CPU generator where it stood when the checkpoint was written."""
    torch.set_rng_state(torch.frombuffer(bytearray(manifest.random_state), dtype=torch.uint8))


def prune(directory: Path, keep: int, spared: Collection[Path] = ()) -> list[Path]:
    """
    Remove all but the newest ``keep`` complete checkpoints and those ``spared``, and what was never finished.

    Damaged ones older than the newest that is kept go too; a damaged one newer than all is left to be looked at.

    Returns:
        The folders removed, oldest first.

    Raises:
        RunFailed: The disk does not let go of one.
    """
    folders = _checkpoints(directory)
    kept = [folder for folder, _ in complete(directory)][-keep:]
    older = folders[: folders.index(kept[-1])] if kept else []
    doomed = [folder for folder in older if folder not in kept and folder not in spared]
    doomed += sorted(directory.glob(".step_*.partial"))
    for folder in doomed:
        with needed(folder):
            shutil.rmtree(folder)
    return doomed


def complete(directory: Path) -> list[tuple[Path, Manifest]]:
    """Checkpoints that lack no file and no byte, oldest first. What the bytes are is not looked at."""
    found = []
    for folder in _checkpoints(directory):
        with suppress(LedgerError):
            manifest = read_manifest(folder)
            _check_sizes(folder, manifest)
            found.append((folder, manifest))
    return found


def _checkpoints(directory: Path) -> list[Path]:
    """Folders called ``step_<number>``, oldest first."""
    folders = [path for path in directory.glob("step_*") if path.name.removeprefix("step_").isdecimal()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("step_")))


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise LedgerError(f"{path} is missing; resume from an older checkpoint")
        if (size := path.stat().st_size) != expected.size:
            raise LedgerError(f"{path}: expected {expected.size} bytes, got {size}; resume from an older checkpoint")


def _tensors_path(folder: Path, name: str) -> Path:
    return folder / TENSORS / f"{name}.safetensors"


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(path.stat().st_size, digest)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _folders(folder: Path) -> list[Path]:
    return [folder, *(path for path in folder.rglob("*") if path.is_dir())]
