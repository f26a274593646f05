"""
Weights of the last publish, against which decoupled correction takes ratios for all steps until the next one.

    publish ─ keep ─▶ step 1 ─▶ step 2: applied ┐ scores by the kept weights ┘ ─▶ update of its own weights ─▶ publish

The kept weights are this rank's rows of the trained parameters (of adapters only, if those are trained), in float32 on
the host. While they are applied, they are swapped with the weights in training.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from asyncrl.trainer.ranks.sharding import local_rows


class Anchor:
    """Copy of ``parameters`` at the last publish. The parameters themselves are borrowed."""

    def __init__(self, parameters: Mapping[str, Tensor], steps_per_publish: int) -> None:
        self._parameters = parameters
        self._steps_per_publish = steps_per_publish
        self._kept: list[Tensor] | None = None
        self._is_current = False
        """True if the kept weights equal those in training."""

    @torch.no_grad()
    def begin(self, step: int) -> None:
        """Begin a step. The first step after a publish, or of this process, copies the weights."""
        self._is_current = step % self._steps_per_publish == 0 or self._kept is None
        if self._is_current:
            self._kept = [tensor.to("cpu", copy=True) for tensor in self._own()]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the parameters have the kept values."""
        if self._is_current:
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _own(self) -> list[Tensor]:
        """This rank's rows, looked up at each call, because FSDP may move them at its first use."""
        return [local_rows(parameter.detach())[0] for parameter in self._parameters.values()]

    @torch.no_grad()
    def _swap(self) -> None:
        for own, kept in zip(self._own(), self._kept or (), strict=True):
            trained = own.to("cpu", copy=True)
            own.copy_(kept)
            kept.copy_(trained)
