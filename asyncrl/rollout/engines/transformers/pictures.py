"""
Pictures of requests: decoded once, and encoded once under each policy version, however many samples a group has.

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

from asyncrl.errors import DataError, EngineError
from asyncrl.rollout.engine import Request
from asyncrl.vision.positions import Grid
from asyncrl.vision.processor import ImageProcessor

RECENT = 8
"""Sets of pictures kept after their last request ended, for samples of the same group that come later."""


@dataclass(frozen=True, slots=True)
class Features:
    """A vision tower's output for the N tokens of some pictures. H is the decoder's hidden size."""

    embeddings: Tensor
    """[N, H] what the decoder reads in place of the tokens' embeddings."""
    deepstack: list[Tensor]
    """[N, H] each, added to the output of the decoder's first layers. None of them for Qwen2.5-VL."""


class Pictures:
    """Distinct pictures in their order, shared by all requests that have them."""

    def __init__(self, digests: tuple[bytes, ...], values: Tensor, grids: list[Grid], processor: str = "") -> None:
        self.digests = digests
        """SHA-256 of each file."""
        self.values = values
        """[patches, C * T * P * P] float32, on the CPU."""
        self.grids = grids
        self.processor = processor
        """`ImageProcessor.version`."""
        self.features: Features | None = None
        """Under the current weights; None until a prefill needs them."""


@dataclass(frozen=True, slots=True)
class PlacedPictures:
    """Pictures among the L tokens of one prompt."""

    pictures: Pictures
    positions: NDArray[np.int64]
    """[3, L] time, row and column of every token."""
    delta: int
    """Rotary position of a token after the prompt, minus its place."""


class VisionTower:
    """A model's vision tower, and what it has seen under the current weights."""

    def __init__(self, model: PreTrainedModel, processor: ImageProcessor) -> None:
        self._model = model.base_model
        self._processor = processor
        self._live: WeakValueDictionary[tuple[bytes, ...], Pictures] = WeakValueDictionary()
        self._recent: deque[Pictures] = deque(maxlen=RECENT)
        self.num_runs = 0
        """Number of times that pictures were encoded."""

    def place(self, request: Request) -> PlacedPictures | None:
        """
        Decode the pictures of a request, and count the positions of its tokens; None if it has no pictures.

        Raises a final `EngineError` if a picture is damaged, or has not as many tokens as the prompt has for it.
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
        """Drop all features: the weights are others."""
        for pictures in self._live.values():
            pictures.features = None

    def see(self, placed: Sequence[PlacedPictures | None]) -> Features:
        """Features of the pictures of one or more prompts, in order; what is not encoded yet is."""
        seen = [self._features(each.pictures) for each in placed if each is not None]
        layers = zip(*(features.deepstack for features in seen), strict=True)
        return Features(torch.cat([features.embeddings for features in seen]), [torch.cat(layer) for layer in layers])

    def _pictures(self, files: tuple[bytes, ...]) -> Pictures:
        digests = tuple(sha256(file).digest() for file in files)
        if (pictures := self._live.get(digests)) is None:
            pixels = self._processor.pixels(files)
            pictures = self._live[digests] = Pictures(digests, pixels.values, pixels.grids, self._processor.version)
            self._recent.append(pictures)
        return pictures

    def _features(self, pictures: Pictures) -> Features:
        if pictures.features is None:
            grids = torch.tensor(pictures.grids, device=self._model.device)
            seen = self._model.get_image_features(pictures.values.to(self._model.device), grids, return_dict=True)
            deepstack = [torch.cat(layer) for layer in getattr(seen, "deepstack_features", None) or []]
            pictures.features = Features(torch.cat(seen.pooler_output), deepstack)
            self.num_runs += 1
        return pictures.features


def mrope(placed: Sequence[PlacedPictures | None], length: int, device: torch.device) -> Tensor:
    """[3, B, length] positions of rows that begin with a prompt and may go on with its completion."""
    rows = np.broadcast_to(np.arange(length), (3, len(placed), length)).copy()
    for row, each in enumerate(placed):
        if each is not None:
            own = min(length, each.positions.shape[1])
            rows[:, row, :own] = each.positions[:, :own]
            rows[:, row, own:] += each.delta
    return torch.from_numpy(rows).to(device)
