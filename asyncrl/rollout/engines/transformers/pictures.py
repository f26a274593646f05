"""
Pictures of requests, decoded once for all requests that have them, and encoded once under each policy version.

    file ─ digest ─▶ EnginePicture ─ vision tower ─▶ Features     kept with the picture until new weights arrive
                        │
                        └─ positions among the tokens of one prompt ─▶ PlacedPictures

A turn of an episode has the pictures of all turns before it, of which only the new ones are encoded.
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

RECENT = 32
"""Pictures kept after their last request ended, for samples of the same group, and the next turns of an episode."""


@dataclass(frozen=True, slots=True)
class Features:
    """A vision tower's output for the N tokens of some pictures. H is the decoder's hidden size."""

    embeddings: Tensor
    """States [N, H] that replace the embeddings of the image tokens."""
    deepstack: list[Tensor]
    """States [N, H] to add to the output of each of the decoder's first layers; empty for Qwen2.5-VL."""


class EnginePicture:
    """A picture, shared by all requests that have it."""

    def __init__(self, digest: bytes, values: Tensor, grid: Grid) -> None:
        self.digest = digest
        """SHA-256 of the file."""
        self.values = values
        """Patches, [t * h * w, C * T * P * P] float32, on the CPU."""
        self.grid = grid
        self.features: Features | None = None
        """Features under the current weights; None until a prefill needs them."""


@dataclass(frozen=True, slots=True)
class PlacedPictures:
    """Pictures among the L tokens of one prompt."""

    pictures: tuple[EnginePicture, ...]
    positions: NDArray[np.int64]
    """Rotary positions of every token, [3, L]: time, row and column."""
    delta: int
    """Rotary position of a token after the prompt, minus its index in the sequence."""
    processor: str
    """`ImageProcessor.version` of the processor that cut them."""

    @property
    def digests(self) -> tuple[bytes, ...]:
        return tuple(picture.digest for picture in self.pictures)

    @property
    def grids(self) -> list[Grid]:
        return [picture.grid for picture in self.pictures]


class VisionTower:
    """Vision tower of a model, with a cache of the features of recent pictures. Raises as `require_encoded`."""

    def __init__(self, model: PreTrainedModel, processor: ImageProcessor) -> None:
        require_encoded(type(model), "the model")
        self._model = model.base_model
        self._processor = processor
        self._live: WeakValueDictionary[bytes, EnginePicture] = WeakValueDictionary()
        self._recent: deque[EnginePicture] = deque(maxlen=RECENT)
        self.num_encoded = 0
        """Pictures that were encoded so far."""

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
            positions, delta = self._processor.positions(prompt_ids, [picture.grid for picture in pictures])
        except DataError as error:
            raise EngineError(str(error), retryable=False) from error
        if prompt_ids[-1] == self._processor.image_token_id:
            raise EngineError("a prompt ends with a picture; write something behind it", retryable=False)
        return PlacedPictures(pictures, positions, delta, self._processor.version)

    def forget(self) -> None:
        """Drop all features, because the weights have changed."""
        for picture in self._live.values():
            picture.features = None

    def see(self, placed: Sequence[PlacedPictures | None]) -> Features:
        """Features of the pictures of one or more prompts, in order. Runs the tower on those without features."""
        pictures = [picture for each in placed if each is not None for picture in each.pictures]
        if fresh := list({one.digest: one for one in pictures if one.features is None}.values()):
            self._encode(fresh)
        seen = [picture.features for picture in pictures if picture.features is not None]
        layers = zip(*(features.deepstack for features in seen), strict=True)
        return Features(torch.cat([features.embeddings for features in seen]), [torch.cat(layer) for layer in layers])

    def _pictures(self, files: tuple[bytes, ...]) -> tuple[EnginePicture, ...]:
        digests = [sha256(file).digest() for file in files]
        held = {digest: self._live.get(digest) for digest in digests}
        new = {digest: file for digest, file in zip(digests, files, strict=True) if held[digest] is None}
        pixels = self._processor.pixels(list(new.values()))
        values = torch.split(pixels.values, [t * h * w for t, h, w in pixels.grids])
        for digest, own, grid in zip(new, values, pixels.grids, strict=True):
            held[digest] = self._live[digest] = EnginePicture(digest, own, grid)
        found = {digest: picture for digest, picture in held.items() if picture is not None}
        self._recent.extend(found[digest] for digest in new)
        return tuple(found[digest] for digest in digests)

    def _encode(self, pictures: Sequence[EnginePicture]) -> None:
        """Compute the features of pictures in one run of the tower."""
        device = self._model.device
        values = torch.cat([picture.values for picture in pictures]).to(device)
        grids = torch.tensor([picture.grid for picture in pictures], device=device)
        with ready_kernels(device):
            seen = self._model.get_image_features(values, grids, return_dict=True)
        sizes = [self._processor.num_tokens(picture.grid) for picture in pictures]
        deepstack = getattr(seen, "deepstack_features", None) or []
        layers = [torch.split(torch.cat(list(layer)), sizes) for layer in deepstack]
        embeddings = torch.split(torch.cat(list(seen.pooler_output)), sizes)
        for place, picture in enumerate(pictures):
            picture.features = Features(embeddings[place], [layer[place] for layer in layers])
        self.num_encoded += len(pictures)


def mrope(placed: Sequence[PlacedPictures | None], length: int, device: torch.device) -> Tensor:
    """Rotary positions [3, B, length] of rows, each a prompt and possibly a part of its completion."""
    rows = np.broadcast_to(np.arange(length), (3, len(placed), length)).copy()
    for row, each in enumerate(placed):
        if each is not None:
            own = min(length, each.positions.shape[1])
            rows[:, row, :own] = each.positions[:, :own]
            rows[:, row, own:] += each.delta
    return torch.from_numpy(rows).to(device)
