"""
Weights of the last publish, against which decoupled correction takes ratios for all steps until the next one.

    publish ─ keep ─▶ step 1 ─▶ step 2: applied ┐ scores by the kept weights ┘ ─▶ update of its own weights ─▶ publish

The weights are this rank's rows of what is trained, in float32 on the host, and change places with those in training
while they are applied. Of adapters, only those are kept.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from asyncrl.trainer.ranks.sharding import local_rows


class Anchor:
    """Keeps ``parameters`` as they are at a publish. Borrows them."""

    def __init__(self, parameters: Mapping[str, Tensor], steps_per_publish: int) -> None:
        self._parameters = parameters
        self._steps_per_publish = steps_per_publish
        self._kept: list[Tensor] | None = None
        self._is_current = False
        """The kept weights equal those in training."""

    @torch.no_grad()
    def begin(self, step: int) -> None:
        """Begin a step; the first one of a publish, or of this process, keeps the weights."""
        self._is_current = step % self._steps_per_publish == 0 or self._kept is None
        if self._is_current:
            self._kept = [tensor.to("cpu", copy=True) for tensor in self._own()]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The parameters have the kept values inside of this block."""
        if self._is_current:
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _own(self) -> list[Tensor]:
        """This rank's rows, as they are stored at the moment: FSDP may store them elsewhere at its first use."""
        return [local_rows(parameter.detach())[0] for parameter in self._parameters.values()]

    @torch.no_grad()
    def _swap(self) -> None:
        for own, kept in zip(self._own(), self._kept or (), strict=True):
            trained = own.to("cpu", copy=True)
            own.copy_(kept)
            kept.copy_(trained)
