"""
Pictures of requests, decoded once for all samples of a group, and encoded once under each policy version.

    files ─ digests ─▶ Pictures ─ vision tower ─▶ Features     kept with the pictures until new weights arrive
                          │
                          └─ positions among the tokens of one prompt ─▶ PlacedPictures
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.algo.logprobs import ready_kernels
from asyncrl.engine import Request
from asyncrl.errors import DataError, EngineError
from asyncrl.vision.positions import Grid
from asyncrl.vision.processor import ImageProcessor, require_encoded

RECENT = 8
"""Sets of pictures kept after their last request ended, for samples of the same group that come later."""


@dataclass(frozen=True, slots=True)
class Features:
    """A vision tower's output for the N tokens of some pictures. H is the decoder's hidden size."""

    embeddings: Tensor
    """States [N, H] that replace the embeddings of the image tokens."""
    deepstack: list[Tensor]
    """States [N, H] to add to the output of each of the decoder's first layers; empty for Qwen2.5-VL."""


class RequestPictures:
    """Distinct pictures in their order, shared by all requests that have them."""

    def __init__(self, digests: tuple[bytes, ...], values: Tensor, grids: list[Grid], processor: str = "") -> None:
        self.digests = digests
        """SHA-256 of each file."""
        self.values = values
        """Patches, [patches, C * T * P * P] float32, on the CPU."""
        self.grids = grids
        self.processor = processor
        """Version of the processor that cut them, `ImageProcessor.version`."""
        self.features: Features | None = None
        """Features under the current weights; None until a prefill needs them."""


@dataclass(frozen=True, slots=True)
class PlacedPictures:
    """Pictures among the L tokens of one prompt."""

    pictures: RequestPictures
    positions: NDArray[np.int64]
    """Rotary positions of every token, [3, L]: time, row and column."""
    delta: int
    """Rotary position of a token after the prompt, minus its index in the sequence."""


class VisionTower:
    """Vision tower of a model, with a cache of the features of recent pictures. Raises as `require_encoded`."""

    def __init__(self, model: PreTrainedModel, processor: ImageProcessor) -> None:
        require_encoded(type(model), "the model")
        self._model = model.base_model
        self._processor = processor
        self._live: WeakValueDictionary[tuple[bytes, ...], RequestPictures] = WeakValueDictionary()
        self._recent: deque[RequestPictures] = deque(maxlen=RECENT)
        self.num_runs = 0
        """Number of times that pictures were encoded."""

    def place(self, request: Request) -> PlacedPictures | None:
        """
        Decode the pictures of a request, and compute the positions of its tokens; None if it has no pictures.

        Raises a final `EngineError` if a picture is damaged, or its size does not match its image tokens.
        """
        prompt_ids = np.array(request.prompt_ids)
        if not request.images and self._processor.image_token_id not in prompt_ids:
            return None
        try:
            pictures = self._pictures(request.images)
            positions, delta = self._processor.positions(prompt_ids, pictures.grids)
        except DataError as error:
            raise EngineError(str(error), retryable=False) from error
        if prompt_ids[-1] == self._processor.image_token_id:
            raise EngineError("a prompt ends with a picture; write something behind it", retryable=False)
        return PlacedPictures(pictures, positions, delta)

    def forget(self) -> None:
        """Drop all features, because the weights have changed."""
        for pictures in self._live.values():
            pictures.features = None

    def see(self, placed: Sequence[PlacedPictures | None]) -> Features:
        """Features of the pictures of one or more prompts, in order. Runs the tower on those without features."""
        seen = [self._features(each.pictures) for each in placed if each is not None]
        layers = zip(*(features.deepstack for features in seen), strict=True)
        return Features(torch.cat([features.embeddings for features in seen]), [torch.cat(layer) for layer in layers])

    def _pictures(self, files: tuple[bytes, ...]) -> RequestPictures:
        digests = tuple(sha256(file).digest() for file in files)
        if (pictures := self._live.get(digests)) is None:
            pixels = self._processor.pixels(files)
            pictures = self._live[digests] = RequestPictures(
                digests, pixels.values, pixels.grids, self._processor.version
            )
            self._recent.append(pictures)
        return pictures

    def _features(self, pictures: RequestPictures) -> Features:
        if pictures.features is None:
            grids = torch.tensor(pictures.grids, device=self._model.device)
            with ready_kernels(self._model.device):
                seen = self._model.get_image_features(pictures.values.to(self._model.device), grids, return_dict=True)
            deepstack = [torch.cat(layer) for layer in getattr(seen, "deepstack_features", None) or []]
            pictures.features = Features(torch.cat(seen.pooler_output), deepstack)
            self.num_runs += 1
        return pictures.features


def mrope(placed: Sequence[PlacedPictures | None], length: int, device: torch.device) -> Tensor:
    """Rotary positions [3, B, length] of rows, each a prompt and possibly a part of its completion."""
    rows = np.broadcast_to(np.arange(length), (3, len(placed), length)).copy()
    for row, each in enumerate(placed):
        if each is not None:
            own = min(length, each.positions.shape[1])
            rows[:, row, :own] = each.positions[:, :own]
            rows[:, row, own:] += each.delta
    return torch.from_numpy(rows).to(device)
