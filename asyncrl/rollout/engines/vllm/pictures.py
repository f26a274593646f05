"""
Conversion of a request's pictures for vLLM.

    prompt ids, expanded ─ collapse ─▶ one token for each picture, which vLLM expands itself
    files ─ decode, resize ─▶ pictures, with the files' digests as their names in vLLM's caches

vLLM resizes pictures with torchvision, whose filter differs from pillow's in the last bits. So pictures are resized
here, to the size that vLLM would choose, and it only normalises and cuts them. If the limits of a picture's area are
close to each other, vLLM would resize some of these again; it gets such a picture in its original size.
"""

from hashlib import sha256
from typing import Any

from asyncrl.errors import DataError, EngineError
from asyncrl.rollout.engine import Request
from asyncrl.rollout.engines.prompts import READS_NONE
from asyncrl.vision.picture import decode, picture_size
from asyncrl.vision.placeholders import collapse
from asyncrl.vision.positions import Grid
from asyncrl.vision.processor import ImageProcessor


class VllmPictures:
    """Pictures of one prompt. Raises a final `EngineError` if one is damaged or does not match its image tokens."""

    def __init__(self, request: Request, processor: ImageProcessor) -> None:
        try:
            resized = processor.resized(request.images)
            self.grids: list[Grid] = [processor.grid(*picture_size(file)) for file in request.images]
            self._pictures = [
                picture if processor.grid(*picture.size) == grid else decode(file)
                for picture, grid, file in zip(resized, self.grids, request.images, strict=True)
            ]
            counts = [processor.num_tokens(grid) for grid in self.grids]
            self.collapsed_ids = collapse(request.prompt_ids, counts, processor.image_token_id)
            """Token ids of the prompt, with one image token for each picture."""
        except DataError as error:
            raise EngineError(str(error), retryable=False) from error
        self.processor = processor.version
        self._digests = [sha256(file).hexdigest() for file in request.images]

    def prompt_parts(self) -> dict[str, Any]:
        """Pictures and digests as vLLM's prompt has them. Requests with equal digests share one run of the encoder."""
        return {"multi_modal_data": {"image": self._pictures}, "multi_modal_uuids": {"image": self._digests}}


def placed(request: Request, processor: ImageProcessor | None) -> VllmPictures | None:
    """Pictures of a request; None if it has none. ``processor`` is None if the model reads no pictures."""
    if processor is None:
        if request.images:
            raise EngineError(READS_NONE, retryable=False)
        return None
    if request.images or processor.image_token_id in request.prompt_ids:
        return VllmPictures(request, processor)
    return None
