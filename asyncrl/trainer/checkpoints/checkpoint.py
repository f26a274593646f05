"""
Checkpoints: everything that a trainer needs to resume, on disk, complete or not at all.

    checkpoints/
        step_000060/
            config.json, *.safetensors, tokenizer…    Hugging Face model directory, ready to serve
            trainer/optimizer*.safetensors             AdamW's moments; in a folder, or engines would load them too
            trainer/*.safetensors                      other learned tensors
            manifest.json                              step, frontier, random state; size and digest of every file above
        .step_000070.partial/                          left by a process that died
        best.json                                      the best on held-out prompts, by `Retention`

All files are written to a hidden folder, the manifest last, flushed to disk, and renamed: a folder called ``step_*`` is
complete, unless the disk lied or someone changed it, which `verify` detects. Nothing is pickled. Each rank writes the
tensors of its part, the first one all else: `begin`, then `take` and `write_part` on every rank, then `finish`.
There is no scheduler state: the learning rate is a function of the step.
"""

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from asyncrl.errors import LedgerError, RunFailed
from asyncrl.failpoints import failpoint
from asyncrl.files.atomic import needed, remove_folder, replace_folder
from asyncrl.files.checkpoints import (
    MANIFEST,
    FileEntry,
    ListedFiles,
    file_entry,
    require_digests,
    require_sizes,
    step_folder,
    step_folders,
    step_name,
    step_of,
)
from asyncrl.files.checkpoints import read_manifest as read_json_manifest
from asyncrl.log import get_logger
from asyncrl.messages.trainer import DamagedCheckpoint, Stepped
from asyncrl.trainer.checkpoints.snapshot import MODEL, TENSORS, CheckpointPart, Snapshot

log = get_logger()

INDEX = "model.safetensors.index.json"
FORMAT = 1
"""Format of the manifest; a manifest of any other format is refused."""


class Tokenizer(Protocol):
    """Transformers tokenizer."""

    def save_pretrained(self, save_directory: Path, /) -> object:
        """Write Hugging Face files into a folder."""


class Manifest(ListedFiles, frozen=True, kw_only=True):
    """Progress of the run, and expected contents of the other files."""

    format: int = FORMAT
    step: int
    """Optimizer steps contained."""
    policy_version: int
    frontier: dict[str, int] = {}
    """Progress in the data, defined by the caller."""
    random_state: bytes
    """State of torch's CPU generator."""
    stepped: list[Stepped] = []
    """Reports of the last steps, which the broker may not have received."""
    state: dict[str, float] = {}
    """`Snapshot.state`."""
    run_id: str = ""
    """Identity of the run; empty if it is unknown."""
    ledger_records: int = 0
    """Records that the broker's ledger had when it sent the last batch; 0 if that is unknown."""
    ledger_head: str = ""
    """Digest of these records: an audit finds whether any of them was changed since."""


def begin(directory: Path, step: int) -> None:
    """
    Make an empty folder for the parts of a checkpoint, and remove what earlier ones left unfinished.

    Raises:
        RunFailed: The disk failed.
    """
    with _removed_on_error(directory, step):
        for unfinished in directory.glob(".step_*.partial"):
            shutil.rmtree(unfinished)
        (_partial(directory, step) / TENSORS).mkdir(parents=True)


def take(directory: Path, step: int, snapshot: Callable[[Path], Snapshot]) -> Snapshot:
    """Call ``snapshot`` with the folder of the parts. Raises `RunFailed`, and removes everything, if the disk fails."""
    with _removed_on_error(directory, step):
        return snapshot(_partial(directory, step))


def write_part(directory: Path, step: int, snapshot: Snapshot) -> dict[str, FileEntry]:
    """
    Write the tensors of a rank, unless it has, and read the files for their digests.

    Returns the files. Raises `RunFailed`, and removes everything, if the disk fails.
    """
    partial = _partial(directory, step)
    with _removed_on_error(directory, step):
        names = snapshot.files or _save(partial, snapshot)
        return {name: file_entry(partial / name) for name in names}


def _save(folder: Path, snapshot: Snapshot) -> list[str]:
    """Write the copies of a snapshot; returns the files."""
    files = {snapshot.part.file(MODEL): snapshot.weights}
    files |= {snapshot.part.file(f"{TENSORS}/{name}"): tensors for name, tensors in snapshot.tensors.items()}
    for name, tensors in files.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
    return list(files)


