"""
The trainer's copies of policy versions, each in its own staging buffers.

    write(v + 1) ─▶ the oldest free copy        read(v) ─▶ the copy of v, locked during the transfer

With two copies, version v + 1 can be written while v is sent. A third copy keeps the version that receivers hold, as
the base of deltas.

Invariants: the newest complete version, versions being read, and the kept version are never overwritten; a copy whose
write was interrupted holds no version.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from asyncrl.weights.contents.header import NO_VERSION
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.group import CPU
from asyncrl.weights.staging import Staging


class _Copy:
    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        self.policy_version = NO_VERSION
        self.num_readers = 0


class Copies:
    """
    Thread-safe for one writer and any readers.

    ``keeps_base`` adds a third copy, so `keep` delays no writer. ``beside`` is the device of the model; see `Staging`.
    """

    def __init__(self, layout: Layout, device: torch.device, *, keeps_base: bool, beside: torch.device = CPU) -> None:
        self._copies = [_Copy(Staging(layout, device, beside=beside)) for _ in range(3 if keeps_base else 2)]
        self._newest: _Copy | None = None
        self._kept: _Copy | None = None
        self._changed = threading.Condition()

    @property
    def newest(self) -> int:
        """The last complete version; `NO_VERSION` before the first."""
        return self._newest.policy_version if self._newest else NO_VERSION

    @contextmanager
    def write(self, policy_version: int) -> Iterator[Staging]:
        """Yield buffers for a version, which is complete when the block ends. Waits until a copy is free."""
        with self._changed:
            self._changed.wait_for(self._free)
            copy = min(self._free(), key=lambda copy: copy.policy_version)
            copy.policy_version = NO_VERSION
        yield copy.staging
        with self._changed:
            copy.policy_version, self._newest = policy_version, copy

    @contextmanager
    def read(self, policy_version: int) -> Iterator[Staging | None]:
        """Yield the buffers of a version, locked until the block ends; None if no copy holds the version."""
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
        """Keep this version, which must be locked by `read`, in place of the version kept before."""
        with self._changed:
            self._kept = self._find(policy_version)

    def kept(self) -> tuple[int, Staging] | None:
        """The kept version and its buffers; None if no version is kept."""
        return (self._kept.policy_version, self._kept.staging) if self._kept else None

    def _free(self) -> list[_Copy]:
        return [copy for copy in self._copies if not copy.num_readers and copy not in (self._newest, self._kept)]

    def _find(self, policy_version: int) -> _Copy | None:
        return next((copy for copy in self._copies if copy.policy_version == policy_version != NO_VERSION), None)
