"""
The versions a trainer has ready, each in staging buffers of its own.

    write(v + 1) ─▶ the oldest copy that nobody needs        read(v) ─▶ its copy, for as long as it moves

Two copies let version v + 1 be written while v moves. A third keeps what receivers have, to send what changed since.

Invariants: the newest whole version is never written over, nor is one that is read, nor the one that is kept; a copy
that was not written to its end is no version.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from asyncrl.weights.contents.header import NOTHING
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.staging import Staging


class _Copy:
    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        self.policy_version = NOTHING
        self.num_readers = 0


class Copies:
    """
    Written by one thread, read by another.

    Args:
        plan: The layout of each.
        device: Where they lie.
        keeps_base: Have a copy more, so that `keep` costs no waiting.
    """

    def __init__(self, plan: Layout, device: torch.device, *, keeps_base: bool) -> None:
        self._copies = [_Copy(Staging(plan, device)) for _ in range(3 if keeps_base else 2)]
        self._newest: _Copy | None = None
        self._kept: _Copy | None = None
        self._changed = threading.Condition()

    @property
    def newest(self) -> int:
        """The version written last; `NOTHING` before the first."""
        return self._newest.policy_version if self._newest else NOTHING

    @contextmanager
    def write(self, policy_version: int) -> Iterator[Staging]:
        """Buffers to write a version to, whole when the block ends; waits for a read if all others are needed."""
        with self._changed:
            self._changed.wait_for(self._free)
            copy = min(self._free(), key=lambda copy: copy.policy_version)
            copy.policy_version = NOTHING
        yield copy.staging
        with self._changed:
            copy.policy_version, self._newest = policy_version, copy

    @contextmanager
    def read(self, policy_version: int) -> Iterator[Staging | None]:
        """Buffers that hold the version until the block ends; None if there are none."""
        with self._changed:
            copy = self._find(policy_version)
            if copy:
                copy.num_readers += 1
        try:
            yield copy.staging if copy else None
        finally:
            with self._changed:
                if copy:
                    copy.num_readers -= 1
                self._changed.notify_all()

    def keep(self, policy_version: int) -> None:
        """Have this version stay, instead of the one kept before. Only what is being read may be kept."""
        with self._changed:
            self._kept = self._find(policy_version)

    def kept(self) -> tuple[int, Staging] | None:
        """The version that stays, if any does."""
        return (self._kept.policy_version, self._kept.staging) if self._kept else None

    def _free(self) -> list[_Copy]:
        return [copy for copy in self._copies if not copy.num_readers and copy not in (self._newest, self._kept)]

    def _find(self, policy_version: int) -> _Copy | None:
        return next((copy for copy in self._copies if copy.policy_version == policy_version != NOTHING), None)
