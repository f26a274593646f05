"""
Files that the broker's spool sends and receives: model directories, and copies of checkpoints.

    any node ──ListFiles──────────▶ SPOOL ──FileList───────────────▶
             ──FetchPart──────────▶       ──FilePart───────────────▶
    TRAINER  ──OfferCheckpoint────▶       ──CheckpointWanted───────▶
             ──PutCheckpointPart──▶       ──PutCheckpointPartDone──▶
"""

from asyncrl.messages.codec import Message, Value, sent
from asyncrl.messages.words import MEMBERS


class FileDigest(Value, frozen=True):
    """One file of a model directory."""

    name: str
    size: int
    """Bytes."""
    sha256: bytes
    """Digest of the file; in `ModelFiles`, of the header of a safetensors file."""


class ModelFiles(Value, frozen=True):
    """A model directory on the broker's machine."""

    path: str
    files: list[FileDigest]


@sent(by=MEMBERS, to="spool")
class ListFiles(Message, frozen=True):
    """Request to the broker's spool for the files of a folder, answered by `FileList`."""

    folder: str


@sent(by="spool", to=MEMBERS)
class FileList(Message, frozen=True):
    """Answer to `ListFiles`."""

    files: list[FileDigest]
    problem: str = ""
    """Reason for which there are none."""


@sent(by=MEMBERS, to="spool")
class FetchPart(Message, frozen=True):
    """Request to the broker's spool for a part of a listed file, answered by `FilePart`."""

    sha256: bytes
    offset: int
    length: int


@sent(by="spool", to=MEMBERS)
class FilePart(Message, frozen=True):
    """Answer to `FetchPart`; the content is empty where there is no such file any more."""

    sha256: bytes
    offset: int
    content: memoryview


@sent(by="trainer", to="spool")
class OfferCheckpoint(Message, frozen=True):
    """A checkpoint of the trainer, for the broker's spool to copy. Answered by `CheckpointWanted`; may be repeated."""

    step: int
    """Optimizer steps contained."""
    manifest: bytes
    """Contents of its manifest."""
    kept: list[int]
    """Steps of the checkpoints that the trainer keeps; copies of older ones may go."""
    best: bytes = b""
    """Contents of ``best.json``; empty if there is none."""


@sent(by="spool", to="trainer")
class CheckpointWanted(Message, frozen=True):
    """Answer to `OfferCheckpoint`: the copy is complete and on disk if nothing is wanted."""

    step: int
    offsets: dict[str, int]
    """Bytes that are there of each incomplete file, by its path."""
    problem: str = ""
    """Reason for which the checkpoint cannot be stored; empty if it can."""


@sent(by="trainer", to="spool")
class PutCheckpointPart(Message, frozen=True):
    """Part of a file of the checkpoint that was offered last, in order. Answered by `PutCheckpointPartDone`."""

    step: int
    name: str
    """Path of the file in the checkpoint."""
    offset: int
    """Bytes of the file before this part."""
    content: memoryview


@sent(by="spool", to="trainer")
class PutCheckpointPartDone(Message, frozen=True):
    """Answer to `PutCheckpointPart`."""

    problem: str = ""
    """Reason for which the part was not stored; empty if it was."""
