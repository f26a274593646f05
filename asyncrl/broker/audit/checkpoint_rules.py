"""Checkpoints against the ledger: of this run, of steps that were taken, with the version that they made."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from asyncrl.broker.ledger.audit import LEDGER
from asyncrl.broker.ledger.record_book import RecordBook
from asyncrl.errors import LedgerError
from asyncrl.files.checkpoints import MANIFEST, FileEntry, file_entry, step_name, step_of


class ManifestFacts(Struct, frozen=True, kw_only=True):
    """Part of a manifest that an audit reads, without the trainer's libraries."""

    step: int
    """Optimizer steps contained."""
    policy_version: int
    run_id: str = ""
    """Empty in a manifest of an earlier asyncrl."""
    files: dict[str, FileEntry] = {}
    ledger_records: int = 0
    ledger_head: str = ""
    """Digest of the ledger's first records, as many as that."""


def read_manifest(folder: Path) -> ManifestFacts | None:
    """Read the manifest of a checkpoint; None if the folder was removed. Raises LedgerError if it is damaged."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ManifestFacts)
    except FileNotFoundError:
        if not folder.exists():
            return None
        raise LedgerError(f"checkpoints/{folder.name}/{MANIFEST}: it is missing") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"checkpoints/{folder.name}/{MANIFEST}: it cannot be read: {error}") from error


def missing_files(folder: Path, manifest: ManifestFacts) -> Iterator[str]:
    """Sentences about files of a checkpoint that are missing or have another size."""
    for name, expected in manifest.files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != expected.size and folder.exists():
            got = "no such file" if size is None else f"{size} bytes"
            yield f"checkpoints/{folder.name}/{name}: expected {expected.size} bytes, got {got}"


def different_files(folder: Path, manifest: ManifestFacts) -> Iterator[str]:
    """Sentences about files of a checkpoint with other contents, and about those that are not listed; reads all."""
    for name, expected in manifest.files.items():
        try:
            got = file_entry(folder / name)
        except OSError:
            continue  # Missing, or removed meanwhile: `missing_files` says so.
        if got.size == expected.size and got.sha256 != expected.sha256:
            yield (
                f"checkpoints/{folder.name}/{name}: it is not what was written: expected sha256 "
                f"{expected.sha256[:12]}, as in the manifest, got {got.sha256[:12]}"
            )
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    for name in sorted(found - manifest.files.keys() - {MANIFEST}):
        yield f"checkpoints/{folder.name}/{name}: the manifest does not list it"


def checkpoint_problems(
    book: RecordBook, run_id: str, manifests: Mapping[str, ManifestFacts], steps_per_publish: int
) -> Iterator[str]:
    """Sentences about manifests, by the name of their folder, that do not belong to the run of this ledger."""
    for name, manifest in manifests.items():
        file, steps, version = f"checkpoints/{name}/{MANIFEST}", manifest.step, manifest.policy_version
        if manifest.run_id and run_id and manifest.run_id != run_id:
            yield f"{file}: the checkpoint belongs to another run: expected run {run_id}, got {manifest.run_id}"
        if step_name(steps) != name:
            yield f"{file}: it says that the checkpoint contains {steps} steps: expected those of its name"
        if steps > book.next_step:
            yield f"{file}: the checkpoint contains {steps} steps, but the ledger has batches of {book.next_step}"
            continue
        expected = book.versions.of_step(steps)
        # The last version of a run may contain fewer than T steps more than the one before.
        if version not in (expected, expected + (steps % steps_per_publish > 0)):
            yield f"{file}: its weights are version {version}: expected version {expected}, made by {steps} steps"


def commit_problems(book: RecordBook, names: Sequence[str]) -> Iterator[str]:
    """Sentences about commits of the ledger for which there never was a checkpoint, given the folders there are."""
    for commit in book.commits:
        if Path(commit.checkpoint).name != step_name(commit.step + 1):
            yield f"{LEDGER}: step {commit.step} was committed to {commit.checkpoint}: no checkpoint of that step"
    newest = max(map(step_of, names), default=0)
    if names and book.committed_step >= newest:
        yield (
            f"{LEDGER}: step {book.committed_step} was committed, but the newest checkpoint contains {newest} steps: "
            f"the commit is forged, or its checkpoint was removed"
        )
