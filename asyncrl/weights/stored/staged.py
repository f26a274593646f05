"""
A rollout's copy of the weights, which stored files change from version to version, and the digest that tells it is
exact.

    part, part, part of an anchor ─▶ version 20 ─▶ part of a delta ─▶ (neither) ─▶ part ─▶ version 21

It outlives the sessions of its node, so that a file is continued after its link was lost.
"""

import hashlib
import struct

import torch

from asyncrl.errors import TransferError
from asyncrl.messages.weights import StoredWeights
from asyncrl.weights.contents.header import Checksum
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.shared import shared_staging
from asyncrl.weights.staging import Staging
from asyncrl.weights.stored.stream import FORMAT, Reader

# ── digest ────────────────────────────────────────────────────────────────────────────────────
# Digest of a complete version, to tell that two copies are the same bit for bit.


def digest(staging: Staging, checksum: Checksum) -> str:
    """sha256 in hex over the layout's hash and the checksum of every bucket; see `Checksum` for what it detects."""
    sums = [checksum(bucket) for bucket in staging.buckets]
    return hashlib.sha256(bytes.fromhex(staging.layout.hash) + struct.pack(f"<{len(sums)}q", *sums)).hexdigest()


# ── staged ────────────────────────────────────────────────────────────────────────────────────


class StagedVersion:
    """
    Staging buffers in host memory, with the digest of what they hold. For one thread at a time.

    They are the only copy of the weights beside the engine's own. With ``is_shared`` the processes of an engine map
    them, and need no staging buffers: one copy for all of them.
    """

    def __init__(self, layout: Layout, *, is_shared: bool = False) -> None:
        self.layout = layout
        self._staging = shared_staging(layout) if is_shared else Staging(layout)
        self._checksum = Checksum(torch.device("cpu"))
        self._reader: Reader | None = None
        self.digest = ""
        """Digest of the complete version held; empty if there is none."""
        self.unfinished: StoredWeights | None = None
        """File that was read in part; no complete version is held then."""
        self.next_part = 0
        """Part of ``unfinished`` to read next."""

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Read-only views by name. Raises `TransferError` unless a complete version is held."""
        if not self.digest:
            raise TransferError("no complete policy version is staged; a transfer must succeed first")
        return self._staging.tensors

    def begin(self, weights: StoredWeights) -> None:
        """
        Start to read a file, unless it is ``unfinished`` already.

        Raises:
            TransferError: It is of another layout or encoding, or a delta from another version than the one held.
        """
        if weights == self.unfinished:
            return
        if weights.layout_hash != self.layout.hash:
            raise TransferError(
                f"the stored weight layout is {weights.layout_hash[:8]}, this rollout's is {self.layout.hash[:8]}: "
                f"trainer and engine have different models, or different weights.bucket_bytes"
            )
        if weights.format != FORMAT:
            raise TransferError(
                f"the weights are stored in format {weights.format}, this rollout reads format {FORMAT}: "
                f"install one version of asyncrl"
            )
        if not weights.is_anchor and weights.base_digest != self.digest:
            raise TransferError(f"the delta of version {weights.policy_version} is from another base")
        self._reader = Reader(self._staging, is_delta=not weights.is_anchor)
        self.unfinished, self.next_part, self.digest = weights, 0, ""

    def read(self, payload: memoryview) -> None:
        """Decode the part ``next_part``. After a `TransferError` nothing is held."""
        try:
            self._reading()[0].read(payload)
        except TransferError:
            self.discard()
            raise
        self.next_part += 1

    def finish(self) -> None:
        """Hold the version: all parts were read. Raises `TransferError`, and holds nothing, if it is not exact."""
        reader, weights = self._reading()
        found = digest(self._staging, self._checksum) if reader.is_complete else "that of a part"
        self.discard()
        if found != weights.digest:
            raise TransferError(
                f"version {weights.policy_version} is damaged: its digest is {found[:16]}, the trainer's is "
                f"{weights.digest[:16]}"
            )
        self.digest = found

    def discard(self) -> None:
        """Discard what is held: the next file to read must be an anchor."""
        self._reader, self.unfinished, self.next_part, self.digest = None, None, 0, ""

    def close(self) -> None:
        """Free the memory at once, whoever still refers to this object. Idempotent."""
        self.discard()
        self._staging = Staging(Layout([], 1))

    def _reading(self) -> tuple[Reader, StoredWeights]:
        if self._reader is None or self.unfinished is None:
            raise TransferError("a part arrived, but no file was begun")
        return self._reader, self.unfinished