def finish(
    directory: Path,
    *,
    step: int,
    policy_version: int,
    frontier: Mapping[str, int],
    stepped: Sequence[Stepped] = (),
    run_id: str = "",
    ledger: tuple[int, str] = (0, ""),
    snapshot: Snapshot,
    parts: Mapping[str, FileEntry],
    tokenizer: Tokenizer,
) -> Path:
    """
    Complete ``directory/step_<step>`` and return its path; once this returns, it survives a power cut.

    A folder of the same step is replaced: it exists only if it was damaged and the run resumed from an older one.

    Args:
        ledger: Number of the ledger's records, and their digest.
        snapshot: Of the first rank.
        parts: Files that were written by `write_part`, on all ranks.

    Raises:
        RunFailed: The disk failed; everything written was removed, and older checkpoints are unchanged.
    """
    final, partial = step_folder(directory, step), _partial(directory, step)
    with _removed_on_error(directory, step):
        for config in snapshot.configs:
            config.save_pretrained(partial)
        _save_tokenizer(tokenizer, partial)
        if snapshot.part.count > 1:
            _write_index(partial, snapshot, parts)
        failpoint("trainer.checkpoint_partial")
        names = sorted(str(path.relative_to(partial)) for path in partial.rglob("*") if path.is_file())
        manifest = Manifest(
            step=step,
            policy_version=policy_version,
            frontier=dict(frontier),
            stepped=list(stepped),
            run_id=run_id,
            ledger_records=ledger[0],
            ledger_head=ledger[1],
            state=snapshot.state,
            random_state=snapshot.random_state,
            files={name: parts.get(name) or file_entry(partial / name) for name in names},
        )
        (partial / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        replace_folder(partial, final)
    return final


def _write_index(folder: Path, snapshot: Snapshot, files: Mapping[str, FileEntry]) -> None:
    names = [CheckpointPart(index, snapshot.part.count).file(MODEL) for index in range(snapshot.part.count)]
    total = sum(files[name].size for name in names)
    weight_map = {weight: names[index] for weight, index in snapshot.weight_parts.items()}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index)) + b"\n")


@contextmanager
def _removed_on_error(directory: Path, step: int) -> Iterator[None]:
    """Turn disk errors into `RunFailed`, and remove the partial checkpoint, which may have filled the disk."""
    final, partial = step_folder(directory, step), _partial(directory, step)
    try:
        with needed(final):
            try:
                yield
            except SafetensorError as error:  # safetensors raises it for disk errors.
                raise OSError(str(error)) from error
    except RunFailed:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # tokenizers raises a bare Exception if the disk is full.
        raise OSError(str(error)) from error


class CheckpointSearch(NamedTuple):
    """Newest checkpoint that passes `verify`, and those that are newer."""

    found: tuple[Path, Manifest] | None
    damaged: list[DamagedCheckpoint]
    """The newest first."""


def search(directory: Path) -> CheckpointSearch:
    """Find the newest intact checkpoint. Damaged ones are skipped and logged."""
    damaged: list[DamagedCheckpoint] = []
    for folder in reversed(step_folders(directory).values()):
        try:
            return CheckpointSearch((folder, verify(folder)), damaged)
        except (LedgerError, OSError) as error:  # OSError: unreadable
            log.warning("checkpoint.damaged", path=str(folder), cause=str(error))
            damaged.append(DamagedCheckpoint(str(folder), str(error)))
    return CheckpointSearch(None, damaged)


def verify(folder: Path) -> Manifest:
    """Compare every byte of a checkpoint with the manifest; raises `LedgerError`, which names the file that differs."""
    manifest = read_manifest(folder)
    require_sizes(folder, manifest.files)
    require_digests(folder, manifest.files)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read ``manifest.json``; raises `LedgerError` if it is missing, damaged, or of another format."""
    manifest = read_json_manifest(folder, Manifest)
    if manifest.format != FORMAT:
        raise LedgerError(
            f"{folder / MANIFEST}: expected format {FORMAT}, got {manifest.format}; use the version of asyncrl that "
            f"wrote it"
        )
    return manifest


def require_run(folder: Path, manifest: Manifest, run_id: str) -> None:
    """Raise `LedgerError` if a checkpoint belongs to another run; an empty id is unknown and fits any."""
    if manifest.run_id and run_id and manifest.run_id != run_id:
        raise LedgerError(
            f"{folder / MANIFEST} belongs to another run: expected run {run_id}, got {manifest.run_id}; remove the "
            f"checkpoint, or put back the ledger of its run"
        )


def restore_random_state(manifest: Manifest) -> None:
    """Set torch's CPU generator to the state in the checkpoint."""
    torch.set_rng_state(torch.frombuffer(bytearray(manifest.random_state), dtype=torch.uint8))


def prune(directory: Path, keep: int, spared: Collection[Path] = ()) -> list[Path]:
    """
    Remove checkpoints, except the newest ``keep`` complete ones and those ``spared``.

    Damaged checkpoints older than the newest complete one are removed too; newer ones are left for inspection. Returns
    the removed folders, oldest first; raises `RunFailed` if one cannot be removed.
    """
    folders = list(step_folders(directory).values())
    kept = [folder for folder, _ in complete(directory)][-keep:]
    older = folders[: folders.index(kept[-1])] if kept else []
    doomed = [folder for folder in older if folder not in kept and folder not in spared]
    for folder in doomed:
        with needed(folder):
            remove_folder(folder, _partial(directory, step_of(folder.name)))
    return doomed


def complete(directory: Path) -> list[tuple[Path, Manifest]]:
    """Checkpoints with all files in their full size, oldest first. Digests are not checked."""
    found = []
    for folder in step_folders(directory).values():
        with suppress(LedgerError):
            manifest = read_manifest(folder)
            require_sizes(folder, manifest.files)
            found.append((folder, manifest))
    return found


def _partial(directory: Path, step: int) -> Path:
    return directory / f".{step_name(step)}.partial"
