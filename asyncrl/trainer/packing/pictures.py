"""
Pictures of a packed row: each distinct one is read once, and its features go to every sequence that has it.

    row        p p A A A A p   q B B q   r A A A A r      sequences p, q, r; tokens of pictures A and B
    pictures   A ████  B ██                               patches, for one pass of the vision tower
    tokens         0 1 2 3       4 5       0 1 2 3        feature that stands at each picture's token of the row

Trainer and sampler compute the pixels separately, from the same files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.errors import DataError
from asyncrl.vision.positions import Grid
from asyncrl.vision.processor import ImageProcessor, Pixels


@dataclass(frozen=True, slots=True, eq=False)
class TrainingImage:
    """A picture's file, and the grid of patches that the sampler cut it into."""

    digest: bytes
    """SHA-256 of the file."""
    content: bytes
    """Bytes of the file."""
    grid: Grid
    """Numbers of the sampler's patches along time, height and width."""
    processor: str = ""
    """`ImageProcessor.version` of the sampler; empty if it is unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedPictures:
    """Distinct pictures whose tokens are in a rank's part of a row. Tensors are on its device."""

    pixels: Tensor
    """Patches of all pictures, [patches, C * T * P * P] float32."""
    grids: Tensor
    """Numbers of patches along time, height and width, [pictures, 3] int64."""
    tokens: Tensor
    """Index of the feature of each image token in the part, [M] int64, among the features of all pictures."""


class PictureTokens:
    """Indices of the image tokens in a row, collected sequence by sequence."""

    def __init__(self, processor: ImageProcessor) -> None:
        self._processor = processor
        self._images: dict[bytes, TrainingImage] = {}
        self._places: list[tuple[bytes, NDArray[np.int64]]] = []
        """Digest and row indices of each picture of each sequence, in the order of the row."""
        self._symbols: dict[tuple[bytes, Grid], int] = {}

    def positions(self, read: NDArray[np.int32], images: Sequence[TrainingImage]) -> NDArray[np.int64]:
        """
        Positions of a sequence's tokens, [3, L], or [L] without pictures.

        Raises `DataError` unless its image tokens match ``images``.
        """
        positions, _ = self._processor.positions(read, [image.grid for image in images])
        return positions if images else positions[0]

    def symbols(self, read: NDArray[np.int32], images: Sequence[TrainingImage]) -> NDArray[np.int32]:
        """[L] tokens of a sequence, in which those of each distinct picture are a negative number of its own."""
        own = [self._symbols.setdefault((image.digest, image.grid), -1 - len(self._symbols)) for image in images]
        symbols = read.copy()
        symbols[self._is_image(read)] = np.repeat(own, [self._processor.num_tokens(image.grid) for image in images])
        return symbols

    def check_text(self, completion_ids: NDArray[np.int32], context_ids: NDArray[np.int32], num_shown: int) -> None:
        """
        Raise `DataError` if a special token of pictures stands where there is none: the body would expect a picture.

        ``num_shown`` is the number of pictures in the context.
        """
        if found := self._processor.vision_token_ids.intersection(completion_ids.tolist()):
            raise DataError(
                f"a completion has the token {min(found)}, which stands for pictures and is never sampled; use an "
                f"engine that bans it, as both engines of asyncrl do"
            )
        of_pictures = self._processor.placeholder_ids if num_shown else ()
        if found := self._processor.vision_token_ids.intersection(context_ids.tolist()).difference(of_pictures):
            raise DataError(
                f"the context of an episode has the token {min(found)}, which stands for pictures, but no picture "
                f"there; let the text not spell it"
            )

    def add(
        self, read: NDArray[np.int32], indices: NDArray[np.int64], images: Sequence[TrainingImage], *, since: int
    ) -> None:
        """
        Add the pictures of a sequence.

        Args:
            indices: [L] row indices of its tokens; those from ``since`` on are new in the row.
        """
        places = indices[self._is_image(read)]
        for image in images:
            count = self._processor.num_tokens(image.grid)
            self._images.setdefault(image.digest, image)
            own, places = places[:count], places[count:]
            self._places.append((image.digest, own[own >= since]))

    def of_part(self, own: slice, device: torch.device) -> PackedPictures | None:
        """
        Read the pictures whose tokens are in a part of the row; None if there are none.

        Raises:
            DataError: A file is damaged, or its grid differs from the sampler's.
        """
        inside = [(digest, np.flatnonzero((own.start <= at) & (at < own.stop))) for digest, at in self._places]
        shown = [(digest, kept) for digest, kept in inside if len(kept)]
        if not shown:
            return None
        images = {digest: self._images[digest] for digest, _ in shown}
        ends = np.cumsum([0, *(self._processor.num_tokens(image.grid) for image in images.values())])
        firsts = dict(zip(images, ends.tolist(), strict=False))
        pixels = self._read(list(images.values()))
        return PackedPictures(
            pixels=pixels.values.to(device),
            grids=torch.tensor(pixels.grids, device=device),
            tokens=torch.from_numpy(np.concatenate([firsts[digest] + kept for digest, kept in shown])).to(device),
        )

    def _is_image(self, read: NDArray[np.int32]) -> NDArray[np.bool_]:
        is_image: NDArray[np.bool_] = read == self._processor.image_token_id
        return is_image

    def _read(self, images: Sequence[TrainingImage]) -> Pixels:
        pixels = self._processor.pixels([image.content for image in images])
        for image, grid in zip(images, pixels.grids, strict=True):
            if grid != tuple(image.grid):
                raise DataError(
                    f"the sampler cut the picture {image.digest.hex()[:12]} into {tuple(image.grid)} patches (time, "
                    f"height, width) with the processor {image.processor!r}, but this trainer cuts it into {grid} "
                    f"with {self._processor.version!r}; use one version of pillow and the same "
                    f"preprocessor_config.json in rollouts and trainer"
                )
        return pixels
